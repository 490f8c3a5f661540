#include "text/tools/forced_calls.h"

#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "text/tools/tool_schemas.h"
#include "text/tools/turn_parser.h"

namespace somnus {
namespace {

using Json = nlohmann::ordered_json;
using Kind = ForcedChoice::Kind;

std::vector<ToolSpec> Tools(bool is_strict = false) {
  return {{"f", Json::parse(R"({"type": "object", "properties": {"a": {"type": "integer"}}})"), is_strict},
          {"g", nullptr}};
}

TEST(ForcedCallsTagTest, Required) {
  const auto tag = ForcedCallsTag(*FindToolFormat("hermes"), Tools(), {.kind = Kind::kRequired});
  ASSERT_TRUE(tag.ok()) << tag.status();
  EXPECT_EQ(*tag,
            Json::parse(R"({"type": "structural_tag", "format": {"type": "tags_with_separator", "tags": [
    {"type": "tag", "begin": "<tool_call>\n{\"name\": \"f\", \"arguments\": ",
     "content": {"type": "json_schema", "json_schema": {"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": false}},
     "end": "}\n</tool_call>"},
    {"type": "tag", "begin": "<tool_call>\n{\"name\": \"g\", \"arguments\": ",
     "content": {"type": "json_schema",
                 "json_schema": {"type": "object", "properties": {}, "additionalProperties": false}},
     "end": "}\n</tool_call>"}],
    "separator": "\n", "at_least_one": true, "stop_after_first": false}})"));
}

Json AsObject(const char* schema) {
  Json object = Json::parse(schema);
  object["type"] = "object";
  return object;
}

TEST(ForcedCallsTagTest, AFunctionHasTheParametersThatItNames) {
  const auto schema_of = [](const char* parameters) {
    const std::vector<ToolSpec> tools = {{"f", Json::parse(parameters), true}};
    return (*ForcedCallsTag(*FindToolFormat("hermes"), tools,
                            {.kind = Kind::kRequired}))["format"]["tags"][0]["content"]["json_schema"];
  };
  EXPECT_EQ(
      schema_of(R"({"type": "object", "properties": {"a": {}}, "required": ["a"]})"),
      Json::parse(
          R"({"type": "object", "properties": {"a": {}}, "required": ["a"], "additionalProperties": false})"));
  for (const char* same :
       {R"({"type": "object"})", R"({"properties": {"a": {}}, "additionalProperties": {"type": "string"}})",
        R"({"properties": {"a": {}}, "required": ["b"]})",
        R"({"properties": {"a": {}}, "allOf": [{"properties": {"b": {}}}]})",
        R"({"properties": {"a": {}}, "patternProperties": {"^x": {}}})"})
    EXPECT_EQ(schema_of(same), AsObject(same)) << same;
}

TEST(ForcedCallsTagTest, ArgumentsAreAnObject) {
  const std::vector<ToolSpec> any = {{"f", Json::object(), true}};
  const ForcedChoice required = {.kind = Kind::kRequired};
  const auto tag = ForcedCallsTag(*FindToolFormat("hermes"), any, required);
  EXPECT_EQ((*tag)["format"]["tags"][0]["content"]["json_schema"], Json::parse(R"({"type": "object"})"));
  const std::vector<ToolSpec> optional = {{"f", Json::parse(R"({"type": ["object", "null"]})"), true}};
  const auto other = ForcedCallsTag(*FindToolFormat("hermes"), optional, required);
  EXPECT_EQ((*other)["format"]["tags"][0]["content"]["json_schema"], Json::parse(R"({"type": "object"})"));
}

TEST(ForcedCallsTagTest, NamedIsOneCallOfOneTool) {
  const auto tag = ForcedCallsTag(*FindToolFormat("mistral"), Tools(), {.kind = Kind::kNamed, .name = "g"});
  ASSERT_TRUE(tag.ok()) << tag.status();
  const Json& format = (*tag)["format"];
  EXPECT_EQ(format["type"], "sequence");
  EXPECT_EQ(format["elements"][0]["value"], "[TOOL_CALLS][");
  EXPECT_EQ(format["elements"][1]["tags"].size(), 1u);
  EXPECT_EQ(format["elements"][1]["stop_after_first"], true);
  EXPECT_EQ(format["elements"][2]["value"], "]");
}

TEST(ForcedCallsTagTest, AutoLeavesTextFreeAndHoldsStrictToolsToTheirSchema) {
  const auto tag = ForcedCallsTag(*FindToolFormat("qwen3_coder"), Tools(true),
                                  {.kind = Kind::kAuto, .is_parallel = false});
  ASSERT_TRUE(tag.ok()) << tag.status();
  const Json& format = (*tag)["format"];
  EXPECT_EQ(format["type"], "triggered_tags");
  EXPECT_EQ(format["triggers"], Json::array({"<tool_call>"}));
  EXPECT_EQ(format["stop_after_first"], true);
  EXPECT_EQ(format["at_least_one"], false);
  EXPECT_EQ(format["tags"][0]["content"]["style"], "qwen_xml");
  EXPECT_EQ(format["tags"][0]["content"]["json_schema"]["properties"]["a"]["type"], "integer");
  EXPECT_EQ(format["tags"][1]["content"]["json_schema"], Json::parse(R"({"type": "object"})"));
}

TEST(ForcedCallsTagTest, Refuses) {
  const auto code = [](const char* format, const std::vector<ToolSpec>& tools, const ForcedChoice& choice) {
    return ForcedCallsTag(*FindToolFormat(format), tools, choice).status().code();
  };
  EXPECT_EQ(code("pythonic", Tools(), {.kind = Kind::kRequired}), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(code("hermes", Tools(), {.kind = Kind::kNamed, .name = "h"}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code("hermes", {}, {.kind = Kind::kRequired}), absl::StatusCode::kInvalidArgument);
}

// A text that the tag allows: the first tag of the list, twice where the list may hold two.
std::string TextOf(const Json& format, const std::string& arguments) {
  const std::string type = format["type"];
  if (type == "const_string") return format["value"];
  if (type == "regex") return "0";
  if (type == "json_schema") return arguments;
  if (type == "tag")
    return format["begin"].get<std::string>() + TextOf(format["content"], arguments) +
           format["end"].get<std::string>();
  std::string text;
  if (type == "sequence") {
    for (const Json& element : format["elements"]) text += TextOf(element, arguments);
    return text;
  }
  text = TextOf(format["tags"][0], arguments);
  if (format["stop_after_first"] || type != "tags_with_separator") return text;
  return text + format["separator"].get<std::string>() + TextOf(format["tags"][0], arguments);
}

// The texts of xgrammar's styles for {"a": 1}.
std::string ArgumentsOf(absl::string_view style) {
  if (style == "qwen_xml") return "<parameter=a>1</parameter>";
  if (style == "minimax_xml") return "<parameter name=\"a\">1</parameter>";
  if (style == "deepseek_xml") return "<｜DSML｜parameter name=\"a\" string=\"false\">1</｜DSML｜parameter>";
  if (style == "glm_xml") return "<arg_key>a</arg_key><arg_value>1</arg_value>";
  return style == "gemma" ? "{a:1}" : "{\"a\": 1}";
}

// The parser reads every text that the grammar lets the model write, for every format and choice.
TEST(ForcedCallsTagTest, TheParserReadsWhatTheTagAllows) {
  std::vector<const ToolFormat*> formats = {&ForcedJsonFormat()};
  for (const ToolFormat& format : ToolFormats()) formats.push_back(&format);
  const ToolSchemas schemas(Tools());
  for (const ToolFormat* format : formats) {
    if (format->forced.begin.empty()) continue;
    for (const ForcedChoice& choice :
         {ForcedChoice{.kind = Kind::kAuto}, ForcedChoice{.kind = Kind::kRequired},
          ForcedChoice{.kind = Kind::kNamed, .name = "f"}}) {
      const auto tag = ForcedCallsTag(*format, Tools(), choice);
      ASSERT_TRUE(tag.ok()) << tag.status();
      const std::string text = TextOf((*tag)["format"], ArgumentsOf(format->forced.style));
      const ParsedTurn turn = ParseTurn({.tools = format}, &schemas, text, TurnEnd::kStop);
      SCOPED_TRACE(absl::StrCat(format->name, ": ", text));
      EXPECT_EQ(turn.content, "");
      ASSERT_GE(turn.calls.size(), choice.kind == Kind::kRequired ? 2u : 1u);
      for (const ParsedTurn::Call& call : turn.calls) {
        EXPECT_EQ(call.name, "f");
        EXPECT_EQ(call.arguments, "{\"a\": 1}");
      }
    }
  }
}

// Each of many parameters has a schema that names itself in a long list at each depth. One bound holds for
// all parameters: types behind the bound stay unknown.
TEST(ToolSchemasTest, ReferencesThatMeetAgainAndAgainAreGivenUp) {
  using Json = nlohmann::ordered_json;
  const Json itself = {{"$ref", "#/$defs/a"}}, number = {{"type", "number"}};
  Json parameters = {{"properties", {{"first", number}}},
                     {"$defs", {{"a", {{"anyOf", Json(2000, itself)}}}}}};
  for (int i = 0; i < 300; ++i) parameters["properties"][absl::StrCat("p", i)] = itself;
  parameters["properties"]["last"] = number;
  const ToolSchemas schemas(
      {{.name = "f", .parameters = parameters}, {.name = "g", .parameters = parameters}},
      /*keeps_schemas=*/true);
  EXPECT_EQ(schemas.TypesOf("f", "first"), kNumberType);
  EXPECT_EQ(schemas.TypesOf("f", "last"), 0u);
  EXPECT_EQ(schemas.TypesOf("g", "first"), 0u);
  EXPECT_EQ(schemas.TypesAt("f", {"p0", "q"}), 0u);
  EXPECT_EQ(schemas.TypesAt("f", {"first"}), kNumberType);
}

TEST(ToolSchemasTest, ReferencesNameSchemasByEscapedKeys) {
  const ToolSchemas schemas({{.name = "f",
                              .parameters = {{"properties",
                                              {{"p", {{"$ref", "#/$defs/a~1b~0c"}}},
                                               {"q", {{"$ref", "#/$defs/none"}}},
                                               {"r", {{"$ref", "https://example.com/#/$defs"}}}}},
                                             {"$defs", {{"a/b~c", {{"type", "integer"}}}}}}}});
  EXPECT_EQ(schemas.TypesOf("f", "p"), kNumberType);
  EXPECT_EQ(schemas.TypesOf("f", "q"), 0u);
  EXPECT_EQ(schemas.TypesOf("f", "r"), 0u);
}

}  // namespace
}  // namespace somnus
