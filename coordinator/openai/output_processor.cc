#include "coordinator/openai/output_processor.h"

#include <algorithm>
#include <utility>

#include "absl/strings/string_view.h"

namespace somnus {

OutputProcessor::OutputProcessor(const Tokenizer* tokenizer, OutputOptions options, bool at_start)
    : options_(std::move(options)), detokenizer_(tokenizer, options_.skip_special_tokens, at_start) {}

// Returns the stop string that ends first, of all that end in pending_ after byte `new_from`.
std::optional<OutputProcessor::Match> OutputProcessor::FirstMatch(size_t new_from) const {
  std::optional<Match> best;
  for (size_t i = 0; i < options_.stop.size(); ++i) {
    const std::string& stop = options_.stop[i];
    const size_t from = new_from >= stop.size() ? new_from - stop.size() + 1 : 0;
    const size_t at = pending_.find(stop, from);
    if (at == std::string::npos) continue;
    if (!best.has_value() || at + stop.size() < best->end) best = Match{at, at + stop.size(), i};
  }
  return best;
}

// Returns the first position from which the rest of pending_ is the beginning of a stop string.
size_t OutputProcessor::HeldBackFrom() const {
  size_t from = pending_.size();
  for (const std::string& stop : options_.stop) {
    size_t length = std::min(stop.size() - 1, pending_.size());
    for (; length > pending_.size() - from; --length) {
      if (absl::string_view(pending_).substr(pending_.size() - length) ==
          absl::string_view(stop).substr(0, length))
        break;
    }
    from = std::min(from, pending_.size() - length);
  }
  return from;
}

bool OutputProcessor::Advance(std::string text, bool count_stops, OutputDelta* delta) {
  if (text.empty()) return false;
  if (options_.stop.empty()) {
    delta->text += text;
    return false;
  }
  const size_t new_from = pending_.size();
  pending_ += text;
  if (count_stops) {
    if (const std::optional<Match> match = FirstMatch(new_from)) {
      delta->text.append(pending_, 0, options_.include_stop_str_in_output ? match->end : match->begin);
      delta->stop_string = options_.stop[match->index];
      pending_.clear();
      return true;
    }
  }
  const size_t keep = HeldBackFrom();
  delta->text.append(pending_, 0, keep);
  pending_.erase(0, keep);
  return false;
}

// A character that the end cuts in two is left out, as in vLLM: half a character or U+FFFD is of no use.
void OutputProcessor::Finish(OutputDelta* delta) {
  finished_ = true;
  delta->text += pending_;
  pending_.clear();
}

OutputDelta OutputProcessor::Process(RequestOutput output) {
  OutputDelta delta;
  if (finished_) return delta;
  delta.prompt_logprobs = std::move(output.prompt_logprobs);
  delta.pooled = std::move(output.pooled);
  delta.num_cached_tokens = output.num_cached_tokens;
  delta.weights_version = output.weights_version;
  const bool ended_by_token = output.finish_reason == FinishReason::kStop;
  for (size_t i = 0; i < output.token_ids.size(); ++i) {
    const int32_t id = output.token_ids[i];
    ++num_tokens_;
    delta.token_ids.push_back(id);
    if (i < output.logprobs.size()) delta.logprobs.push_back(std::move(output.logprobs[i]));
    // The token that ends a sequence is counted, but the token's text is left out, as the text of a stop
    // string is.
    const bool hidden =
        ended_by_token && i + 1 == output.token_ids.size() && !options_.include_stop_str_in_output;
    if (hidden) continue;
    if (Advance(detokenizer_.Append(id), num_tokens_ > options_.min_tokens, &delta)) {
      finished_ = true;
      delta.finish_reason = FinishReason::kStop;
      delta.engine_still_runs = output.finish_reason == FinishReason::kNone;
      return delta;
    }
  }
  if (output.finish_reason != FinishReason::kNone) {
    delta.finish_reason = output.finish_reason;
    delta.stop_token_id = output.stop_token_id;
    delta.error = std::move(output.error);
    Finish(&delta);
  }
  return delta;
}

}  // namespace somnus
