#include "worker/runner/sampler.h"

#include <algorithm>
#include <limits>
#include <vector>

namespace somnus {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

bool SuppressesStop(const Slot& slot) {
  return slot.num_outputs() < slot.sampling.min_tokens && !slot.sampling.suppress_token_ids.empty();
}

void KeepOnly(const std::vector<int32_t>& allowed, absl::Span<float> logits) {
  std::vector<float> kept;
  kept.reserve(allowed.size());
  for (int32_t id : allowed) kept.push_back(logits[id]);
  std::fill(logits.begin(), logits.end(), kNever);
  for (size_t i = 0; i < allowed.size(); ++i) logits[allowed[i]] = kept[i];
}

// A bad word's last token cannot follow its other tokens, as far as those were generated.
void ApplyBadWords(const Slot& slot, absl::Span<float> logits) {
  for (const std::vector<int32_t>& word : slot.sampling.bad_words) {
    const size_t prefix = word.size() - 1;
    if (prefix > static_cast<size_t>(slot.num_outputs())) continue;
    if (std::equal(word.begin(), word.end() - 1, slot.tokens.end() - prefix)) logits[word.back()] = kNever;
  }
}

void ApplyPenalties(const Slot& slot, absl::Span<float> logits) {
  const SlotSampling& s = slot.sampling;
  for (const auto& [id, count] : slot.counts) {
    float& logit = logits[id];
    logit = logit > 0 ? logit / s.repetition_penalty : logit * s.repetition_penalty;
    logit -= s.frequency_penalty * static_cast<float>(count.outputs);
    if (count.outputs > 0) logit -= s.presence_penalty;
  }
}

}  // namespace

bool IsPlainGreedy(const Slot& slot) {
  const SlotSampling& s = slot.sampling;
  return s.temperature == 0 && s.num_logprobs < 0 && !s.has_penalties() && s.logit_bias.empty() &&
         s.allowed_token_ids.empty() && s.bad_words.empty() && !SuppressesStop(slot);
}

void AdjustLogits(const Slot& slot, absl::Span<float> logits) {
  const SlotSampling& s = slot.sampling;
  if (!s.allowed_token_ids.empty()) KeepOnly(s.allowed_token_ids, logits);
  ApplyBadWords(slot, logits);
  if (SuppressesStop(slot)) {
    for (int32_t id : s.suppress_token_ids) logits[id] = kNever;
  }
  for (const auto& [id, bias] : s.logit_bias) logits[id] += bias;
  if (s.has_penalties()) ApplyPenalties(slot, logits);
}

void Sampler::Carve(Carver* carver, int64_t vocab_size, int64_t max_rows) {
  raw_ = carver->TakeMatrix(DataType::kF32, max_rows, vocab_size);
  raw_rows_ = carver->Take<int32_t>(max_rows);
  ids_ = carver->Take<int32_t>(max_rows);
  logprobs_ = carver->Take<float>(max_rows);
  ranks_ = carver->Take<int32_t>(max_rows);
  top_ = carver->Take<ScoredToken>(max_rows * kMaxLogprobs);
  sample_rows_ = carver->Take<SampleRow>(max_rows);
}

void Sampler::KeepRawLogits(const TensorView& logits, absl::Span<const LogitRow> rows,
                            const BatchState& state) {
  num_raw_ = 0;
  max_alternatives_ = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    const int32_t wanted = state.slot(rows[i].slot).sampling.num_logprobs;
    if (wanted < 0) continue;
    raw_rows_[num_raw_++] = static_cast<int32_t>(i);
    max_alternatives_ = std::max<int64_t>(max_alternatives_, std::min<int64_t>(wanted, logits.cols));
  }
  if (num_raw_ > 0) GatherRows(*device_, logits, raw_rows_, FirstRows(raw_, num_raw_));
}

void Sampler::SampleRows(const TensorView& logits, absl::Span<const LogitRow> rows, const BatchState& state,
                         int32_t* tokens, v1::StepReply* reply) {
  num_raw_ = 0;
  if (reply != nullptr) KeepRawLogits(logits, rows, state);
  for (size_t i = 0; i < rows.size(); ++i) {
    const Slot& slot = state.slot(rows[i].slot);
    const SlotSampling& s = slot.sampling;
    AdjustLogits(slot, absl::MakeSpan(logits.row<float>(static_cast<int64_t>(i)), logits.cols));
    sample_rows_[i] = {s.temperature, s.top_p, s.top_k, s.min_p, s.seed, rows[i].position + 1};
  }
  Sample(*device_, logits, sample_rows_, tokens);
  if (reply == nullptr) return;

  const int first = reply->tokens_size();
  for (size_t i = 0; i < rows.size(); ++i) {
    v1::SampledToken* token = reply->add_tokens();
    token->set_slot(rows[i].slot);
    token->set_token_id(tokens[i]);
  }
  if (num_raw_ == 0) return;
  for (int64_t i = 0; i < num_raw_; ++i) ids_[i] = std::max(0, tokens[raw_rows_[i]]);
  LogProbs(*device_, FirstRows(raw_, num_raw_), ids_, max_alternatives_, logprobs_, ranks_,
           max_alternatives_ > 0 ? top_ : nullptr);
  for (int64_t i = 0; i < num_raw_; ++i) {
    const int32_t wanted = state.slot(rows[raw_rows_[i]].slot).sampling.num_logprobs;
    FillLogprobs(i, wanted, max_alternatives_,
                 reply->mutable_tokens(first + raw_rows_[i])->mutable_logprobs());
  }
}

void Sampler::FillLogprobs(int64_t i, int32_t num_logprobs, int64_t stride, v1::StepLogprobs* out) const {
  out->add_token_ids(ids_[i]);
  out->add_logprobs(logprobs_[i]);
  out->set_rank(ranks_[i]);
  for (int64_t j = 0; j < std::min<int64_t>(num_logprobs, stride); ++j) {
    out->add_token_ids(top_[i * stride + j].id);
    out->add_logprobs(top_[i * stride + j].value);
  }
}

void Sampler::PromptLogprobs(const TensorView& logits, absl::Span<const LogitRow> rows,
                             const BatchState& state, v1::StepReply* reply) {
  int64_t alternatives = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    const Slot& slot = state.slot(rows[i].slot);
    ids_[i] = slot.tokens[rows[i].position + 1];
    alternatives =
        std::max<int64_t>(alternatives, std::min<int64_t>(slot.sampling.num_prompt_logprobs, logits.cols));
  }
  LogProbs(*device_, logits, ids_, alternatives, logprobs_, ranks_, alternatives > 0 ? top_ : nullptr);
  for (size_t i = 0; i < rows.size(); ++i) {
    const LogitRow& row = rows[i];
    const int last = reply->prompt_logprobs_size() - 1;
    // Rows of a sequence come one after another; a piece may continue the sequence of the piece before.
    v1::PromptLogprobs* entry = last >= 0 && reply->prompt_logprobs(last).slot() == row.slot
                                    ? reply->mutable_prompt_logprobs(last)
                                    : nullptr;
    if (entry == nullptr) {
      entry = reply->add_prompt_logprobs();
      entry->set_slot(row.slot);
      entry->set_start(row.position);
    }
    FillLogprobs(static_cast<int64_t>(i), state.slot(row.slot).sampling.num_prompt_logprobs, alternatives,
                 entry->add_positions());
  }
}

}  // namespace somnus
