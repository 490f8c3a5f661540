#include "tests/text_tools/fuzz_entries.h"

#include <algorithm>
#include <string>
#include <vector>

#include "base/check.h"
#include "tests/text_tools/recorded_turns.h"
#include "text/tools/turn_parser.h"

namespace somnus {
namespace {

// Joins events as if all had come at once.
std::vector<TurnEvent> Joined(const std::vector<TurnEvent>& events) {
  TurnEvents joined;
  for (const TurnEvent& event : events) {
    switch (event.kind) {
      case TurnEvent::Kind::kCallBegin:
        joined.AddBegin(event.call, event.id, event.name);
        break;
      case TurnEvent::Kind::kCallEnd:
        joined.AddEnd(event.call, event.is_cut);
        break;
      default:
        joined.AddText(event.kind, event.text, event.call);
    }
  }
  return joined.TakeAll();
}

std::vector<TurnEvent> Parse(const RecordedTurn& recorded, absl::string_view text, size_t piece,
                             TurnEnd end) {
  static const auto* const schemas = new ToolSchemas(RecordedTools(), /*keeps_schemas=*/true);
  TurnOptions options = OptionsOf(recorded);
  options.limits.max_argument_bytes = 4096;
  options.limits.max_calls = 8;
  options.limits.max_depth = 16;
  TurnParser parser(FormatOf(recorded), schemas, options);
  std::vector<TurnEvent> events;
  for (; !text.empty(); text.remove_prefix(std::min(piece, text.size()))) {
    for (TurnEvent& event : parser.Feed(text.substr(0, piece))) events.push_back(std::move(event));
  }
  for (TurnEvent& event : parser.Finish(end)) events.push_back(std::move(event));
  return Joined(events);
}

void CheckOrder(const std::vector<TurnEvent>& events) {
  int32_t calls = 0;
  bool is_open = false;
  for (const TurnEvent& event : events) {
    const bool is_begin = event.kind == TurnEvent::Kind::kCallBegin;
    const bool is_call = is_begin || event.call >= 0;
    SOMNUS_CHECK(is_call == (is_begin || is_open));
    if (is_begin) {
      SOMNUS_CHECK(!is_open);
      SOMNUS_CHECK(event.call == calls++);
      SOMNUS_CHECK(!event.name.empty());
      SOMNUS_CHECK(!event.id.empty());
    }
    if (is_call) SOMNUS_CHECK(event.call == calls - 1);
    if (is_call) is_open = event.kind != TurnEvent::Kind::kCallEnd;
  }
  SOMNUS_CHECK(!is_open);
}

// Reasoning and content are parts of the text, in the text's order, but for line breaks between harmony's
// messages.
void CheckText(const std::vector<TurnEvent>& events, absl::string_view text) {
  size_t at = 0;
  for (const TurnEvent& event : events) {
    if (event.kind != TurnEvent::Kind::kContent) continue;
    for (const char c : event.text) {
      if (c == '\n') continue;
      at = text.find(c, at);
      SOMNUS_CHECK(at != absl::string_view::npos);
      ++at;
    }
  }
}

}  // namespace

void FuzzTurnParser(absl::string_view bytes) {
  if (bytes.size() < 2) return;
  const std::vector<RecordedTurn>& turns = RecordedTurns();
  const RecordedTurn& recorded = turns[static_cast<unsigned char>(bytes[0]) % turns.size()];
  const auto how = static_cast<unsigned char>(bytes[1]);
  const TurnEnd end = how % 2 == 0 ? TurnEnd::kStop : TurnEnd::kCut;
  const absl::string_view text = bytes.substr(2);
  const std::vector<TurnEvent> whole = Parse(recorded, text, text.size() + 1, end);
  SOMNUS_CHECK(Parse(recorded, text, 1 + how / 2 % 16, end) == whole);
  CheckOrder(whole);
  CheckText(whole, text);
}

}  // namespace somnus
