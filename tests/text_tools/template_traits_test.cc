#include "text/tools/template_traits.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "absl/strings/match.h"
#include "text/tools/turn_parser.h"

namespace somnus {
namespace {

std::string ToolsOf(absl::string_view source) {
  const ToolFormat* const format = ToolFormatOfTemplate(source);
  return format == nullptr ? "none" : std::string(format->name);
}

std::string ReasoningOf(absl::string_view source) {
  const ReasoningFormat* const format = ReasoningFormatOfTemplate(source);
  return format == nullptr ? "none" : std::string(format->name);
}

// The part of each family's template that shows a call.
TEST(ToolFormatOfTemplateTest, TakesTheFormatThatOnlyOneFamilyHas) {
  EXPECT_EQ(ToolsOf("{{ '<tool_call>\\n{\"name\": ' ~ c.name }}"), "hermes");
  EXPECT_EQ(ToolsOf("{{ '<tool_call>\\n<function=' + n + '>' }}<parameter="), "qwen3_coder");
  EXPECT_EQ(ToolsOf("{{ '<tool_call>' + n }}<arg_key>{{ k }}</arg_key>"), "glm45");
  EXPECT_EQ(ToolsOf("<|tool_call|>{{ calls | tojson }}"), "granite");
  EXPECT_EQ(ToolsOf("<|tool_call>call:{{ n }}"), "gemma4");
  EXPECT_EQ(ToolsOf("<|start|>assistant<|channel|>commentary to=functions.x<|message|>"), "openai");
  EXPECT_EQ(ToolsOf("[TOOL_CALLS][{{ c }}]"), "mistral");
  EXPECT_EQ(ToolsOf("[TOOL_CALLS]{{ n }}[ARGS]{{ a }}"), "mistral_v11");
  EXPECT_EQ(ToolsOf("<｜tool▁calls▁begin｜>{{ n }}\n```json\n"), "deepseek_v3");
  EXPECT_EQ(ToolsOf("<｜tool▁calls▁begin｜>{{ n }}<｜tool▁sep｜>"), "deepseek_v31");
  EXPECT_EQ(ToolsOf("<｜DSML｜function_calls><｜DSML｜invoke name=\"x\">"), "deepseek_v32");
  EXPECT_EQ(ToolsOf("<｜DSML｜tool_calls><｜DSML｜invoke name=\"x\">"), "deepseek_v4");
  EXPECT_EQ(ToolsOf("<|start_header_id|>ipython{{ '{\"name\": \"x\", \"parameters\": ' }}"), "llama3_json");
  EXPECT_EQ(ToolsOf("Use the form [func_name1(params_name1=params_value1)]"), "pythonic");
  EXPECT_EQ(ToolsOf("<|tool_list_start|>{{ tools }}"), "lfm2");
  EXPECT_EQ(ToolsOf("]<]minimax[>[<tool_call>"), "minimax_m3");
  EXPECT_EQ(ToolsOf(">>>${recipient}"), "none");  // a family whose calls no parser reads
  EXPECT_EQ(ToolsOf("<function={{ n }}>{{ a }}</function><|python_tag|>"), "functionary_v31");
  EXPECT_EQ(ToolsOf("<|open|>tools<|sep|><|close|>tools<|sep|>"), "kimi_k3");
  EXPECT_EQ(ToolsOf("<tool_calls><tool_call>{{ n }}<tool_sep><arg_key>"), "hy_v3");
  EXPECT_EQ(ToolsOf("<|START_ACTION|>[{{ c }}]<|END_ACTION|>"), "cohere_command3");
  EXPECT_EQ(ToolsOf("function call<|role_sep|>\n{{ c }}"), "gigachat3");
  EXPECT_EQ(ToolsOf("<function_call> {{ c }}"), "granite-20b-fc");
  EXPECT_EQ(ToolsOf("{% for m in messages %}{{ m.content }}{% endfor %}"), "none");
}

TEST(ReasoningFormatOfTemplateTest, TakesTheFormatByItsMarkers) {
  EXPECT_EQ(ReasoningOf("{{ '<think>\\n' }}"), "qwen3");
  EXPECT_EQ(ReasoningOf("{{ c.split('</think>')[-1] }}"), "qwen3");
  EXPECT_EQ(ReasoningOf("[THINK]{{ c }}[/THINK]"), "mistral");
  EXPECT_EQ(ReasoningOf("<seed:think>"), "seed_oss");
  EXPECT_EQ(ReasoningOf("<|channel>thought\n"), "gemma4");
  EXPECT_EQ(ReasoningOf("<|channel|>analysis<|message|>"), "openai_gptoss");
  EXPECT_EQ(ReasoningOf("<|open|>think<|sep|><|close|>think<|sep|>"), "kimi_k3");
  EXPECT_EQ(ReasoningOf("</think>\n\n<response>\n"), "ernie45");
  EXPECT_EQ(ReasoningOf("<think>\n</think>\n<answer>\n"), "hunyuan_a13b");
  EXPECT_EQ(ReasoningOf("</think><tool_response>"), "qwen3");
  EXPECT_EQ(ReasoningOf("{{ m.content }}"), "none");
}

// The names of vLLM, and differing names of SGLang: each has a row, or a refusal that says why.
TEST(ChooseFormatTest, TakesNamesOfVllmAndSglang) {
  for (const char* name :
       {"apertus",        "cohere_command3", "cohere_command4", "deepseek_v3", "deepseek_v31", "deepseek_v32",
        "deepseek_v4",    "ernie45",         "functiongemma",   "gemma4",      "gigachat3",    "glm45",
        "glm47",          "granite",         "granite-20b-fc",  "granite4",    "hermes",       "hunyuan_a13b",
        "hy_v3",          "internlm",        "jamba",           "kimi_k2",     "kimi_k3",      "lfm2",
        "llama3_json",    "llama4_json",     "llama4_pythonic", "longcat",     "mimo",         "minicpm5",
        "minimax",        "minimax_m2",      "minimax_m3",      "mistral",     "olmo3",        "openai",
        "phi4_mini_json", "poolside_v1",     "pythonic",        "qwen3_coder", "qwen3_xml",    "seed_oss",
        "solar_open2",    "step3",           "step3p5",         "xlam",        "deepseekv31",  "gpt-oss",
        "interns1",       "llama3",          "minimax-m2",      "qwen25"}) {
    const auto format = ChooseToolFormat(name, "");
    ASSERT_TRUE(format.ok()) << format.status();
    EXPECT_NE(*format, nullptr) << name;
  }
  for (const char* name : {"apertus",      "cohere_command3", "cohere_command4", "deepseek_r1",
                           "deepseek_v3",  "deepseek_v4",     "ernie45",         "gemma4",
                           "glm45",        "glm47",           "granite",         "holo2",
                           "hunyuan_a13b", "hy_v3",           "kimi_k2",         "kimi_k3",
                           "mimo",         "minimax_m2",      "minimax_m3",      "mistral",
                           "nemotron_v3",  "olmo3",           "openai_gptoss",   "poolside_v1",
                           "qwen3",        "seed_oss",        "solar_open2",     "step3",
                           "step3p5",      "deepseek-v3"}) {
    ASSERT_TRUE(ChooseReasoningFormat(name, "").ok()) << name;
  }
}

TEST(ChooseFormatTest, ANameWithoutAParserIsRefusedWithTheReason) {
  const absl::Status tools = ChooseToolFormat("functionary", "").status();
  EXPECT_EQ(tools.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(absl::StrContains(tools.message(), "functionary_v31 is read")) << tools;
  const absl::Status reasoning = ChooseReasoningFormat("minimax_m2_append_think", "").status();
  EXPECT_TRUE(absl::StrContains(reasoning.message(), "--reasoning-parser=none")) << reasoning;
  for (const UnreadFormat& format : UnreadToolFormats()) EXPECT_EQ(FindToolFormat(format.name), nullptr);
  for (const UnreadFormat& format : UnreadReasoningFormats())
    EXPECT_EQ(FindReasoningFormat(format.name), nullptr);
}

TEST(ChooseFormatTest, AutoAndNone) {
  EXPECT_EQ((*ChooseToolFormat("auto", "<tool_call>"))->name, "hermes");
  EXPECT_EQ(*ChooseToolFormat("none", "<tool_call>"), nullptr);
  EXPECT_EQ((*ChooseToolFormat("mistral", "[TOOL_CALLS]x[ARGS]"))->name, "mistral_v11");
  EXPECT_EQ((*ChooseReasoningFormat("auto", "<think>"))->name, "qwen3");
  EXPECT_EQ(*ChooseReasoningFormat("none", "<think>"), nullptr);
}

TEST(ChooseFormatTest, AnUnknownNameIsRefusedWithTheKnownOnes) {
  const absl::Status tools = ChooseToolFormat("hermess", "").status();
  EXPECT_EQ(tools.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(absl::StrContains(tools.message(), "--tool-call-parser: unknown parser \"hermess\"")) << tools;
  EXPECT_TRUE(absl::StrContains(tools.message(), "qwen3_coder")) << tools;
  EXPECT_TRUE(absl::StrContains(ChooseReasoningFormat("x", "").status().message(), "deepseek_r1"));
}

TEST(ToolFormatsTest, NamesAreUnique) {
  for (const ToolFormat& format : ToolFormats()) {
    EXPECT_EQ(FindToolFormat(format.name), &format);
    for (const absl::string_view alias : format.aliases) EXPECT_EQ(FindToolFormat(alias), &format) << alias;
  }
  for (const ReasoningFormat& format : ReasoningFormats()) {
    EXPECT_EQ(FindReasoningFormat(format.name), &format);
    for (const absl::string_view alias : format.aliases)
      EXPECT_EQ(FindReasoningFormat(alias), &format) << alias;
  }
}

ArgumentsForm FormOf(const std::string& call) {
  const auto compiled =
      ChatTemplate::Compile("{% for m in messages %}{{ m.content }}{% for c in m.tool_calls %}" + call +
                            "{% endfor %}{% endfor %}");
  EXPECT_TRUE(compiled.ok()) << compiled.status();
  return ArgumentsFormOf(**compiled);
}

TEST(ArgumentsFormTest, IsWhatTheTemplateWritesAsJson) {
  EXPECT_EQ(FormOf("{{ c.function.arguments | tojson }}"), ArgumentsForm::kObject);
  EXPECT_EQ(FormOf("{% for k, v in c.function.arguments.items() %}{{ k }}={{ v }}{% endfor %}"),
            ArgumentsForm::kObject);
  EXPECT_EQ(FormOf("{% if c.function.arguments is string %}{{ c.function.arguments }}{% else %}"
                   "{{ c.function.arguments | tojson }}{% endif %}"),
            ArgumentsForm::kObject);
  EXPECT_EQ(FormOf("{{ '<call>' + c.function.arguments + '</call>' }}"), ArgumentsForm::kString);
  EXPECT_EQ(FormOf("{{ c.function.arguments }}"), ArgumentsForm::kString);
  EXPECT_EQ(FormOf("{% if m.content is none %}{{ '<call>' + c.function.arguments }}{% endif %}"),
            ArgumentsForm::kString);
  EXPECT_EQ(FormOf(""), ArgumentsForm::kObject);  // the template has no calls
}

}  // namespace
}  // namespace somnus
