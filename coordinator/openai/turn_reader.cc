#include "coordinator/openai/turn_reader.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"

namespace somnus {

TurnReader::TurnReader(std::shared_ptr<const AnswerFormat> format)
    : format_(std::move(format)), parser_(format_->format, &format_->schemas, format_->options) {}

// OpenAI's clients read calls by their index, so that leaving later calls out leaves no gap.
bool TurnReader::IsShown(const TurnEvent& event) const {
  if (event.kind == TurnEvent::Kind::kReasoning) return format_->include_reasoning;
  if (event.kind == TurnEvent::Kind::kContent && format_->only_calls) return false;
  return event.call <= 0 || format_->parallel_tool_calls;
}

// A client may stop at a marker that ends calls: then the call is whole, though the text lacks the marker.
bool TurnReader::IsWhole(const OutputDelta& delta) const {
  if (delta.finish_reason != FinishReason::kStop) return false;
  if (!delta.stop_string.has_value()) return true;
  const ToolFormat* const tools = format_->format.tools;
  if (tools == nullptr) return false;
  const absl::string_view stop = absl::StripAsciiWhitespace(*delta.stop_string);
  const auto begins_stop = [stop](absl::string_view marker) {
    marker = absl::StripAsciiWhitespace(marker);
    return !marker.empty() && absl::StartsWith(stop, marker);
  };
  return begins_stop(tools->section_end) ||
         std::any_of(tools->call_end.begin(), tools->call_end.end(), begins_stop);
}

void TurnReader::Read(OutputDelta* delta) {
  const bool was_in_reasoning = parser_.in_reasoning();
  std::vector<TurnEvent> events = parser_.Feed(std::exchange(delta->text, ""));
  delta->touches_reasoning = was_in_reasoning || parser_.in_reasoning();
  // Markers do not count, as in vLLM.
  if (was_in_reasoning && parser_.in_reasoning())
    delta->num_reasoning_tokens = static_cast<int32_t>(delta->token_ids.size());
  std::vector<TurnEvent> last;
  if (delta->finish_reason != FinishReason::kNone)
    last = parser_.Finish(IsWhole(*delta) ? TurnEnd::kStop : TurnEnd::kCut);
  for (std::vector<TurnEvent>* const part : {&events, &last}) {
    for (TurnEvent& event : *part) {
      if (!IsShown(event)) continue;
      delta->cuts_call |= event.is_cut && delta->stop_string.has_value();
      delta->events.push_back(std::move(event));
    }
  }
}

}  // namespace somnus
