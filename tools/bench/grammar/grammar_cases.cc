#include "tools/bench/grammar/grammar_cases.h"

#include <variant>

#include "absl/strings/str_cat.h"
#include "coordinator/structured/schema_gate.h"

namespace somnus {
namespace {

constexpr char kToolCall[] = R"({
  "type": "object",
  "properties": {
    "city": {"type": "string", "description": "name of the city"},
    "unit": {"enum": ["celsius", "fahrenheit"]},
    "days": {"type": "integer", "minimum": 1, "maximum": 14},
    "hours": {"type": "array", "items": {"type": "number"}, "maxItems": 24},
    "notify": {"anyOf": [{"type": "null"}, {"type": "object", "properties": {"email": {"type": "string"}},
                                           "required": ["email"], "additionalProperties": false}]}
  },
  "required": ["city", "unit", "days"],
  "additionalProperties": false
})";
constexpr char kToolCallText[] =
    R"({"city": "Frankfurt am Main", "unit": "celsius", "days": 7, "hours": [6.5, 12, 18.25], "notify": )"
    R"({"email": "someone@example.org"}})";

// About 10 kB: records of several kinds that refer to each other.
std::string LargeSchema() {
  std::string schema = R"({"type":"object","$defs":{)";
  for (int i = 0; i < 12; ++i) {
    absl::StrAppend(
        &schema, i == 0 ? "" : ",", "\"record", i,
        R"(":{"type":"object","properties":{"kind":{"const":"kind)", i,
        R"("},"identifier":{"type":"string","minLength":1,"maxLength":64,"description":"what others )",
        R"(call this record, without spaces"},"state":{"enum":["open","waiting for )", i,
        R"(","closed"]},"priority":{"type":"integer","minimum":0,"maximum":)", 5 + i,
        R"(},"labels":{"type":"array","items":{"type":"string"},"maxItems":8},"estimate":{"type":)",
        R"(["number","null"]},"children":{"type":"array","items":{"$ref":"#/$defs/record)", (i + 1) % 12,
        R"("}},"address":{"type":"object","properties":{"street":{"type":"string"},"number":{"type":)",
        R"("integer"},"city":{"type":"string"}},"required":["street","city"],"additionalProperties":)",
        R"(false}},"required":["kind","identifier","state"],"additionalProperties":false})");
  }
  absl::StrAppend(&schema, R"(},"properties":{)");
  for (int i = 0; i < 12; ++i) {
    absl::StrAppend(&schema, i == 0 ? "" : ",", "\"field", i, R"(":{"$ref":"#/$defs/record)", i, "\"}");
  }
  return schema + R"(},"additionalProperties":false})";
}

std::string LargeText() {
  std::string text = "{";
  for (int i = 0; i < 12; ++i) {
    absl::StrAppend(
        &text, i == 0 ? "" : ", ", "\"field", i, R"(": {"kind": "kind)", i,
        R"(", "identifier": "INV-2026-00)", i, R"(", "state": "waiting for )", i,
        R"(", "priority": 3, "labels": ["urgent", "for the board"], )",
        R"("estimate": 12.5, "address": {"street": "Hauptstrasse", "number": 12, "city": "Berlin"}})");
  }
  return text + "}";
}

constexpr char kLengths[] = R"({
  "type": "object",
  "properties": {
    "title": {"type": "string", "minLength": 1, "maxLength": 60},
    "comment": {"type": "string", "maxLength": 255},
    "body": {"type": "string", "minLength": 20, "maxLength": 5000}
  },
  "required": ["title", "comment", "body"],
  "additionalProperties": false
})";

std::string TextOfLengths() {
  std::string body;
  for (int i = 0; i < 30; ++i) {
    absl::StrAppend(&body, "Line ", i, " of a \\\"longer\\\" text that somebody reads.\\n");
  }
  return absl::StrCat(
      R"({"title": "The quick brown fox", "comment": "It jumps over the lazy dog,\nand \"runs\" )",
      R"(away from home because the weather is cold.", "body": ")", body, R"("})");
}

constexpr char kFreeText[] =
    R"({"summary": "The quick brown fox jumps over the lazy dog, and 12 others follow.", "parts": [{"a": 1, "b": [true, null]}, )"
    R"("text with \"quotes\" and a é"], "nested": {"deep": {"deeper": {"x": -1.5e3}}}})";

// An engine that reads a length as one of characters without escapes takes this text, too.
constexpr char kPlainTextOfLengths[] =
    R"({"title": "The quick brown fox", "comment": "It jumps over the lazy dog and runs away from home because the )"
    R"(weather is cold.", "body": "Nobody in the village had seen the fox before, and so they asked each other )"
    R"(where it came from, what it ate in winter, and why it did not fear the dogs of the mill. An old man said )"
    R"(that his grandfather had told him of such a fox: it came down from the hills when the snow was deep."})";

}  // namespace

std::vector<GrammarCase> GrammarCases() {
  return {{"any JSON object", GrammarKind::kJsonObject, "", kFreeText},
          {"a tool's arguments", GrammarKind::kJsonSchema, kToolCall, kToolCallText},
          {"a schema of 10 kB", GrammarKind::kJsonSchema, LargeSchema(), LargeText()},
          {"strings with lengths", GrammarKind::kJsonSchema, kLengths, TextOfLengths()},
          {"the same, no escapes", GrammarKind::kJsonSchema, kLengths, kPlainTextOfLengths},
          {"a date by pattern", GrammarKind::kRegex, "[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z",
           "2026-11-29T13:00:00Z"}};
}

GrammarSource Gated(const GrammarCase& one) {
  GrammarSource source{.kind = one.kind, .text = one.asked, .choices = {}, .layout = {}};
  if (one.kind == GrammarKind::kJsonSchema)
    source.text = std::get<nlohmann::ordered_json>(GateSchemaText(one.asked, {})).dump();
  if (one.kind == GrammarKind::kRegex) source.text = std::get<std::string>(GateRegex(one.asked, {}));
  return source;
}

}  // namespace somnus
