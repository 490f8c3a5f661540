#include "coordinator/openai/turn_reader.h"

#include <utility>

namespace somnus {

TurnReader::TurnReader(std::shared_ptr<const AnswerFormat> format)
    : format_(std::move(format)), parser_(format_->format, &format_->schemas, format_->options) {}

// OpenAI's clients read calls by their index, so that leaving later calls out leaves no gap.
bool TurnReader::IsShown(const TurnEvent& event) const {
  if (event.kind == TurnEvent::Kind::kReasoning) return format_->include_reasoning;
  if (event.kind == TurnEvent::Kind::kContent && format_->only_calls) return false;
  return event.call <= 0 || format_->parallel_tool_calls;
}

void TurnReader::Read(OutputDelta* delta) {
  const bool was_in_reasoning = parser_.in_reasoning();
  std::vector<TurnEvent> events = parser_.Feed(std::exchange(delta->text, ""));
  delta->touches_reasoning = was_in_reasoning || parser_.in_reasoning();
  // Markers do not count, as in vLLM.
  if (was_in_reasoning && parser_.in_reasoning())
    delta->num_reasoning_tokens = static_cast<int32_t>(delta->token_ids.size());
  if (delta->finish_reason != FinishReason::kNone) {
    const TurnEnd end = delta->finish_reason == FinishReason::kStop ? TurnEnd::kStop : TurnEnd::kCut;
    for (TurnEvent& event : parser_.Finish(end)) events.push_back(std::move(event));
  }
  for (TurnEvent& event : events) {
    if (IsShown(event)) delta->events.push_back(std::move(event));
  }
}

}  // namespace somnus
