#include "text/tools/template_traits.h"

#include <nlohmann/json.hpp>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace somnus {
namespace {

using Json = nlohmann::ordered_json;

// A template of the family has all of `has`, and none of `has_not`. The first row that fits counts, so that
// markers that several families share come last. An empty format: the family is known, and no parser reads
// its calls.
struct TemplateRule {
  absl::string_view format;
  std::vector<absl::string_view> has;
  std::vector<absl::string_view> has_not = {};
};

const std::vector<TemplateRule>& ToolRules() {
  static const auto* const rules = new std::vector<TemplateRule>{
      {"minimax_m3", {"]<]minimax[>["}},
      {"", {">>>${recipient}"}},  // Functionary 3.2
      {"kimi_k3", {"<|open|>", "<|close|>", "<|sep|>"}},
      {"apertus", {"<|tools_prefix|>"}},
      {"cohere_command3", {"<|START_ACTION|>"}},
      {"gigachat3", {"function call<|role_sep|>"}},
      {"gigachat3", {"<|function_call|>"}},
      {"internlm", {"<|action_start|>"}},
      {"longcat", {"<longcat_tool_call>"}},
      {"step3", {"<steptml:invoke"}},
      {"solar_open2", {"<|tool_call:start|>"}},
      {"minicpm5", {"<function name=", "<param name="}},
      {"hy_v3", {"<tool_sep>", "<arg_key>"}},
      {"gemma4", {"<|tool_call>"}},
      {"functiongemma", {"<start_function_call>"}},
      {"openai", {"<|channel|>", "<|message|>"}},
      {"kimi_k2", {"<|tool_call_begin|>"}},
      {"minimax_m2", {"<minimax:tool_call>"}},
      {"seed_oss", {"<seed:tool_call>"}},
      {"deepseek_v4", {"｜DSML｜", "tool_calls"}, {"function_calls"}},
      {"deepseek_v32", {"｜DSML｜"}},
      {"deepseek_v3", {"<｜tool▁calls▁begin｜>", "```json"}},
      {"deepseek_v31", {"<｜tool▁calls▁begin｜>"}},
      {"lfm2", {"<|tool_call_start|>"}},
      {"lfm2", {"<|tool_list_start|>"}},
      {"nemotron_json", {"<TOOLCALL>"}},
      {"mistral_v11", {"[TOOL_CALLS]", "[ARGS]"}},
      {"mistral", {"[TOOL_CALLS]"}},
      {"glm45", {"<arg_key>"}},
      {"qwen3_coder", {"<function=", "<parameter="}},
      {"functionary_v31", {"<function=", "</function>"}},
      {"olmo3", {"<function_calls>"}},
      {"phi4_mini_json", {"functools"}},
      {"phi4_mini_json", {"<|tool|>", "<|/tool|>"}},
      {"jamba", {"<tool_calls>"}},
      {"granite", {"<|tool_call|>"}},
      {"granite-20b-fc", {"<function_call>"}},
      {"hermes", {"<tool_call>"}},
      {"llama4_pythonic", {"<|python_start|>"}},
      {"llama4_pythonic", {"<|header_start|>", "[func_name1("}},
      {"pythonic", {"[func_name1("}},
      {"pythonic", {"pythonic"}},
      {"llama3_json", {"<|python_tag|>"}},
      {"llama3_json", {"<|start_header_id|>", "\"parameters\": "}},
      {"llama3_json", {"<|start_header_id|>", "tool_call"}},
  };
  return *rules;
}

const std::vector<TemplateRule>& ReasoningRules() {
  static const auto* const rules = new std::vector<TemplateRule>{
      {"gemma4", {"<|channel>"}},
      {"openai_gptoss", {"<|channel|>", "<|message|>"}},
      {"mistral", {"[THINK]"}},
      {"seed_oss", {"<seed:think>"}},
      {"minimax_m3", {"<mm:think>"}},
      {"cohere_command3", {"<|START_THINKING|>"}},
      {"granite", {"Here is my thought process:"}},
      {"kimi_k3", {"<|open|>", "<|close|>", "<|sep|>"}},
      {"solar_open2", {"<|think:start|>"}},
      {"apertus", {"<|inner_prefix|>"}},
      {"ernie45", {"</think>", "<response>"}},
      {"hunyuan_a13b", {"</think>", "<answer>"}},
      {"qwen3", {"<think>"}},
      {"qwen3", {"</think>"}},
  };
  return *rules;
}

bool Fits(const TemplateRule& rule, absl::string_view source) {
  for (const absl::string_view text : rule.has) {
    if (!absl::StrContains(source, text)) return false;
  }
  for (const absl::string_view text : rule.has_not) {
    if (absl::StrContains(source, text)) return false;
  }
  return true;
}

absl::string_view FormatName(const std::vector<TemplateRule>& rules, absl::string_view source) {
  for (const TemplateRule& rule : rules) {
    if (Fits(rule, source)) return rule.format;
  }
  return "";
}

template <typename Row>
absl::Status UnknownName(const char* flag, absl::string_view name, const std::vector<Row>& rows,
                         const std::vector<UnreadFormat>& unread) {
  for (const UnreadFormat& format : unread) {
    if (format.name == name)
      return absl::InvalidArgumentError(
          absl::StrCat(flag, ": no parser for \"", name, "\": ", format.reason));
  }
  std::vector<absl::string_view> names;
  for (const Row& row : rows) names.push_back(row.name);
  return absl::InvalidArgumentError(absl::StrCat(flag, ": unknown parser \"", name,
                                                 "\"; known are auto, none, ", absl::StrJoin(names, ", ")));
}

// A conversation with one call, whose id every family accepts.
Json ProbeContext(const Json& arguments, const Json& content) {
  const Json parameters = {{"type", "object"}, {"properties", {{"parameter", {{"type", "string"}}}}}};
  const Json call = {{"id", "abcdefGH1"},
                     {"type", "function"},
                     {"function", {{"name", "probe_tool"}, {"arguments", arguments}}}};
  return {{"messages",
           {{{"role", "user"}, {"content", "question"}},
            {{"role", "assistant"}, {"content", content}, {"tool_calls", Json::array({call})}},
            {{"role", "tool"}, {"tool_call_id", "abcdefGH1"}, {"name", "probe_tool"}, {"content", "result"}},
            {{"role", "assistant"}, {"content", "answer"}}}},
          {"tools",
           Json::array({{{"type", "function"},
                         {"function",
                          {{"name", "probe_tool"}, {"description", "probe"}, {"parameters", parameters}}}}})},
          {"add_generation_prompt", false},
          {"bos_token", "<s>"},
          {"eos_token", "</s>"}};
}

}  // namespace

const ToolFormat* ToolFormatOfTemplate(absl::string_view source) {
  const absl::string_view name = FormatName(ToolRules(), source);
  return name.empty() ? nullptr : FindToolFormat(name);
}

const ReasoningFormat* ReasoningFormatOfTemplate(absl::string_view source) {
  const absl::string_view name = FormatName(ReasoningRules(), source);
  return name.empty() ? nullptr : FindReasoningFormat(name);
}

absl::StatusOr<const ToolFormat*> ChooseToolFormat(absl::string_view flag, absl::string_view source) {
  if (flag == "none") return nullptr;
  if (flag == "auto") return ToolFormatOfTemplate(source);
  if (flag == "mistral" && absl::StrContains(source, "[ARGS]")) return FindToolFormat("mistral_v11");
  const ToolFormat* const format = FindToolFormat(flag);
  if (format == nullptr) return UnknownName("--tool-call-parser", flag, ToolFormats(), UnreadToolFormats());
  return format;
}

absl::StatusOr<const ReasoningFormat*> ChooseReasoningFormat(absl::string_view flag,
                                                             absl::string_view source) {
  if (flag == "none") return nullptr;
  if (flag == "auto") return ReasoningFormatOfTemplate(source);
  const ReasoningFormat* const format = FindReasoningFormat(flag);
  if (format == nullptr)
    return UnknownName("--reasoning-parser", flag, ReasoningFormats(), UnreadReasoningFormats());
  return format;
}

ArgumentsForm ArgumentsFormOf(const ChatTemplate& chat_template) {
  const std::string text = "{\"probe_key\": \"probe_value\"}";
  // Some templates write calls only of a message without content. Where a template joins an object to text,
  // the text is Python's, not JSON.
  for (const Json& content : {Json(""), Json(nullptr)}) {
    const auto rendered = chat_template.Render(ProbeContext(Json::parse(text), content));
    if (rendered.ok() && absl::StrContains(*rendered, "probe_key") &&
        !absl::StrContains(*rendered, "{'probe_key'")) {
      return ArgumentsForm::kObject;
    }
  }
  for (const Json& content : {Json(""), Json(nullptr)}) {
    const auto rendered = chat_template.Render(ProbeContext(Json(text), content));
    if (rendered.ok() && absl::StrContains(*rendered, text)) return ArgumentsForm::kString;
  }
  return ArgumentsForm::kObject;
}

}  // namespace somnus
