#include "tests/text_tools/recorded_turns.h"

#include <fstream>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace somnus {
namespace {

// A line of recorded_turns.jsonl; members that the line lacks are empty.
RecordedTurn TurnOf(const std::string& line) {
  const nlohmann::json json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  SOMNUS_CHECK(json.is_object());
  const auto text = [&json](const char* name) { return json.value(name, std::string()); };
  RecordedTurn turn{.title = text("title"),
                    .tools = text("tools"),
                    .reasoning = text("reasoning_format"),
                    .starts_in_reasoning = json.value("starts_in_reasoning", false),
                    .text = text("text"),
                    .turn = {.reasoning = text("reasoning"), .content = text("content")}};
  for (const nlohmann::json& call : json.value("calls", nlohmann::json::array()))
    turn.turn.calls.push_back({.id = call[0], .name = call[1], .arguments = call[2]});
  return turn;
}

}  // namespace

const std::vector<RecordedTurn>& RecordedTurns() {
  static const auto* const turns = [] {
    auto* all = new std::vector<RecordedTurn>;
    std::ifstream file("tests/text_tools/recorded_turns.jsonl");
    for (std::string line; std::getline(file, line);) all->push_back(TurnOf(line));
    SOMNUS_CHECK(!all->empty());
    return all;
  }();
  return *turns;
}

const std::vector<ToolSpec>& RecordedTools() {
  static const auto* const tools = new std::vector<ToolSpec>{
      {"get_weather", nlohmann::ordered_json::parse(R"({"type": "object", "properties": {
         "city": {"type": "string"}, "days": {"type": "integer"}, "detailed": {"type": "boolean"},
         "tags": {"type": "array", "items": {"type": "string"}}, "options": {"$ref": "#/$defs/options"},
         "note": {"anyOf": [{"type": "string"}, {"type": "null"}]}},
         "required": ["city", "days"], "additionalProperties": false, "$defs": {"options": {"type": "object", "properties": {"depth": {"type": "integer"}}}}})")},
      {"get_time", nullptr},
      {"run", nlohmann::ordered_json::parse(R"({"type": "object", "properties": {"code": {"type": "string"}},
         "required": ["code"]})")}};
  return *tools;
}

TurnFormat FormatOf(const RecordedTurn& recorded) {
  TurnFormat format;
  if (recorded.tools == "json") {
    format.tools = &ForcedJsonFormat();
  } else if (!recorded.tools.empty()) {
    format.tools = FindToolFormat(recorded.tools);
    SOMNUS_CHECK(format.tools != nullptr);
  }
  if (!recorded.reasoning.empty()) {
    format.reasoning = FindReasoningFormat(recorded.reasoning);
    SOMNUS_CHECK(format.reasoning != nullptr);
  }
  return format;
}

TurnOptions OptionsOf(const RecordedTurn& recorded) {
  TurnOptions options;
  options.starts_in_reasoning = recorded.starts_in_reasoning;
  options.make_id = [](absl::string_view, int32_t index) { return absl::StrCat("id", index); };
  return options;
}

}  // namespace somnus
