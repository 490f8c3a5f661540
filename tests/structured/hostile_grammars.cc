#include "tests/structured/hostile_grammars.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace somnus {
namespace {

std::string Times(int count, const std::string& text) {
  std::string all;
  for (int i = 0; i < count; ++i) all += text;
  return all;
}

// {"type": "object", "properties": {"k0": VALUE, ...}} within the default limit of bytes, or beyond.
std::string Keys(int count, const std::string& value) {
  std::string schema = R"({"type":"object","properties":{)";
  for (int i = 0; i < count; ++i) absl::StrAppend(&schema, i == 0 ? "" : ",", "\"k", i, "\":", value);
  return schema + "}}";
}

// Definitions that each refer to the next.
std::string Chain(int count) {
  std::string schema = R"({"$ref":"#/$defs/d0","$defs":{)";
  for (int i = 0; i < count; ++i)
    absl::StrAppend(&schema, "\"d", i, R"(":{"$ref":"#/$defs/d)", i + 1, "\"},");
  return absl::StrCat(schema, "\"d", count, R"(":{"type":"null"}}})");
}

// Each level refers to the next level twice: 2^count objects if somebody writes all out.
std::string Doubling(int count) {
  std::string schema = R"({"$ref":"#/$defs/d0","$defs":{)";
  for (int i = 0; i < count; ++i) {
    const std::string next = absl::StrCat(R"({"$ref":"#/$defs/d)", i + 1, "\"}");
    absl::StrAppend(&schema, "\"d", i, R"(":{"allOf":[)", next, ",", next, "]},");
  }
  return absl::StrCat(schema, "\"d", count, R"(":{"type":"object"}}})");
}

std::string Enum(int count) {
  std::string schema = R"({"enum":[)";
  for (int i = 0; i < count; ++i) absl::StrAppend(&schema, i == 0 ? "" : ",", "\"value number ", i, "\"");
  return schema + "]}";
}

std::string Rules(int count) {
  std::string grammar = "root ::= r0\n";
  for (int i = 0; i < count; ++i) absl::StrAppend(&grammar, "r", i, " ::= r", i + 1, "\n");
  return absl::StrCat(grammar, "r", count, " ::= \"a\"\n");
}

// All parts may be empty, and each refers to all other parts.
std::string Tangle(int count) {
  std::string grammar = "root ::= r0\n";
  for (int i = 0; i < count; ++i) {
    absl::StrAppend(&grammar, "r", i, " ::= \"a\"?");
    for (int j = 0; j < count; ++j) absl::StrAppend(&grammar, " r", j, "?");
    grammar += "\n";
  }
  return grammar;
}

}  // namespace

std::vector<HostileGrammar> HostileGrammars() {
  std::vector<HostileGrammar> all;
  const auto add = [&all](const std::string& name, GrammarKind kind, std::string text,
                          std::string written = "") {
    all.push_back(
        {name, {.kind = kind, .text = std::move(text), .choices = {}, .layout = {}}, std::move(written)});
  };
  const auto regex = GrammarKind::kRegex;
  const auto schema = GrammarKind::kJsonSchema;
  const auto ebnf = GrammarKind::kEbnf;
  add("60000 groups", regex, Times(60000, "(") + "a" + Times(60000, ")"));
  add("100 groups", regex, Times(100, "(") + "a" + Times(100, ")"), "a");
  add("100 starred groups", regex, Times(100, "(") + "a" + Times(100, ")*"), Times(200, "a"));
  add("60000 groups in a schema", schema,
      R"({"type":"string","pattern":")" + Times(60000, "(") + "a" + Times(60000, ")") + "\"}");
  add("60000 arrays", schema, Times(60000, R"({"items":)") + "{}" + Times(60000, "}"));
  add("60 arrays", schema, Times(60, R"({"type":"array","items":)") + "{}" + Times(60, "}"), Times(60, "["));
  add("100000 keys", schema, Keys(100000, R"({"type":"string"})"));
  add("8000 keys", schema, Keys(8000, R"({"type":"string"})"), R"({"k7": "a")");
  add("1000 keys with objects", schema, Keys(1000, Keys(3, R"({"type":"integer"})")), R"({"k7": {"k1": 1)");
  add("recursive $ref", schema, R"({"$ref":"#"})", "[[[");
  add("two $refs in a circle", schema,
      R"({"$ref":"#/$defs/a","$defs":{"a":{"$ref":"#/$defs/b"},"b":{"$ref":"#/$defs/a"}}})", "1");
  add("recursive anyOf", schema, R"({"anyOf":[{"$ref":"#"},{"type":"array","items":{"$ref":"#"}}]})",
      "[[[[]]]]");
  add("recursive allOf", schema, R"({"allOf":[{"$ref":"#"},{"$ref":"#"}]})");
  add("a chain of 5000 $refs", schema, Chain(5000), "null");
  add("2^40 objects by allOf", schema, Doubling(40), "{");
  add("enum of 10000", schema, Enum(10000), "\"value number 77");
  add("enum of 200000", schema, Enum(200000));
  add("exponential pattern", regex, Times(30, "(a|a)") + "b", Times(30, "a") + "b");
  add("exponential automaton", regex, "(a|b)*a" + Times(30, "(a|b)"), Times(60, "ab"));
  add("exponential automaton in a schema", schema, R"({"type":"string","pattern":"(a|b)*a(a|b){25}$"})",
      "\"" + Times(60, "ab"));
  add("nested stars", regex, "((a*)*)*b", Times(100, "a"));
  add("repeats to 100000", regex, "a{1,100000}", Times(300, "a"));
  add("repeats to 1000 of repeats to 1000", regex, "(a{1,1000}){1,1000}", Times(300, "a"));
  add("five nested repeats", regex, "((((a{1,50}){1,50}){1,50}){1,50}){1,50}", Times(300, "a"));
  add("repeats of a class", regex, "[\\w\\s]{0,100000}x", Times(100, "ab "));
  add("maxLength 2^31-1", schema, R"({"type":"string","maxLength":2147483647})", "\"abc");
  add("maxItems 10^6", schema, R"({"type":"array","maxItems":1000000,"items":{"type":"integer"}})", "[1, 2");
  add("minItems 10^5", schema, R"({"type":"array","minItems":100000,"items":{"type":"integer"}})", "[1, 2");
  add("minimum and maximum", schema,
      R"({"type":"integer","minimum":-999999999999999,"maximum":999999999999998})", "-12");
  add("multipleOf", schema, R"({"type":"integer","multipleOf":99991})", "99");
  add("100 patternProperties", schema,
      R"({"type":"object","patternProperties":{"^a.*b.*c.*d.*e$":{},"^.*x.*y.*z$":{}}})", R"({"a")");
  add("a chain of 5000 rules", ebnf, Rules(5000), "a");
  add("ambiguous", ebnf, "root ::= root root | \"a\" | \"\"", Times(200, "a"));
  add("very ambiguous", ebnf, "root ::= root root root root | \"a\" | \"aa\" | \"\"", Times(200, "a"));
  add("tangled rules", ebnf, Tangle(60), Times(50, "a"));
  add("left recursion", ebnf, "root ::= root \"a\" | \"a\"", Times(300, "a"));
  add("a text without an end", ebnf, "root ::= \"z\" root", "zzzz");
  add("a rule of itself", ebnf, "root ::= root");
  add("100000 strings", ebnf, "root ::= \"a\"" + Times(30000, " | \"b\""), "b");
  add("nested tags", GrammarKind::kStructuralTag,
      R"({"type":"structural_tag","format":)" + Times(60, R"({"type":"star","content":)") +
          R"({"type":"any_text"})" + Times(60, "}") + "}",
      "abc");
  return all;
}

}  // namespace somnus
