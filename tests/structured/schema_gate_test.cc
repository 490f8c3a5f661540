// The schemas that the gate serves, rewrites and refuses, keyword by keyword.

#include "coordinator/structured/schema_gate.h"

#include <string>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/structured/schema_brackets.h"
#include "coordinator/structured/schema_named_members.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace somnus {
namespace {

using Json = nlohmann::ordered_json;

std::string Outcome(const std::string& schema, const GateOptions& options = {}) {
  const SchemaOrRefusal gated = GateSchemaText(schema, options);
  if (const auto* refusal = std::get_if<SchemaRefusal>(&gated)) return "refused at " + refusal->pointer;
  return std::get<Json>(gated).dump();
}

struct Row {
  const char* schema;
  const char* outcome;  // the schema that is written, or "refused at POINTER"
};

class GateTable : public testing::TestWithParam<Row> {};

TEST_P(GateTable, HasOutcome) { EXPECT_EQ(Outcome(GetParam().schema), GetParam().outcome); }

constexpr char kClosed[] =
    R"({"type":"object","properties":{"a":{"type":"integer"}},"additionalProperties":false})";

INSTANTIATE_TEST_SUITE_P(
    Types, GateTable,
    testing::Values(Row{"{}", "{}"}, Row{"true", "{}"}, Row{"false", "refused at "},
                    Row{R"({"title":"x","x-note":1})", "{}"},
                    Row{R"({"type":"integer"})", R"({"type":"integer"})"},
                    Row{R"({"type":["integer","null"]})", R"({"type":["integer","null"]})"},
                    Row{R"({"type":["integer","number"]})", R"({"type":"number"})"},
                    Row{R"({"anyOf":[{"type":"string"},{"type":"null"}]})",
                        R"({"anyOf":[{"type":"string"},{"type":"null"}]})"},
                    Row{R"({"type":"text"})", "refused at /type"}, Row{R"({"type":[]})", "refused at /type"},
                    Row{R"({"not":{"type":["object","array","string","null","boolean"]}})",
                        R"({"type":"number"})"},
                    Row{R"({"not":{"type":"integer"},"type":"number"})", "refused at /not"},
                    Row{R"({"not":{"not":{"type":"null"}}})", R"({"type":"null"})"},
                    Row{R"({"allOf":[{"type":"string"},{"type":"integer"}]})", "refused at "}));

INSTANTIATE_TEST_SUITE_P(
    Values, GateTable,
    testing::Values(
        Row{R"({"const":5})", R"({"const":5})"}, Row{R"({"const":5.0})", R"({"const":5})"},
        Row{R"({"enum":[1,1.0,2]})", R"({"enum":[1,2]})"},
        Row{R"({"enum":[1,"a",null],"type":"string"})", R"({"const":"a"})"},
        Row{R"({"enum":[1,7,12],"minimum":5,"not":{"const":12}})", R"({"const":7})"},
        Row{R"({"enum":[[1,1],[1,2]],"uniqueItems":true})",
            R"({"type":"array","minItems":2,"prefixItems":[{"const":1},{"const":2}],"items":false})"},
        Row{R"({"const":{"b":1}})",
            R"({"type":"object","properties":{"b":{"const":1}},"required":["b"],"additionalProperties":false})"},
        Row{R"({"const":12345678901234567890})", "refused at "}, Row{R"({"enum":[]})", "refused at /enum"},
        Row{R"({"type":"boolean","not":{"const":true}})", R"({"const":false})"},
        Row{R"({"type":"array","not":{"const":[]}})", R"({"type":"array","items":{},"minItems":1})"},
        Row{R"({"type":["object","null"],"not":{"enum":["",{},[],null]}})",
            R"({"type":"object","additionalProperties":{},"minProperties":1})"},
        Row{R"({"type":"array","maxItems":0,"not":{"const":[]}})", "refused at "},
        Row{R"({"type":"array","not":{"const":[1]}})", "refused at /not"},
        Row{R"({"type":"array","allOf":[{"not":{"const":[1]}},{"not":{"const":[1]}}]})",
            "refused at /allOf/0/not"},
        Row{R"({"type":"object","not":{"enum":[5,{"a":1}]}})", "refused at /not"},
        Row{R"({"type":"array","items":{"type":"string"},"not":{"const":[1]}})",
            R"({"type":"array","items":{"type":"string"}})"},
        Row{R"({"if":{"properties":{"a":{"const":{"b":1}}},"required":["a"]},"else":{"required":["c"]}})",
            "refused at /if"}));

INSTANTIATE_TEST_SUITE_P(
    Numbers, GateTable,
    testing::Values(
        Row{R"({"type":"integer","minimum":1.5,"exclusiveMaximum":4})",
            R"({"type":"integer","minimum":2,"maximum":3})"},
        Row{R"({"type":"integer","minimum":3,"exclusiveMinimum":true})", R"({"type":"integer","minimum":4})"},
        Row{R"({"type":"number","minimum":0,"allOf":[{"exclusiveMinimum":0}]})",
            R"({"type":"number","exclusiveMinimum":0})"},
        Row{R"({"type":"number","minimum":2,"maximum":2})", R"({"const":2})"},
        Row{R"({"type":"number","minimum":3,"maximum":2})", "refused at "},
        Row{R"({"type":"number","maximum":1e300})", "refused at /maximum"},
        Row{R"({"type":"number","multipleOf":1.0})", R"({"type":"integer"})"},
        Row{R"({"type":"integer","multipleOf":0.01})", R"({"type":"integer"})"},
        Row{R"({"type":"number","multipleOf":0.01})", "refused at /multipleOf"},
        Row{R"({"type":"integer","allOf":[{"multipleOf":4},{"multipleOf":6}]})",
            R"({"type":"integer","multipleOf":12})"},
        Row{R"({"type":"integer","multipleOf":5,"minimum":0})", "refused at /multipleOf"},
        Row{R"({"type":"integer","multipleOf":5,"minimum":0,"maximum":100})",
            R"({"type":"integer","minimum":0,"maximum":100,"multipleOf":5})"},
        Row{R"({"type":"number","not":{"minimum":5}})", R"({"type":"number","exclusiveMaximum":5})"},
        Row{R"({"type":"integer","not":{"const":5}})", "refused at /not"},
        Row{R"({"type":"number","not":{"type":"integer"},"multipleOf":2})", "refused at "}));

INSTANTIATE_TEST_SUITE_P(
    Strings, GateTable,
    testing::Values(Row{R"({"type":"string","pattern":"^[ab]{2}$"})",
                        "{\"type\":\"string\",\"pattern\":\"^[ab]{2}(?:é){0}$\"}"},
                    Row{R"({"type":"string","pattern":"^[ab]+$","minLength":2,"maxLength":5})",
                        "{\"type\":\"string\",\"pattern\":\"^[ab]{2,5}(?:é){0}$\"}"},
                    Row{R"({"type":"string","pattern":"^a$|^b$"})",
                        "{\"type\":\"string\",\"pattern\":\"^[ab](?:é){0}$\"}"},
                    Row{R"({"type":"string","pattern":"^$"})", R"({"const":""})"},
                    Row{R"({"type":"string","minLength":0})", R"({"type":"string"})"},
                    Row{R"({"type":"string","minLength":3,"maxLength":2})", "refused at "},
                    Row{R"({"type":"string","format":"int32"})", R"({"type":"string"})"},
                    Row{R"({"type":"string","format":"idn-email"})", "refused at /format"},
                    Row{R"({"type":"string","pattern":"(?=a)b"})", "refused at /pattern"},
                    Row{R"({"type":"string","pattern":"(?<!a)b"})", "refused at /pattern"},
                    Row{R"({"type":"string","pattern":"(a)\\1"})", "refused at /pattern"},
                    Row{R"({"type":"string","pattern":"\\bword"})", "refused at /pattern"},
                    Row{R"({"type":"string","pattern":"\\p{L}"})", "refused at /pattern"},
                    Row{R"({"type":"string","pattern":"a^b"})", "refused at /pattern"},
                    Row{R"({"type":"string","pattern":"[b-a]"})", "refused at /pattern"},
                    Row{R"({"type":"string","pattern":"(a"})", "refused at /pattern"},
                    Row{R"({"contentEncoding":"base64"})", "{}"},
                    Row{R"({"$schema":"http://json-schema.org/draft-07/schema#","contentEncoding":"base64"})",
                        "refused at /contentEncoding"}));

INSTANTIATE_TEST_SUITE_P(
    Arrays, GateTable,
    testing::Values(
        Row{R"({"type":"array"})", R"({"type":"array","items":{}})"},
        Row{R"({"type":"array","items":[{"type":"null"}],"additionalItems":false})",
            R"({"type":"array","prefixItems":[{"type":"null"}],"items":false})"},
        Row{R"({"type":"array","prefixItems":[true,false,{"type":"null"}],"minItems":1})",
            R"({"type":"array","prefixItems":[{}],"items":false,"minItems":1})"},
        Row{R"({"type":"array","items":{"type":"null"},"maxItems":0})", R"({"type":"array","items":false})"},
        Row{R"({"type":"array","items":{"type":"null"},"minItems":2.0,"maxItems":3})",
            R"({"type":"array","items":{"type":"null"},"minItems":2,"maxItems":3})"},
        Row{R"({"type":"array","items":false,"minItems":1})", "refused at "},
        Row{R"({"type":"array","contains":true})", R"({"type":"array","items":{},"minItems":1})"},
        Row{R"({"type":"array","contains":{"type":"null"}})", "refused at /contains"},
        Row{R"({"type":"array","not":{"contains":{"type":"string"}},"items":{"type":["string","null"]}})",
            R"({"type":"array","items":{"type":"null"}})"},
        Row{R"({"contains":{"type":"null"},"minContains":0,"type":"array"})",
            R"({"type":"array","items":{}})"},
        Row{R"({"$schema":"http://json-schema.org/draft-07/schema#","contains":{"type":"null"},"minContains":0})",
            "refused at /minContains"},
        Row{R"({"type":"array","uniqueItems":true})", "refused at /uniqueItems"},
        Row{R"({"type":"array","uniqueItems":true,"maxItems":1})",
            R"({"type":"array","items":{},"maxItems":1})"},
        Row{R"({"type":"array","uniqueItems":false})", R"({"type":"array","items":{}})"},
        Row{R"({"type":"array","prefixItems":[{}],"unevaluatedItems":false})",
            R"({"type":"array","prefixItems":[{}],"items":false})"}));

INSTANTIATE_TEST_SUITE_P(
    Objects, GateTable,
    testing::Values(
        Row{R"({"type":"object"})", R"({"type":"object","additionalProperties":{}})"}, Row{kClosed, kClosed},
        Row{R"({"type":"object","required":["z"],"additionalProperties":false})", "refused at "},
        Row{R"({"type":"object","properties":{"a":{"type":"integer"},"b":false},"additionalProperties":false})",
            kClosed},
        Row{R"({"type":"object","properties":{"a":true},"propertyNames":{"enum":["a"]},"additionalProperties":true})",
            R"({"type":"object","properties":{"a":{}},"additionalProperties":false})"},
        Row{R"({"type":"object","minProperties":2})", "refused at /minProperties"},
        Row{R"({"type":"object","minProperties":1})",
            R"({"type":"object","additionalProperties":{},"minProperties":1})"},
        Row{R"({"type":"object","maxProperties":2})",
            R"({"type":"object","additionalProperties":{},"maxProperties":2})"},
        Row{R"({"type":"object","properties":{"a":{"type":"integer"}},"unevaluatedProperties":false})",
            kClosed},
        Row{R"({"allOf":[{"properties":{"a":{"type":"integer"}}}],"unevaluatedProperties":false,"type":"object"})",
            kClosed},
        Row{R"({"anyOf":[{"properties":{"a":{}}}],"unevaluatedProperties":false})",
            "refused at /unevaluatedProperties"},
        Row{R"({"type":"object","required":"a"})", "refused at /required"},
        Row{R"({"type":"object","properties":{"a":{"minLength":-1}}})", "refused at /properties/a/minLength"},
        Row{R"({"type":"object","properties":{"a/b~":{"uniqueItems":true}}})",
            "refused at /properties/a~1b~0/uniqueItems"}));

INSTANTIATE_TEST_SUITE_P(
    Combinations, GateTable,
    testing::Values(
        Row{R"({"oneOf":[{"type":"string"},{"type":"integer"}]})",
            R"({"anyOf":[{"type":"string"},{"type":"integer"}]})"},
        Row{R"({"oneOf":[{"type":"integer","minimum":2},{"type":"integer","maximum":5}]})",
            R"({"anyOf":[{"type":"integer","minimum":6},{"type":"integer","maximum":1}]})"},
        Row{R"({"oneOf":[{"type":"array","items":{"type":"null"}},{"type":"array"}]})", "refused at /oneOf"},
        Row{R"({"type":"object","properties":{"k":{"enum":["x","y"]},"v":{"type":["string","null"]}},"required":["k"],
               "additionalProperties":false,"if":{"properties":{"k":{"const":"x"}}},
               "then":{"required":["v"]},"else":{"properties":{"v":false}}})",
            R"({"anyOf":[{"type":"object","properties":{"k":{"const":"x"},"v":{"type":["string","null"]}},)"
            R"("required":["k","v"],"additionalProperties":false},)"
            R"({"type":"object","properties":{"k":{"const":"y"}},"required":["k"],"additionalProperties":false}]})"},
        Row{R"({"type":"object","properties":{"a":{"const":1},"b":{"const":2}},"additionalProperties":false,
               "dependentRequired":{"a":["b"]}})",
            R"({"anyOf":[{"type":"object","properties":{"a":{"const":1},"b":{"const":2}},"required":["a","b"],)"
            R"("additionalProperties":false},)"
            R"({"type":"object","properties":{"b":{"const":2}},"additionalProperties":false}]})"},
        Row{R"({"$dynamicRef":"#x"})", "refused at /$dynamicRef"},
        Row{R"({"extends":{}})", "refused at /extends"}));

INSTANTIATE_TEST_SUITE_P(
    References, GateTable,
    testing::Values(
        Row{R"({"$defs":{"x":{"type":"null"}},"$ref":"#/$defs/x"})", R"({"type":"null"})"},
        Row{R"({"definitions":{"a/b":{"type":"null"}},"items":{"$ref":"#/definitions/a~1b"},"type":"array"})",
            R"({"type":"array","items":{"type":"null"}})"},
        Row{R"({"$defs":{"x":{"$id":"http://e.org/x","type":"null"}},"$ref":"http://e.org/x"})",
            R"({"type":"null"})"},
        Row{R"({"$defs":{"x":{"$anchor":"n","type":"null"}},"$ref":"#n"})", R"({"type":"null"})"},
        Row{R"({"$ref":"http://json-schema.org/draft-07/schema#"})", "refused at /$ref"},
        Row{R"({"$ref":"#"})", "refused at "},
        Row{R"({"anyOf":[{"$ref":"#"},{"type":"null"}]})", "refused at "},
        Row{R"({"type":"object","properties":{"n":{"$ref":"#"}},"additionalProperties":false})",
            R"({"$ref":"#/$defs/d0","$defs":{"d0":{"type":"object","properties":{"n":{"$ref":"#/$defs/d0"}},)"
            R"("additionalProperties":false}}})"},
        Row{R"({"type":"object","properties":{"n":{"$ref":"#"}},"required":["n"],"additionalProperties":false})",
            "refused at "},
        // Up to draft 7, keywords beside $ref are ignored.
        Row{R"({"$schema":"http://json-schema.org/draft-07/schema#","definitions":{"x":{"type":["null","string"]}},
               "items":{"$ref":"#/definitions/x","type":"null"},"type":"array"})",
            R"({"type":"array","items":{"type":["string","null"]}})"},
        Row{R"({"$defs":{"x":{"type":["null","string"]}},"items":{"$ref":"#/$defs/x","type":"null"},"type":"array"})",
            R"({"type":"array","items":{"type":"null"}})"},
        Row{R"({"$schema":"http://json-schema.org/draft-03/schema#"})", "refused at /$schema"}));

TEST(GateTest, NamesNoMemberTwice) {
  const std::string outcome =
      Outcome(R"({"type":"object","properties":{"b":{}},"additionalProperties":{"type":"null"}})");
  const Json schema = Json::parse(outcome);
  // An escaped spelling of "b" must not pass as a further property, so further names are a pattern.
  EXPECT_EQ(schema["additionalProperties"], false);
  EXPECT_EQ(schema["patternProperties"].size(), 1);
  EXPECT_EQ(schema["properties"].begin().key(), "b");
}

TEST(GateTest, SaysWhatToDo) {
  const SchemaOrRefusal gated = GateSchemaText(R"({"properties":{"a":{"format":"iri"}}})", {});
  const auto& refusal = std::get<SchemaRefusal>(gated);
  EXPECT_EQ(refusal.pointer, "/properties/a/format");
  EXPECT_EQ(refusal.keyword, "format");
  EXPECT_NE(refusal.message.find("use \"pattern\""), std::string::npos);
}

TEST(GateTest, BoundsText) {
  EXPECT_EQ(Outcome(R"({"type":"integer"})", GateOptions{.max_bytes = 10}), "refused at ");
  EXPECT_EQ(Outcome("{\"type\":"), "refused at ");
}

TEST(GateTest, BoundsDepth) {
  std::string open;
  std::string close;
  for (int i = 0; i < 60'000; ++i) {
    open += R"({"items":)";
    close += "}";
  }
  EXPECT_EQ(Outcome(open + "true" + close), "refused at ");
  EXPECT_EQ(Outcome(R"({"type":"string","pattern":")" + std::string(60'000, '(') + R"("})"),
            "refused at /pattern");
  EXPECT_EQ(Outcome(R"({"type":"string","pattern":")" + std::string(2'000, '(') + std::string(2'000, ')') +
                    R"("})"),
            "refused at /pattern");
}

TEST(GateTest, BoundsKeys) {
  Json schema = {{"type", "object"}};
  Json::object_t properties;
  for (int i = 0; i < 100'000; ++i) properties.emplace_back("k" + std::to_string(i), Json::object());
  schema["properties"] = properties;
  EXPECT_EQ(Outcome(schema.dump()), "refused at ");
  EXPECT_EQ(Outcome(R"({"properties":{")" + std::string(5'000, 'k') + R"(":{}}})"), "refused at /properties");
}

TEST(GateTest, BoundsCombinations) {
  // 3^12 combinations of alternatives, and 2^40 of definitions that refer to each other twice.
  std::string all;
  for (int i = 0; i < 12; ++i) {
    const std::string n = std::to_string(i);
    all += std::string(i == 0 ? "" : ",") + R"({"anyOf":[{"required":["a)" + n + R"("]},{"required":["b)" +
           n + R"("]},{"required":["c)" + n + R"("]}]})";
  }
  EXPECT_EQ(Outcome(R"({"type":"object","allOf":[)" + all + "]}"), "refused at ");
  Json defs;
  for (int i = 0; i < 40; ++i) {
    const Json next = {{"$ref", "#/$defs/d" + std::to_string(i + 1)}};
    defs["d" + std::to_string(i)] = {
        {"type", "object"}, {"properties", {{"a", next}, {"b", next}}}, {"additionalProperties", false}};
  }
  defs["d40"] = {{"type", "null"}};
  const Json schema = {{"$defs", defs}, {"$ref", "#/$defs/d0"}};
  const Json written = Json::parse(Outcome(schema.dump()));
  EXPECT_EQ(written["$defs"].size(), 39);
}

TEST(GateTest, BoundsSteps) { EXPECT_EQ(Outcome(kClosed, GateOptions{.max_steps = 3}), "refused at "); }

TEST(GateTest, BoundsPatterns) {
  EXPECT_EQ(Outcome(R"({"type":"string","pattern":"^(a|bc)*a(a|bc){300}$","minLength":1,"maxLength":1000})"),
            "refused at /pattern");
  EXPECT_EQ(Outcome(R"({"type":"string","pattern":"a{1000000}"})"), "refused at /pattern");
}

TEST(GateTest, NamesWhatIsNestedTooDeeplyOnceItIsWritten) {
  std::string groups = "a";
  for (int i = 0; i < 30; ++i) groups = absl::StrCat("(?:", groups, "x|y)*z");
  const std::string schema = absl::StrCat(
      R"({"properties":{"a":{"type":"integer"},"b":{"type":"string","pattern":"^)", groups, "$\"}}}");
  EXPECT_EQ(Outcome(schema, GateOptions{.max_output_depth = 20}), "refused at /properties/b/pattern");
  EXPECT_LE(BracketDepth(Outcome(schema, GateOptions{.max_output_depth = 40}), /*json=*/true), 40);
  std::string list = "1";
  for (int i = 0; i < 15; ++i) list = absl::StrCat("[", list, "]");
  EXPECT_EQ(Outcome(absl::StrCat(R"({"properties":{"c":{"const":)", list, "}}}"),
                    GateOptions{.max_output_depth = 20}),
            "refused at /properties/c/const");
  EXPECT_EQ(Outcome(absl::StrCat(R"({"type":["object","string"],"pattern":"a","patternProperties":{"^)",
                                 groups, R"($":{"type":"integer"}}})"),
                    GateOptions{.max_output_depth = 20}),
            "refused at /patternProperties");
}

TEST(GateTest, TakesAsManyBracketsAsTheEngineAndCountsThoseOfAStructuralTag) {
  std::string list = "1";
  for (int i = 0; i < 15; ++i) list = absl::StrCat("[", list, "]");
  const std::string schema = absl::StrCat(R"({"const":)", list, "}");
  const int64_t depth = BracketDepth(Outcome(schema), /*json=*/true);
  EXPECT_EQ(Outcome(schema, GateOptions{.max_output_depth = depth}), Outcome(schema));
  EXPECT_EQ(Outcome(schema, GateOptions{.max_output_depth = depth - 1}), "refused at /const");
  const Json tag = {{"type", "structural_tag"},
                    {"format", {{"type", "json_schema"}, {"json_schema", Json::parse(schema)}}}};
  const SchemaOrRefusal fits = GateStructuralTag(tag, GateOptions{.max_output_depth = depth + 2});
  ASSERT_TRUE(std::holds_alternative<Json>(fits)) << std::get<SchemaRefusal>(fits).message;
  EXPECT_EQ(BracketDepth(std::get<Json>(fits).dump(), /*json=*/true), depth + 2);
  const SchemaOrRefusal deep = GateStructuralTag(tag, GateOptions{.max_output_depth = depth + 1});
  ASSERT_TRUE(std::holds_alternative<SchemaRefusal>(deep));
  EXPECT_EQ(std::get<SchemaRefusal>(deep).pointer, "/format/json_schema/const");
}

// Automata of a hundred states, and the complements of long names.
TEST(GateTest, WritesLittleNesting) {
  const std::string name(300, 'n');
  for (const std::string& schema :
       {std::string(R"({"type":"string","pattern":"^[a-z]+-[a-z]+$","maxLength":100})"),
        std::string(R"({"type":"string","pattern":"^[A-Z][a-z]*( [A-Z][a-z]*)*$","maxLength":60})"),
        absl::StrCat(R"({"properties":{")", name, R"(":{"type":"integer"},")", name.substr(100),
                     R"(x":true}})")}) {
    const std::string written = Outcome(schema);
    EXPECT_EQ(written.find("refused"), std::string::npos) << written;
    EXPECT_LE(BracketDepth(written, /*json=*/true), 80) << schema;
  }
}

TEST(GateTest, NoCountOfAPatternIsAboveWhatItsPartTakes) {
  const auto counts = [](const std::string& pattern) {
    const std::string written = std::get<std::string>(GateRegex(pattern, {}));
    return written.substr(0, written.find("(?:\u00e9)"));
  };
  EXPECT_EQ(counts("a{3,65536}"), "^(?:a{3,65536})");
  EXPECT_EQ(counts("(a|bc){0,1100}"), "^(?:(?:a|bc){0,1100})");
  EXPECT_EQ(counts("a{1025,}"), "^(?:a{1025,})");
  EXPECT_EQ(counts("a{70000}"), "^(?:(?:(?:a{48}){48}){30}(?:a{48}){18}a{16})");
  EXPECT_EQ(counts("(a(b|c)d){0,128}"), "^(?:(?:a[bc]d){0,128})");
  EXPECT_EQ(counts("(a(b|cd)e){0,130}"), "^(?:(?:(?:a(?:b|cd)e){48})?(?:a(?:b|cd)e){0,82})");
}

TEST(GateTest, NamedMembersAreTheOnlyOnes) {
  const auto closed = [](const char* schema) { return WithNamedMembersOnly(Json::parse(schema)).dump(); };
  EXPECT_EQ(closed(R"({"properties":{"a":{"properties":{"b":{}}}}})"),
            R"({"properties":{"a":{"properties":{"b":{}},"additionalProperties":false}},)"
            R"("additionalProperties":false})");
  EXPECT_EQ(closed(R"({"$defs":{"properties":{"patternProperties":{"x":true}}}})"),
            R"({"$defs":{"properties":{"patternProperties":{"x":true},"additionalProperties":false}}})");
  EXPECT_EQ(closed(R"({"anyOf":[{"prefixItems":[{"properties":{}}]}]})"),
            R"({"anyOf":[{"prefixItems":[{"properties":{},"additionalProperties":false}],"items":false}]})");
  for (const char* same :
       {R"({"type":"object"})", R"({"properties":{},"additionalProperties":{"type":"null"}})",
        R"({"enum":[{"properties":1}],"const":{"properties":{}}})", "true"})
    EXPECT_EQ(closed(same), same);
}

TEST(GateTest, RegexMatchesTheWholeText) {
  EXPECT_EQ(std::get<std::string>(GateRegex("a|b+", {})), "^(?:a|b+)(?:\u00e9){0}$");
  EXPECT_EQ(std::get<std::string>(GateRegex("^$", {})), "^$");
  EXPECT_TRUE(std::holds_alternative<SchemaRefusal>(GateRegex("(?!a)b", {})));
  EXPECT_TRUE(std::holds_alternative<SchemaRefusal>(GateRegex("[]", {})));
}

TEST(GateTest, StructuralTagsAreGatedWithin) {
  Json tag =
      Json::parse(R"({"type":"structural_tag","format":{"type":"triggered_tags","triggers":["<f"],"tags":[
      {"begin":"<f>","content":{"type":"json_schema","json_schema":{"oneOf":[{"type":"null"},{"type":"string"}]}},
       "end":"</f>"}]}})");
  const SchemaOrRefusal gated = GateStructuralTag(tag, {});
  EXPECT_EQ(std::get<Json>(gated)["format"]["tags"][0]["content"]["json_schema"].dump(),
            R"({"anyOf":[{"type":"null"},{"type":"string"}]})");
  tag["format"]["tags"][0]["content"]["json_schema"] = {{"uniqueItems", true}};
  EXPECT_EQ(std::get<SchemaRefusal>(GateStructuralTag(tag, {})).pointer,
            "/format/tags/0/content/json_schema/uniqueItems");
}

Json TagOf(int count, const Json& schema) {
  Json tags = Json::array();
  for (int i = 0; i < count; ++i) {
    tags.push_back({{"begin", absl::StrCat("<f", i, ">")},
                    {"content", {{"type", "json_schema"}, {"json_schema", schema}}},
                    {"end", "</f>"}});
  }
  return {
      {"type", "structural_tag"},
      {"format", {{"type", "triggered_tags"}, {"triggers", Json::array({"<f"})}, {"tags", std::move(tags)}}}};
}

// The message with which a structural tag is refused; empty for a tag that is accepted.
std::string Refusal(const Json& tag, const GateOptions& options) {
  const SchemaOrRefusal gated = GateStructuralTag(tag, options);
  const auto* refusal = std::get_if<SchemaRefusal>(&gated);
  return refusal == nullptr ? "" : absl::StrCat(refusal->pointer, ": ", refusal->message);
}

TEST(GateTest, ValuesOfAStructuralTagCountAsAWhole) {
  // Six values around the tags and one trigger, and seven for each tag.
  const Json tag = TagOf(10, {{"type", "null"}});
  EXPECT_EQ(Refusal(tag, GateOptions{.max_values = 77}), "");
  // Even where a schema is wrong: nothing is gated before the values are counted.
  EXPECT_EQ(Refusal(TagOf(10, {{"type", "nope"}}), GateOptions{.max_values = 76}),
            ": the structural tag has more than 76 values");
}

TEST(GateTest, WorkAndOutputOfAStructuralTagAreBoundedAsAWhole) {
  const Json schema = {{"type", "object"}, {"properties", {{"a", {{"type", "string"}, {"format", "date"}}}}}};
  const auto output = static_cast<int64_t>(std::get<Json>(GateSchema(schema, {})).dump().size());
  EXPECT_EQ(Refusal(TagOf(3, schema), GateOptions{.max_output_bytes = 3 * output}), "");
  EXPECT_NE(Refusal(TagOf(4, schema), GateOptions{.max_output_bytes = 3 * output}), "");
  int64_t steps = 1;
  while (!Refusal(TagOf(1, schema), GateOptions{.max_steps = steps}).empty()) steps *= 2;
  EXPECT_NE(Refusal(TagOf(10, schema), GateOptions{.max_steps = steps}), "");
  const Json pattern = {{"type", "structural_tag"},
                        {"format",
                         {{"type", "sequence"},
                          {"elements", Json::array({{{"type", "regex"}, {"pattern", "[a-f]{1,300}"}},
                                                    {{"type", "regex"}, {"pattern", "[a-f]{1,300}"}}})}}}};
  const auto bytes = static_cast<int64_t>(std::get<std::string>(GateRegex("[a-f]{1,300}", {})).size());
  EXPECT_EQ(Refusal(pattern, GateOptions{.max_output_bytes = 2 * bytes}), "");
  EXPECT_THAT(Refusal(pattern, GateOptions{.max_output_bytes = 2 * bytes - 1}),
              testing::StartsWith("/format/elements/1"));
}

}  // namespace
}  // namespace somnus
