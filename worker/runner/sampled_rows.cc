#include "worker/runner/sampled_rows.h"

#include <algorithm>
#include <cmath>

namespace somnus {
namespace {

// The error of a row that has no token.
absl::Status NoTokenError(int32_t token) {
  if (token != kNoTokenAllowed) return LogitsNotFiniteError();
  return absl::OutOfRangeError(
      "allowed_token_ids, bad_words, logit_bias, min_tokens and the grammar leave no token to choose");
}

}  // namespace

absl::Status LogitsNotFiniteError() {
  return absl::InternalError("the model's logits are not finite numbers");
}

void AddLogprobs(int32_t token, float logprob, int32_t rank, absl::Span<const ScoredToken> top,
                 v1::StepLogprobs* out) {
  out->add_token_ids(token);
  out->add_logprobs(logprob);
  out->set_rank(rank);
  for (const ScoredToken& other : top) {
    out->add_token_ids(other.id);
    out->add_logprobs(other.value);
  }
}

void AddSlotError(int32_t slot, const absl::Status& error, v1::StepReply* reply) {
  v1::SlotError* message = reply->add_slot_errors();
  message->set_slot(slot);
  message->set_code(error.raw_code());
  message->set_message(std::string(error.message()));
}

void SampledRows::FillReply(v1::StepReply* reply) const {
  int64_t next_raw = 0;
  bool counts = true;
  for (size_t i = 0; i < rows.size(); ++i) {
    const bool has_logprobs = num_logprobs[i] >= 0;
    const int64_t raw = has_logprobs ? next_raw++ : 0;
    // Further rows of a draft count as long as the earlier sampled tokens are the draft's.
    const bool is_first = i == 0 || rows[i - 1].slot != rows[i].slot;
    counts = is_first || (counts && tokens[i - 1] == rows[i - 1].guess);
    if (!counts) continue;
    // The chosen token's own logit may be finite where the row's sum is not: then the log-probability is NaN.
    const bool good = tokens[i] >= 0 && !(has_logprobs && std::isnan(logprobs[raw]));
    if (!good) {
      // Behind a token that counts, the sequence's next step finds the error again.
      if (is_first) AddSlotError(rows[i].slot, NoTokenError(tokens[i]), reply);
      counts = false;
      continue;
    }
    v1::SampledToken* token = reply->add_tokens();
    token->set_slot(rows[i].slot);
    token->set_token_id(tokens[i]);
    if (!has_logprobs) continue;
    const int64_t alternatives = std::min<int64_t>(num_logprobs[i], top_stride);
    AddLogprobs(tokens[i], logprobs[raw], ranks[raw],
                {top + raw * top_stride, static_cast<size_t>(alternatives)}, token->mutable_logprobs());
  }
}

}  // namespace somnus
