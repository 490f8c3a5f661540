#include "text/tools/turn_parser.h"

#include <utility>

#include "absl/strings/ascii.h"
#include "text/tools/call_ids.h"
#include "text/tools/harmony_turn.h"
#include "text/tools/plain_turn.h"

namespace somnus {

TurnParser::TurnParser(const TurnFormat& format, const ToolSchemas* schemas, TurnOptions options)
    : no_tools_(std::vector<ToolSpec>()) {
  if (!options.make_id) {
    options.make_id = CallIdMaker(format.tools == nullptr ? CallIdStyle::kRandom : format.tools->ids, 0);
  }
  output_ = std::make_unique<TurnOutput>(options.limits, std::move(options.make_id));
  const bool has_harmony_tools = format.tools != nullptr && format.tools->body == CallBody::kHarmony;
  if (has_harmony_tools || (format.reasoning != nullptr && format.reasoning->harmony)) {
    grammar_ = std::make_unique<HarmonyTurn>(has_harmony_tools, options.starts_in_reasoning,
                                             options.limits.max_depth, output_.get());
  } else {
    grammar_ =
        std::make_unique<PlainTurn>(format.tools, format.reasoning, options.starts_in_reasoning,
                                    schemas == nullptr ? no_tools_ : *schemas, options.limits, output_.get());
  }
}

TurnParser::~TurnParser() = default;

std::vector<TurnEvent> TurnParser::Feed(absl::string_view text) {
  for (const char c : text) grammar_->Read(c);
  return output_->events().Take();
}

std::vector<TurnEvent> TurnParser::Finish(TurnEnd end) {
  grammar_->Finish(end == TurnEnd::kCut);
  return output_->events().TakeAll();
}

void ParsedTurn::Add(const std::vector<TurnEvent>& events) {
  for (const TurnEvent& event : events) {
    switch (event.kind) {
      case TurnEvent::Kind::kReasoning:
        reasoning += event.text;
        break;
      case TurnEvent::Kind::kContent:
        content += event.text;
        break;
      case TurnEvent::Kind::kCallBegin:
        calls.push_back({event.id, event.name, ""});
        break;
      case TurnEvent::Kind::kArguments:
        calls[static_cast<size_t>(event.call)].arguments += event.text;
        break;
      case TurnEvent::Kind::kCallEnd:
        break;
    }
  }
}

ParsedTurn ParseTurn(const TurnFormat& format, const ToolSchemas* schemas, absl::string_view text,
                     TurnEnd end, TurnOptions options) {
  TurnParser parser(format, schemas, std::move(options));
  ParsedTurn turn;
  turn.Add(parser.Feed(text));
  turn.Add(parser.Finish(end));
  return turn;
}

bool StartsInReasoning(const ReasoningFormat& format, absl::string_view prompt, bool continues) {
  constexpr size_t kNone = absl::string_view::npos;
  const absl::string_view mark = absl::StripAsciiWhitespace(format.begin);
  const auto ends_behind = [prompt](size_t at, absl::string_view marker) {
    return at != kNone && absl::StripAsciiWhitespace(prompt.substr(at + marker.size())).empty();
  };
  const size_t begin = prompt.rfind(mark);
  const size_t end = prompt.rfind(format.end);
  const bool is_open = begin != kNone && (end == kNone || end < begin);
  if (continues) return is_open;
  if (is_open && ends_behind(begin, mark)) return true;
  return format.begins_inside && !ends_behind(end, format.end);
}

}  // namespace somnus
