#include "coordinator/grpc/gateway/response_writer.h"

#include <algorithm>

#include "coordinator/openai/response_json.h"

namespace somnus::gateway {
namespace {

// The alternatives of a position, without the token itself.
void FillTop(const Logprobs& position, wire::TopLogProbs* top) {
  for (size_t i = 1; i < position.token_ids.size(); ++i) {
    top->add_token_ids(static_cast<uint32_t>(position.token_ids[i]));
    top->add_values(position.logprobs[i]);
  }
}

void FillOutputLogprobs(const std::vector<Logprobs>& positions, wire::OutputLogProbs* to) {
  for (const Logprobs& position : positions) {
    if (position.token_ids.empty()) continue;
    to->add_token_ids(static_cast<uint32_t>(position.token_ids[0]));
    to->add_token_logprobs(position.logprobs[0]);
    FillTop(position, to->add_top_logprobs());
  }
}

// The first token of the prompt has no log-probability.
void FillInputLogprobs(const std::vector<int32_t>& prompt, const std::vector<Logprobs>& positions,
                       wire::InputLogProbs* to) {
  for (size_t i = 0; i < std::min(prompt.size(), positions.size()); ++i) {
    const Logprobs& position = positions[i];
    to->add_token_ids(static_cast<uint32_t>(prompt[i]));
    wire::InputTokenLogProb* const logprob = to->add_token_logprobs();
    if (!position.logprobs.empty()) logprob->set_value(position.logprobs[0]);
    FillTop(position, to->add_top_logprobs());
  }
}

int64_t BytesOf(const std::vector<Logprobs>& positions) {
  int64_t bytes = 0;
  for (const Logprobs& position : positions)
    bytes += static_cast<int64_t>(position.token_ids.size()) * 8 + int64_t{sizeof(wire::TopLogProbs)};
  return bytes;
}

}  // namespace

ResponseWriter::ResponseWriter(GenerateCall* call, bool stream,
                               ::grpc::ServerWriter<wire::GenerateResponse>* writer)
    : call_(call),
      stream_(stream),
      writer_(writer),
      choices_(static_cast<size_t>(call->params().n)),
      num_open_(call->params().n) {}

bool ResponseWriter::Add(ChoiceUpdate update) {
  const OutputDelta& delta = update.delta;
  Choice& choice = choices_[static_cast<size_t>(update.index)];
  wire::GenerateComplete* const complete = &choice.complete;
  complete->set_prompt_tokens(static_cast<uint32_t>(call_->params().prompts[0].ids.size()));
  if (!choice.counted) complete->set_cached_tokens(static_cast<uint32_t>(delta.num_cached_tokens));
  choice.counted = true;
  for (const int32_t id : delta.token_ids) complete->add_output_ids(static_cast<uint32_t>(id));
  complete->set_completion_tokens(static_cast<uint32_t>(complete->output_ids_size()));
  held_bytes_ += static_cast<int64_t>(delta.token_ids.size() * sizeof(uint32_t));
  if (stream_) {
    if (!delta.token_ids.empty() && !WriteChunk(update, choice)) return false;
  } else {
    if (call_->params().logprobs) FillOutputLogprobs(delta.logprobs, complete->mutable_output_logprobs());
    if (update.index == 0 && !delta.prompt_logprobs.empty())
      FillInputLogprobs(call_->params().prompts[0].ids, delta.prompt_logprobs,
                        complete->mutable_input_logprobs());
    held_bytes_ += BytesOf(delta.logprobs) + BytesOf(delta.prompt_logprobs);
  }
  return delta.finish_reason == FinishReason::kNone || WriteComplete(update, &choice);
}

bool ResponseWriter::WriteChunk(const ChoiceUpdate& update, const Choice& choice) {
  const OutputDelta& delta = update.delta;
  wire::GenerateStreamChunk* const chunk = response_.mutable_chunk();
  chunk->mutable_token_ids()->Add(delta.token_ids.begin(), delta.token_ids.end());
  chunk->set_prompt_tokens(choice.complete.prompt_tokens());
  chunk->set_completion_tokens(choice.complete.completion_tokens());
  chunk->set_cached_tokens(choice.complete.cached_tokens());
  chunk->set_index(static_cast<uint32_t>(update.index));
  if (call_->params().logprobs) FillOutputLogprobs(delta.logprobs, chunk->mutable_output_logprobs());
  if (update.index == 0 && !delta.prompt_logprobs.empty()) {
    FillInputLogprobs(call_->params().prompts[0].ids, delta.prompt_logprobs, chunk->mutable_input_logprobs());
  }
  return Write(::grpc::WriteOptions());
}

bool ResponseWriter::WriteComplete(const ChoiceUpdate& update, Choice* choice) {
  const OutputDelta& delta = update.delta;
  wire::GenerateComplete* const complete = response_.mutable_complete();
  complete->Swap(&choice->complete);
  complete->set_index(static_cast<uint32_t>(update.index));
  complete->set_finish_reason(FinishReasonName(delta.finish_reason));
  if (delta.stop_string.has_value()) complete->set_matched_stop_str(*delta.stop_string);
  if (delta.stop_token_id.has_value())
    complete->set_matched_token_id(static_cast<uint32_t>(*delta.stop_token_id));
  ::grpc::WriteOptions options;
  // The last write ends when the client's window has taken everything: the end of the call, which nobody
  // watches, then has to wait for nothing.
  if (--num_open_ == 0) options.set_write_through();
  return Write(options);
}

bool ResponseWriter::Write(const ::grpc::WriteOptions& options) {
  const bool written = call_->Write([&] { return writer_->Write(response_, options); });
  response_.Clear();
  return written;
}

}  // namespace somnus::gateway
