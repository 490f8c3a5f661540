#include "tests/text_tools/recorded_turns.h"

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "tests/text_tools/recorded_tables.h"

namespace somnus {

const std::vector<RecordedTurn>& RecordedTurns() {
  static const auto* const turns = [] {
    auto* all = new std::vector<RecordedTurn>;
    for (auto* part : {&JsonTurns, &NamedTurns, &TagTurns, &PythonicTurns, &RareTurns, &ReasoningTurns}) {
      for (RecordedTurn& turn : part()) all->push_back(std::move(turn));
    }
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
