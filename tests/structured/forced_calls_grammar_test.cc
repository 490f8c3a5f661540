// Forced calls of every family whose arguments are JSON, through the gate and on the engine: the texts that
// the grammar takes and refuses.

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "coordinator/structured/schema_gate.h"
#include "tests/structured/small_vocabulary.h"
#include "text/tools/forced_calls.h"
#include "text/tools/tool_format.h"
#include "text/tools/turn_parser.h"

namespace somnus {
namespace {

using Json = nlohmann::ordered_json;
using Kind = ForcedChoice::Kind;

// How a family writes calls: a call has NAME and ARGS, and the list around and between calls may have marks.
struct Written {
  std::string call, between, before, after;
};

// Written down from the families' templates and not from the table of formats, so that the table is tested.
const std::map<std::string, Written>& Families() {
  static const auto* const families = new std::map<std::string, Written>{
      {"hermes", {"<tool_call>\n{\"name\": \"NAME\", \"arguments\": ARGS}\n</tool_call>", "\n"}},
      {"llama3_json", {"{\"name\": \"NAME\", \"parameters\": ARGS}", "; "}},
      {"granite", {"{\"name\": \"NAME\", \"arguments\": ARGS}", ", ", "<|tool_call|>[", "]"}},
      {"phi4_mini_json", {"{\"name\": \"NAME\", \"arguments\": ARGS}", ", ", "functools[", "]"}},
      {"jamba", {"{\"name\": \"NAME\", \"arguments\": ARGS}", ",\n", "<tool_calls>[\n", "\n]</tool_calls>"}},
      {"nemotron_json", {"{\"name\": \"NAME\", \"arguments\": ARGS}", ", ", "<TOOLCALL>[", "]</TOOLCALL>"}},
      {"longcat",
       {"<longcat_tool_call>\n{\"name\": \"NAME\", \"arguments\": ARGS}\n</longcat_tool_call>", "\n"}},
      {"granite-20b-fc", {"<function_call> {\"name\": \"NAME\", \"arguments\": ARGS}", " "}},
      {"internlm",
       {"<|action_start|><|plugin|>\n{\"name\": \"NAME\", \"parameters\": ARGS}<|action_end|>", "\n"}},
      {"gigachat3", {"<|function_call|>{\"name\": \"NAME\", \"arguments\": ARGS}"}},
      {"apertus", {"{\"NAME\": ARGS}", ", ", "<|tools_prefix|>[", "]<|tools_suffix|>"}},
      {"cohere_command3",
       {"    {\"tool_name\": \"NAME\", \"parameters\": ARGS}", ",\n", "<|START_ACTION|>[\n",
        "\n]<|END_ACTION|>"}},
      {"mistral", {"{\"name\": \"NAME\", \"arguments\": ARGS}", ", ", "[TOOL_CALLS][", "]"}},
      {"mistral_v11", {"[TOOL_CALLS]NAME[ARGS]ARGS"}},
      {"lfm2",
       {"{\"name\": \"NAME\", \"arguments\": ARGS}", ", ", "<|tool_call_start|>[", "]<|tool_call_end|>"}},
      {"deepseek_v3",
       {"<｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME\n```json\nARGS\n```<｜tool▁call▁end｜>", "\n",
        "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"}},
      {"deepseek_v31",
       {"<｜tool▁call▁begin｜>NAME<｜tool▁sep｜>ARGS<｜tool▁call▁end｜>", "", "<｜tool▁calls▁begin｜>",
        "<｜tool▁calls▁end｜>"}},
      {"kimi_k2",
       {"<|tool_call_begin|>functions.NAME:12<|tool_call_argument_begin|>ARGS<|tool_call_end|>", "",
        "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"}},
      {"functionary_v31", {"<function=NAME>ARGS</function>"}},
      {"openai",
       {"<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>ARGS<|call|>",
        "<|start|>assistant"}},
      {"json", {"{\"name\": \"NAME\", \"parameters\": ARGS}", ", ", "[", "]"}},
  };
  return *families;
}

std::vector<const ToolFormat*> JsonFormats() {
  std::vector<const ToolFormat*> formats = {&ForcedJsonFormat()};
  for (const ToolFormat& format : ToolFormats()) {
    if (!format.forced.begin.empty() && format.forced.style == "json") formats.push_back(&format);
  }
  return formats;
}

std::vector<ToolSpec> Tools() {
  return {{"f", Json::parse(R"({"type": "object", "required": ["a"],
                                "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", "y"]}}})"),
           /*strict=*/true},
          {"g", nullptr, /*strict=*/true}};
}

constexpr char kArguments[] = R"({"a": 1, "b": "x"})";

// The calls of one family, and the grammar of one choice.
class Calls {
 public:
  Calls(const ToolFormat& format, const Written& written) : format_(format), written_(written) {}

  std::string Call(const std::string& name, const std::string& arguments) const {
    // Mistral's mark "[ARGS]" stays.
    return absl::StrReplaceAll(written_.call, {{"[ARGS]", "[ARGS]"}, {"NAME", name}, {"ARGS", arguments}});
  }
  std::string List(const std::string& calls) const {
    return absl::StrCat(written_.before, calls, written_.after);
  }
  std::string One(const std::string& name, const std::string& arguments) const {
    return List(Call(name, arguments));
  }
  std::string Two() const {
    return List(absl::StrCat(Call("f", kArguments), written_.between, Call("g", "{}")));
  }

  // Through the gate, as a request's tools go. False: an expectation has failed.
  bool Compile(const ForcedChoice& choice) {
    const auto tag = ForcedCallsTag(format_, Tools(), choice);
    EXPECT_TRUE(tag.ok()) << tag.status();
    if (!tag.ok()) return false;
    const SchemaOrRefusal gated = GateStructuralTag(*tag, {});
    const auto* const source = std::get_if<Json>(&gated);
    EXPECT_NE(source, nullptr) << std::get<SchemaRefusal>(gated).message;
    if (source == nullptr) return false;
    static GrammarCompiler* const compiler = SmallCompiler().release();
    auto grammar = compiler->Compile(SourceOf(GrammarKind::kStructuralTag, source->dump()));
    EXPECT_TRUE(grammar.ok()) << grammar.status() << " " << source->dump();
    if (grammar.ok()) grammar_ = *grammar;
    return grammar.ok();
  }
  bool Takes(const std::string& text) const { return Matches(*grammar_, text); }

  // No choice lets arguments through that do not fit the tool's schema, nor a tool that there is not.
  void ExpectWrongCallsRefused() const {
    for (const char* wrong : {"{}", R"({"a": "1"})", R"({"a": 1.5})", R"({"a": 1, "b": "z"})",
                              R"({"a": 1, "c": 2})", R"({"b": "x"})", "[1]", "{\"a\": 1"})
      EXPECT_FALSE(Takes(One("f", wrong))) << wrong;
    EXPECT_FALSE(Takes(One("g", kArguments)));
    EXPECT_FALSE(Takes(One("h", kArguments)));
  }

  std::vector<std::string> ReadNames(const std::string& text) const {
    const ToolSchemas schemas(Tools());
    std::vector<std::string> names;
    for (const ParsedTurn::Call& call : ParseTurn({.tools = &format_}, &schemas, text, TurnEnd::kStop).calls)
      names.push_back(call.name);
    return names;
  }

 private:
  const ToolFormat& format_;
  const Written& written_;
  std::shared_ptr<const CompiledGrammar> grammar_;
};

class ForcedCallsGrammarTest : public ::testing::TestWithParam<const ToolFormat*> {
 protected:
  void SetUp() override {
    const auto written = Families().find(std::string(GetParam()->name));
    ASSERT_NE(written, Families().end()) << "the table above lacks the family";
    calls_ = std::make_unique<Calls>(*GetParam(), written->second);
  }
  std::unique_ptr<Calls> calls_;
};

TEST_P(ForcedCallsGrammarTest, RequiredTakesCallsAlone) {
  ASSERT_TRUE(calls_->Compile({.kind = Kind::kRequired}));
  EXPECT_TRUE(calls_->Takes(calls_->One("f", kArguments)));
  EXPECT_TRUE(calls_->Takes(calls_->One("f", R"({"a": -12})")));
  EXPECT_TRUE(calls_->Takes(calls_->One("g", "{}")));
  EXPECT_TRUE(calls_->Takes(calls_->Two()));
  EXPECT_EQ(calls_->ReadNames(calls_->Two()), (std::vector<std::string>{"f", "g"}));
  calls_->ExpectWrongCallsRefused();
  for (const std::string& text :
       {std::string(), std::string("ab"), calls_->List(""), absl::StrCat("ab", calls_->One("f", kArguments)),
        absl::StrCat(calls_->One("f", kArguments), "ab")})
    EXPECT_FALSE(calls_->Takes(text)) << text;
}

TEST_P(ForcedCallsGrammarTest, NamedIsOneCallOfOneTool) {
  ASSERT_TRUE(calls_->Compile({.kind = Kind::kNamed, .name = "f"}));
  EXPECT_TRUE(calls_->Takes(calls_->One("f", kArguments)));
  calls_->ExpectWrongCallsRefused();
  for (const std::string& text : {std::string(), std::string("ab"), calls_->One("g", "{}"), calls_->Two()})
    EXPECT_FALSE(calls_->Takes(text)) << text;
}

TEST_P(ForcedCallsGrammarTest, AutoLeavesTextFreeAndHoldsStrictCallsToTheirSchemas) {
  ASSERT_TRUE(calls_->Compile({.kind = Kind::kAuto}));
  for (const std::string& text :
       {std::string(), std::string("ab, \"a\": 1 < 2."), calls_->One("f", kArguments),
        absl::StrCat("ab\n", calls_->One("f", kArguments)), calls_->One("g", "{}"), calls_->Two()})
    EXPECT_TRUE(calls_->Takes(text)) << text;
  calls_->ExpectWrongCallsRefused();
}

TEST_P(ForcedCallsGrammarTest, WithoutParallelCallsThereIsOne) {
  for (const Kind kind : {Kind::kAuto, Kind::kRequired}) {
    ASSERT_TRUE(calls_->Compile({.kind = kind, .is_parallel = false}));
    EXPECT_TRUE(calls_->Takes(calls_->One("f", kArguments)));
    EXPECT_FALSE(calls_->Takes(calls_->Two()));
  }
}

INSTANTIATE_TEST_SUITE_P(Families, ForcedCallsGrammarTest, ::testing::ValuesIn(JsonFormats()),
                         [](const auto& info) {
                           return absl::StrReplaceAll(info.param->name, {{"-", "_"}});
                         });

}  // namespace
}  // namespace somnus
