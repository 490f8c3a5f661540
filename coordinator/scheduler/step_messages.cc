#include "coordinator/scheduler/step_messages.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "coordinator/scheduler/step_size.h"

namespace somnus {
namespace {

void FillSampling(const SamplingParams& params, bool owes_prompt_logprobs, v1::StepSampling* message) {
  message->set_temperature(params.temperature);
  message->set_top_p(params.top_p);
  message->set_top_k(params.top_k);
  message->set_min_p(params.min_p);
  message->set_presence_penalty(params.presence_penalty);
  message->set_frequency_penalty(params.frequency_penalty);
  message->set_repetition_penalty(params.repetition_penalty);
  for (const auto& [token, bias] : params.logit_bias) (*message->mutable_logit_bias())[token] = bias;
  message->set_min_tokens(params.min_tokens);
  if (params.min_tokens > 0) {
    message->mutable_suppress_token_ids()->Add(params.eos_token_ids.begin(), params.eos_token_ids.end());
    message->mutable_suppress_token_ids()->Add(params.stop_token_ids.begin(), params.stop_token_ids.end());
  }
  message->set_num_logprobs(params.num_logprobs);
  message->set_num_prompt_logprobs(owes_prompt_logprobs ? params.num_prompt_logprobs : -1);
  message->mutable_allowed_token_ids()->Add(params.allowed_token_ids.begin(), params.allowed_token_ids.end());
  for (const std::vector<int32_t>& word : params.bad_words) {
    message->add_bad_words()->mutable_token_ids()->Add(word.begin(), word.end());
  }
  for (const BadText& text : params.bad_texts) {
    v1::BadText* bad_text = message->add_bad_texts();
    bad_text->set_num_bytes(text.num_bytes);
    for (const BadText::Piece& piece : text.pieces) {
      bad_text->add_token_ids(piece.token_id);
      bad_text->add_from(piece.from);
      bad_text->add_to(piece.to);
    }
  }
}

v1::StepPooling ToMessage(Pooling pooling) {
  switch (pooling) {
    case Pooling::kLast:
      return v1::STEP_POOLING_LAST;
    case Pooling::kCls:
      return v1::STEP_POOLING_CLS;
    case Pooling::kMean:
      return v1::STEP_POOLING_MEAN;
    case Pooling::kNone:
      break;
  }
  return v1::STEP_POOLING_NONE;
}

}  // namespace

NewSequenceWriter::Key NewSequenceWriter::KeyOf(const Sequence& sequence) {
  return {sequence.request.sampling.get(), sequence.owes_prompt_logprobs()};
}

int64_t NewSequenceWriter::Cost(const Sequence& sequence, int32_t block_size) const {
  const int64_t own = NewSequenceBytes(static_cast<int64_t>(sequence.tokens.size()), block_size);
  if (sampling_index_.contains(KeyOf(sequence))) return own;
  return own + StepSamplingBytes(*sequence.request.sampling);
}

void NewSequenceWriter::Add(const Sequence& sequence, const std::vector<int32_t>& block_ids) {
  const Key key = KeyOf(sequence);
  const auto [it, is_new] = sampling_index_.emplace(key, request_->samplings_size());
  if (is_new) FillSampling(*key.first, key.second, request_->add_samplings());
  v1::NewSequence* message = request_->add_new_sequences();
  message->set_slot(sequence.slot);
  message->mutable_token_ids()->Add(sequence.tokens.begin(), sequence.tokens.end());
  message->set_num_prompt_tokens(static_cast<int32_t>(sequence.prompt_len()));
  message->set_num_computed_tokens(static_cast<int32_t>(sequence.num_computed));
  message->mutable_block_ids()->Add(block_ids.begin(), block_ids.end());
  message->set_sampling_index(it->second);
  message->set_seed(sequence.request.seed);
  if (sequence.request.adapter != nullptr) message->set_adapter_slot(sequence.request.adapter->slot);
  if (sequence.pools()) message->set_pooling(ToMessage(sequence.request.pooling));
}

void NameInput(const Sequence& sequence, v1::ScheduledSequence* scheduled) {
  scheduled->add_input_token_ids(sequence.tokens.back());
  scheduled->set_start_position(static_cast<int32_t>(sequence.tokens.size() - 1));
}

Logprobs FromMessage(const v1::StepLogprobs& message) {
  Logprobs logprobs;
  logprobs.token_ids.assign(message.token_ids().begin(), message.token_ids().end());
  logprobs.logprobs.assign(message.logprobs().begin(), message.logprobs().end());
  logprobs.rank = message.rank();
  return logprobs;
}

absl::Status DeliverPromptLogprobs(const v1::PromptLogprobs* message, int64_t start, int64_t num_tokens,
                                   Sequence* sequence, RequestOutput* output) {
  if (!sequence->owes_prompt_logprobs()) return absl::OkStatus();
  if (sequence->num_prompt_logprobs == 0) {  // nothing predicts the first token
    output->prompt_logprobs.emplace_back();
    sequence->num_prompt_logprobs = 1;
  }
  // The logits at position p decide token p + 1, as far as the prompt goes.
  const int64_t last = std::min(start + num_tokens, sequence->prompt_len() - 1);
  const int64_t expected = std::max<int64_t>(0, last - start);
  const int64_t got = message == nullptr ? 0 : message->positions_size();
  if (got != expected) {
    return absl::InternalError(absl::StrCat("the worker returned ", got,
                                            " prompt log-probabilities for a chunk of ", num_tokens,
                                            " tokens at ", start, ", where ", expected, " were due"));
  }
  for (int64_t position = start + 1; position <= last; ++position) {
    if (position < sequence->num_prompt_logprobs) continue;
    output->prompt_logprobs.push_back(
        FromMessage(message->positions(static_cast<int>(position - start - 1))));
    ++sequence->num_prompt_logprobs;
  }
  return absl::OkStatus();
}

}  // namespace somnus
