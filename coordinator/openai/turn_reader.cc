#include "coordinator/openai/turn_reader.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"

namespace somnus {

TurnReader::TurnReader(std::shared_ptr<const AnswerFormat> format)
    : format_(std::move(format)), parser_(format_->format, &format_->schemas, format_->options) {}

// OpenAI's clients read calls by their index, so that leaving later calls out leaves no gap.
bool TurnReader::IsShown(const TurnEvent& event) const {
  if (event.kind == TurnEvent::Kind::kReasoning) return format_->include_reasoning;
  if (event.kind == TurnEvent::Kind::kContent && format_->only_calls) return false;
  return event.call <= 0 || format_->parallel_tool_calls;
}

// A client may stop at the markers that end calls: then the call is whole.
bool TurnReader::CutsCall(const OutputDelta& delta) const {
  if (!delta.stop_string.has_value() || !parser_.in_call()) return false;
  if (first_has_ended_ && !format_->parallel_tool_calls) return false;  // later calls are not shown
  const absl::string_view stop = absl::StripAsciiWhitespace(*delta.stop_string);
  const auto has_stop = [stop](absl::string_view marker) {
    return !stop.empty() && absl::StripAsciiWhitespace(marker) == stop;
  };
  const ToolFormat& tools = *format_->format.tools;
  return !has_stop(tools.section_end) && std::none_of(tools.call_end.begin(), tools.call_end.end(), has_stop);
}

void TurnReader::Read(OutputDelta* delta) {
  const bool was_in_reasoning = parser_.in_reasoning();
  std::vector<TurnEvent> events = parser_.Feed(std::exchange(delta->text, ""));
  delta->touches_reasoning = was_in_reasoning || parser_.in_reasoning();
  // Markers do not count, as in vLLM.
  if (was_in_reasoning && parser_.in_reasoning())
    delta->num_reasoning_tokens = static_cast<int32_t>(delta->token_ids.size());
  first_has_ended_ |= std::any_of(events.begin(), events.end(), [](const TurnEvent& event) {
    return event.kind == TurnEvent::Kind::kCallEnd;
  });
  if (delta->finish_reason != FinishReason::kNone) {
    delta->cuts_call = CutsCall(*delta);
    const bool is_whole = delta->finish_reason == FinishReason::kStop && !delta->cuts_call;
    for (TurnEvent& event : parser_.Finish(is_whole ? TurnEnd::kStop : TurnEnd::kCut))
      events.push_back(std::move(event));
  }
  for (TurnEvent& event : events) {
    if (IsShown(event)) delta->events.push_back(std::move(event));
  }
}

}  // namespace somnus
