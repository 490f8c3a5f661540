#include "text/tools/tool_format.h"

#include <algorithm>

namespace somnus {
namespace {

// DeepSeek's markers, with U+FF5C and U+2581.
constexpr absl::string_view kCallsBegin = "<｜tool▁calls▁begin｜>";
constexpr absl::string_view kCallsEnd = "<｜tool▁calls▁end｜>";
constexpr absl::string_view kCallBegin = "<｜tool▁call▁begin｜>";
constexpr absl::string_view kCallEnd = "<｜tool▁call▁end｜>";
constexpr absl::string_view kSeparator = "<｜tool▁sep｜>";

std::vector<ToolFormat> JsonFormats() {
  return {
      {.name = "hermes",
       .aliases = {"granite4", "qwen", "qwen25", "ernie45"},
       .call_begin = {"<tool_call>"},
       .call_end = {"</tool_call>"},
       .special_markers = false,
       .forced = {.begin = "<tool_call>\n{\"name\": \"NAME\", \"arguments\": ",
                  .end = "}\n</tool_call>",
                  .separator = "\n",
                  .trigger = "<tool_call>"}},
      {.name = "llama3_json",
       .aliases = {"llama3", "llama4_json"},
       .call_begin = {"<|python_tag|>"},
       .bare = "{[",
       .forced = {.begin = "{\"name\": \"NAME\", \"parameters\": ",
                  .end = "}",
                  .separator = "; ",
                  .trigger = "{\"name\": "}},
      {.name = "granite",
       .call_begin = {"<|tool_call|>", "<tool_call>"},
       .forced = {.open = "<|tool_call|>[",
                  .begin = "{\"name\": \"NAME\", \"arguments\": ",
                  .end = "}",
                  .separator = ", ",
                  .close = "]",
                  .trigger = "<|tool_call|>"}},
      {.name = "phi4_mini_json",
       .call_begin = {"functools"},
       .special_markers = false,
       .forced = {.open = "functools[",
                  .begin = "{\"name\": \"NAME\", \"arguments\": ",
                  .end = "}",
                  .separator = ", ",
                  .close = "]",
                  .trigger = "functools["}},
      {.name = "jamba",
       .aliases = {"hunyuan", "hunyuan_a13b", "minimax"},
       .call_begin = {"<tool_calls>"},
       .call_end = {"</tool_calls>"},
       .special_markers = false,
       .forced = {.open = "<tool_calls>[\n",
                  .begin = "{\"name\": \"NAME\", \"arguments\": ",
                  .end = "}",
                  .separator = ",\n",
                  .close = "\n]</tool_calls>",
                  .trigger = "<tool_calls>"}},
      {.name = "nemotron_json",
       .call_begin = {"<TOOLCALL>"},
       .call_end = {"</TOOLCALL>"},
       .special_markers = false,
       .forced = {.open = "<TOOLCALL>[",
                  .begin = "{\"name\": \"NAME\", \"arguments\": ",
                  .end = "}",
                  .separator = ", ",
                  .close = "]</TOOLCALL>",
                  .trigger = "<TOOLCALL>"}},
  };
}

std::vector<ToolFormat> MoreJsonFormats() {
  return {
      {.name = "longcat",
       .call_begin = {"<longcat_tool_call>"},
       .call_end = {"</longcat_tool_call>"},
       .forced = {.begin = "<longcat_tool_call>\n{\"name\": \"NAME\", \"arguments\": ",
                  .end = "}\n</longcat_tool_call>",
                  .separator = "\n",
                  .trigger = "<longcat_tool_call>"}},
      {.name = "granite-20b-fc",
       .aliases = {"granite_20b_fc"},
       .call_begin = {"<function_call>"},
       .forced = {.begin = "<function_call> {\"name\": \"NAME\", \"arguments\": ",
                  .end = "}",
                  .separator = " ",
                  .trigger = "<function_call>"}},
      {.name = "internlm",
       .aliases = {"internlm2", "interns1", "intern_s1"},
       .call_begin = {"<|action_start|><|plugin|>", "<|action_start|> <|plugin|>"},
       .call_end = {"<|action_end|>"},
       .forced = {.begin = "<|action_start|><|plugin|>\n{\"name\": \"NAME\", \"parameters\": ",
                  .end = "}<|action_end|>",
                  .separator = "\n",
                  .trigger = "<|action_start|>"}},
      {.name = "gigachat3",
       .call_begin = {"<|function_call|>", "function call<|role_sep|>\n",
                      "<|message_sep|>\n\nfunction call<|role_sep|>\n"},
       .forced = {.begin = "<|function_call|>{\"name\": \"NAME\", \"arguments\": ",
                  .end = "}",
                  .trigger = "<|function_call|>"}},
      {.name = "xlam",
       .call_begin = {"```json", "[TOOL_CALLS]", "<tool_call>"},
       .call_end = {"</tool_call>"},
       .bare = "[",
       .trailers = "`",
       .marks_any_json = true,
       .special_markers = false},
      {.name = "apertus",
       .name_is_key = true,
       .call_begin = {"<|tools_prefix|>"},
       .call_end = {"<|tools_suffix|>"},
       .forced = {.open = "<|tools_prefix|>[",
                  .begin = "{\"NAME\": ",
                  .end = "}",
                  .separator = ", ",
                  .close = "]<|tools_suffix|>",
                  .trigger = "<|tools_prefix|>"}},
      {.name = "cohere_command3",
       .aliases = {"cohere_command4"},
       .call_begin = {"<|START_ACTION|>"},
       .call_end = {"<|END_ACTION|>"},
       .forced = {.open = "<|START_ACTION|>[\n",
                  .begin = "    {\"tool_name\": \"NAME\", \"parameters\": ",
                  .end = "}",
                  .separator = ",\n",
                  .close = "\n]<|END_ACTION|>",
                  .trigger = "<|START_ACTION|>"}},
  };
}

std::vector<ToolFormat> MistralFormats() {
  return {
      {.name = "mistral",
       .call_begin = {"[TOOL_CALLS]"},
       .ids = CallIdStyle::kNineAlphanumeric,
       .forced = {.open = "[TOOL_CALLS][",
                  .begin = "{\"name\": \"NAME\", \"arguments\": ",
                  .end = "}",
                  .separator = ", ",
                  .close = "]",
                  .trigger = "[TOOL_CALLS]"}},
      {.name = "mistral_v11",
       .body = CallBody::kNamed,
       .call_begin = {"[TOOL_CALLS]"},
       .header = {.id_mark = "[CALL_ID]", .name_end = "[ARGS]", .name_end_may_lack = true},
       .ids = CallIdStyle::kNineAlphanumeric,
       .forced = {.begin = "[TOOL_CALLS]NAME[ARGS]", .trigger = "[TOOL_CALLS]"}},
  };
}

std::vector<ToolFormat> PythonicFormats() {
  return {
      {.name = "pythonic", .body = CallBody::kPythonic, .bare = "[", .special_markers = false},
      {.name = "llama4_pythonic",
       .body = CallBody::kPythonic,
       .call_begin = {"<|python_start|>"},
       .call_end = {"<|python_end|>"},
       .bare = "["},
      {.name = "olmo3",
       .body = CallBody::kPythonic,
       .call_begin = {"<function_calls>"},
       .call_end = {"</function_calls>"},
       .special_markers = false},
      {.name = "lfm2",
       .body = CallBody::kPythonic,
       .call_begin = {"<|tool_call_start|>"},
       .call_end = {"<|tool_call_end|>"},
       // The family writes JSON in the same place, too.
       .forced = {.open = "<|tool_call_start|>[",
                  .begin = "{\"name\": \"NAME\", \"arguments\": ",
                  .end = "}",
                  .separator = ", ",
                  .close = "]<|tool_call_end|>",
                  .trigger = "<|tool_call_start|>"}},
  };
}

std::vector<ToolFormat> NamedJsonFormats() {
  const CallHeader deepseek = {.type_end = kSeparator, .name_end = "```json"};
  return {
      {.name = "deepseek_v3",
       .aliases = {"deepseekv3"},
       .body = CallBody::kNamed,
       .section_begin = kCallsBegin,
       .section_end = kCallsEnd,
       .call_begin = {kCallBegin},
       .call_end = {kCallEnd},
       .header = deepseek,
       .noise = "```",
       .forced = {.open = "<｜tool▁calls▁begin｜>",
                  .begin = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME\n```json\n",
                  .end = "\n```<｜tool▁call▁end｜>",
                  .separator = "\n",
                  .close = "<｜tool▁calls▁end｜>",
                  .trigger = kCallsBegin}},
      {.name = "deepseek_v31",
       .aliases = {"deepseekv31"},
       .body = CallBody::kNamed,
       .section_begin = kCallsBegin,
       .section_end = kCallsEnd,
       .call_begin = {kCallBegin},
       .call_end = {kCallEnd},
       .header = deepseek,
       .noise = "```",
       .forced = {.open = "<｜tool▁calls▁begin｜>",
                  .begin = "<｜tool▁call▁begin｜>NAME<｜tool▁sep｜>",
                  .end = "<｜tool▁call▁end｜>",
                  .close = "<｜tool▁calls▁end｜>",
                  .trigger = kCallsBegin}},
      {.name = "kimi_k2",
       .body = CallBody::kNamed,
       .section_begin = "<|tool_calls_section_begin|>",
       .section_end = "<|tool_calls_section_end|>",
       .call_begin = {"<|tool_call_begin|>"},
       .call_end = {"<|tool_call_end|>"},
       .header = {.name_end = "<|tool_call_argument_begin|>"},
       .ids = CallIdStyle::kFunctionIndex,
       .forced = {.open = "<|tool_calls_section_begin|>",
                  .begin = "<|tool_call_begin|>functions.NAME:INDEX<|tool_call_argument_begin|>",
                  .end = "<|tool_call_end|>",
                  .close = "<|tool_calls_section_end|>",
                  .trigger = "<|tool_calls_section_begin|>"}},
      {.name = "functionary_v31",
       .aliases = {"functionary-v3-llama-3.1"},
       .body = CallBody::kNamed,
       .call_begin = {"<function="},
       .call_end = {"</function>"},
       .header = {.name_end = ">"},
       .special_markers = false,
       .forced = {.begin = "<function=NAME>", .end = "</function>", .trigger = "<function="}},
  };
}

ToolFormat Dsml(absl::string_view name, absl::string_view alias, bool is_v4) {
  return {.name = name,
          .aliases = {alias},
          .body = CallBody::kNamed,
          .section_begin = is_v4 ? "<｜DSML｜tool_calls>" : "<｜DSML｜function_calls>",
          .section_end = is_v4 ? "</｜DSML｜tool_calls>" : "</｜DSML｜function_calls>",
          .call_begin = {"<｜DSML｜invoke name=\""},
          .call_end = {"</｜DSML｜invoke>"},
          .header = {.name_end = "\">"},
          .arguments = ArgumentSyntax::kTags,
          .tags = {.key_begin = "<｜DSML｜parameter name=\"",
                   .key_end = "\"",
                   .value_end = "</｜DSML｜parameter>",
                   .has_attributes = true,
                   .string_mark = "string=\"true\"",
                   .other_mark = "string=\"false\""},
          .forced = {.open = is_v4 ? "<｜DSML｜tool_calls>\n" : "<｜DSML｜function_calls>\n",
                     .begin = "<｜DSML｜invoke name=\"NAME\">\n",
                     .end = "</｜DSML｜invoke>\n",
                     .close = is_v4 ? "</｜DSML｜tool_calls>" : "</｜DSML｜function_calls>",
                     .style = "deepseek_xml",
                     .trigger = is_v4 ? "<｜DSML｜tool_calls>" : "<｜DSML｜function_calls>"}};
}

// <function=NAME> and <parameter=KEY> between the markers `begin` and `end`.
ToolFormat FunctionTags(absl::string_view name, std::vector<absl::string_view> aliases,
                        absl::string_view begin, absl::string_view end, ForcedSyntax forced) {
  return {
      .name = name,
      .aliases = std::move(aliases),
      .body = CallBody::kNamed,
      .section_begin = begin,
      .section_end = end,
      .call_begin = {"<function="},
      .call_end = {"</function>"},
      .header = {.name_end = ">"},
      .arguments = ArgumentSyntax::kTags,
      .tags = {.key_begin = "<parameter=", .key_end = ">", .value_end = "</parameter>", .wraps_lines = true},
      .special_markers = false,
      .forced = forced};
}

std::vector<ToolFormat> TagFormats() {
  return {
      FunctionTags("qwen3_coder", {"qwen3_xml", "mimo", "step3p5", "nanbeige"}, "<tool_call>", "</tool_call>",
                   {.begin = "<tool_call>\n<function=NAME>\n",
                    .end = "\n</function>\n</tool_call>",
                    .separator = "\n",
                    .style = "qwen_xml",
                    .trigger = "<tool_call>"}),
      FunctionTags("seed_oss", {}, "<seed:tool_call>", "</seed:tool_call>",
                   {.begin = "<seed:tool_call>\n<function=NAME>\n",
                    .end = "\n</function>\n</seed:tool_call>",
                    .separator = "\n",
                    .style = "qwen_xml",
                    .trigger = "<seed:tool_call>"}),
      {.name = "minimax_m2",
       .aliases = {"minimax-m2"},
       .body = CallBody::kNamed,
       .section_begin = "<minimax:tool_call>",
       .section_end = "</minimax:tool_call>",
       .section_may_lack = false,
       .call_begin = {"<invoke name=\""},
       .call_end = {"</invoke>"},
       .header = {.name_end = "\">"},
       .arguments = ArgumentSyntax::kTags,
       .tags = {.key_begin = "<parameter name=\"",
                .key_end = "\">",
                .value_end = "</parameter>",
                .wraps_lines = true},
       .forced = {.open = "<minimax:tool_call>\n",
                  .begin = "<invoke name=\"NAME\">\n",
                  .end = "</invoke>\n",
                  .close = "</minimax:tool_call>",
                  .style = "minimax_xml",
                  .trigger = "<minimax:tool_call>"}},
      {.name = "minimax_m3",
       .aliases = {"minimax-m3"},
       .body = CallBody::kNamed,
       .section_begin = "]<]minimax[>[<tool_call>",
       .section_end = "]<]minimax[>[</tool_call>",
       .section_may_lack = false,
       .call_begin = {"]<]minimax[>[<invoke name=\""},
       .call_end = {"]<]minimax[>[</invoke>"},
       .header = {.name_end = "\">"},
       .arguments = ArgumentSyntax::kElements,
       .tags = {.key_begin = "]<]minimax[>[<"}},
      Dsml("deepseek_v32", "deepseekv32", false),
      Dsml("deepseek_v4", "deepseekv4", true),
      {.name = "glm45",
       .aliases = {"glm", "glm47", "poolside_v1"},
       .body = CallBody::kNamed,
       .call_begin = {"<tool_call>"},
       .call_end = {"</tool_call>"},
       .arguments = ArgumentSyntax::kTags,
       .tags = {.key_begin = "<arg_key>",
                .key_end = "</arg_key>",
                .value_begin = "<arg_value>",
                .value_end = "</arg_value>"},
       .forced =
           {.begin = "<tool_call>NAME", .end = "</tool_call>", .style = "glm_xml", .trigger = "<tool_call>"}},
  };
}

std::vector<ToolFormat> MoreTagFormats() {
  return {
      {.name = "hy_v3",
       .body = CallBody::kNamed,
       .section_begin = "<tool_calls>",
       .section_end = "</tool_calls>",
       .call_begin = {"<tool_call>"},
       .call_end = {"</tool_call>"},
       .header = {.name_end = "<tool_sep>"},
       .arguments = ArgumentSyntax::kTags,
       .tags = {.key_begin = "<arg_key>",
                .key_end = "</arg_key>",
                .value_begin = "<arg_value>",
                .value_end = "</arg_value>"}},
      {.name = "step3",
       .body = CallBody::kNamed,
       .section_begin = "<｜tool_calls_begin｜>",
       .section_end = "<｜tool_calls_end｜>",
       .call_begin = {"<｜tool_call_begin｜>"},
       .call_end = {"</steptml:invoke>", "<｜tool_call_end｜>"},
       .header = {.prefix = "function<｜tool_sep｜><steptml:invoke name=\"", .name_end = "\">"},
       .arguments = ArgumentSyntax::kTags,
       .tags = {.key_begin = "<steptml:parameter name=\"",
                .key_end = "\">",
                .value_end = "</steptml:parameter>"}},
      {.name = "minicpm5",
       .body = CallBody::kNamed,
       .call_begin = {"<function name=\""},
       .call_end = {"</function>"},
       .header = {.name_end = "\">"},
       .arguments = ArgumentSyntax::kTags,
       .tags = {.key_begin = "<param name=\"", .key_end = "\">", .value_end = "</param>"}},
      {.name = "solar_open2",
       .body = CallBody::kNamed,
       .call_begin = {"<|tool_call:start|>"},
       .call_end = {"<|tool_call:end|>"},
       .arguments = ArgumentSyntax::kTags,
       .tags = {.key_begin = "<|tool_arg:start|>",
                .key_end = "<|tool_arg:value|>",
                .value_end = "<|tool_arg:end|>"}},
      {.name = "kimi_k3",
       .body = CallBody::kNamed,
       .section_begin = "<|open|>tools<|sep|>",
       .section_end = "<|close|>tools<|sep|>",
       .call_begin = {"<|open|>call tool=\""},
       .call_end = {"<|close|>call<|sep|>"},
       .header = {.name_end = "\"", .attributes_end = "<|sep|>"},
       .arguments = ArgumentSyntax::kTags,
       .tags = {.key_begin = "<|open|>argument key=\"",
                .key_end = "\"",
                .value_end = "<|close|>argument<|sep|>",
                .has_attributes = true,
                .string_mark = "type=\"string\"",
                .other_mark = "type=\""}},
  };
}

std::vector<ToolFormat> GemmaFormats() {
  return {
      {.name = "gemma4",
       .body = CallBody::kNamed,
       .call_begin = {"<|tool_call>"},
       .call_end = {"<tool_call|>"},
       .header = {.prefix = "call:"},
       .arguments = ArgumentSyntax::kGemma,
       .quote = "<|\"|>",
       .forced = {.begin = "<|tool_call>call:NAME",
                  .end = "<tool_call|>",
                  .style = "gemma",
                  .trigger = "<|tool_call>"}},
      {.name = "functiongemma",
       .body = CallBody::kNamed,
       .call_begin = {"<start_function_call>"},
       .call_end = {"<end_function_call>"},
       .header = {.prefix = "call:"},
       .arguments = ArgumentSyntax::kGemma,
       .quote = "<escape>"},
      {.name = "openai",
       .aliases = {"gpt-oss", "gptoss"},
       .body = CallBody::kHarmony,
       .call_end = {"<|call|>", "<|end|>", "<|return|>"},
       .forced = {.begin = "<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>",
                  .end = "<|call|>",
                  .separator = "<|start|>assistant",
                  .trigger = "<|channel|>commentary to="}},
  };
}

std::vector<ReasoningFormat> ThinkFormats() {
  constexpr absl::string_view kForcedEnd = "\n</think>\n\n";
  return {
      {.name = "qwen3",
       .aliases = {"deepseek_v3", "deepseek_v31", "deepseek_v4", "deepseek-v3", "deepseek-v4", "glm45",
                   "glm47", "kimi_k2", "minimax_m2", "minimax", "nemotron_v3", "nemotron_3", "olmo3", "mimo",
                   "step3p5", "poolside_v1", "hy_v3", "think"},
       .begin = "<think>",
       .end = "</think>",
       .forced_end = kForcedEnd},
      {.name = "deepseek_r1",
       .aliases = {"deepseek-r1", "qwen3-thinking", "step3", "holo2"},
       .begin = "<think>",
       .end = "</think>",
       .forced_end = kForcedEnd,
       .begins_inside = true},
      {.name = "ernie45",
       .begin = "<think>",
       .end = "</think>",
       .forced_end = "\n</think>\n\n<response>\n",
       .answer_begin = {"<response>"},
       .answer_end = {"</response>"}},
      {.name = "hunyuan_a13b",
       .aliases = {"hunyuan"},
       .begin = "<think>",
       .end = "</think>",
       .forced_end = "\n</think>\n<answer>\n",
       .answer_begin = {"<answer>"},
       .answer_end = {"</answer>"}},
      {.name = "mistral", .begin = "[THINK]", .end = "[/THINK]", .forced_end = "[/THINK]"},
      {.name = "seed_oss", .begin = "<seed:think>", .end = "</seed:think>", .forced_end = "\n</seed:think>"},
      {.name = "minimax_m3",
       .aliases = {"minimax-m3"},
       .begin = "<mm:think>",
       .end = "</mm:think>",
       .forced_end = "\n</mm:think>\n"},
      {.name = "cohere_command3",
       .aliases = {"cohere_command4"},
       .begin = "<|START_THINKING|>",
       .end = "<|END_THINKING|>",
       .forced_end = "<|END_THINKING|>",
       .answer_begin = {"<|START_RESPONSE|>", "<|START_TEXT|>"},
       .answer_end = {"<|END_RESPONSE|>", "<|END_TEXT|>"},
       .answer_may_be_open = true},
      {.name = "kimi_k3",
       .begin = "<|open|>think<|sep|>",
       .end = "<|close|>think<|sep|>",
       .forced_end = "<|close|>think<|sep|><|open|>response<|sep|>",
       .answer_begin = {"<|open|>response<|sep|>"},
       .answer_end = {"<|close|>response<|sep|>", "<|close|>message<|sep|>"},
       .answer_may_be_open = true},
      {.name = "solar_open2",
       .begin = "<|think:start|>",
       .end = "<|think:end|>",
       .forced_end = "<|think:end|>"},
      {.name = "apertus",
       .begin = "<|inner_prefix|>",
       .end = "<|inner_suffix|>",
       .forced_end = "<|inner_suffix|>"},
      {.name = "gemma4", .begin = "<|channel>thought\n", .end = "<channel|>", .forced_end = "\n<channel|>"},
      {.name = "granite",
       .begin = "Here is my thought process:",
       .end = "Here is my response:",
       .forced_end = "\n\nHere is my response:\n\n"},
      {.name = "openai_gptoss",
       .aliases = {"openai", "gpt-oss", "gptoss"},
       .begin = "<|channel|>analysis<|message|>",
       .end = "<|end|>",
       .harmony = true,
       .forced_end = "<|end|><|start|>assistant<|channel|>final<|message|>"},
  };
}

template <typename Row>
const Row* Find(const std::vector<Row>& rows, absl::string_view name) {
  for (const Row& row : rows) {
    if (row.name == name || std::find(row.aliases.begin(), row.aliases.end(), name) != row.aliases.end())
      return &row;
  }
  return nullptr;
}

}  // namespace

const std::vector<ToolFormat>& ToolFormats() {
  static const auto* const rows = [] {
    auto* all = new std::vector<ToolFormat>;
    for (auto* part : {&JsonFormats, &MoreJsonFormats, &MistralFormats, &PythonicFormats, &NamedJsonFormats,
                       &TagFormats, &MoreTagFormats, &GemmaFormats}) {
      for (ToolFormat& row : part()) all->push_back(std::move(row));
    }
    return all;
  }();
  return *rows;
}

const std::vector<ReasoningFormat>& ReasoningFormats() {
  static const auto* const rows = new std::vector<ReasoningFormat>(ThinkFormats());
  return *rows;
}

const std::vector<UnreadFormat>& UnreadToolFormats() {
  constexpr absl::string_view kForm = "its calls have a form that no parser here reads";
  static const auto* const formats = new std::vector<UnreadFormat>{
      {"inkling", kForm},
      {"functionary", "calls of version 3.2 begin in the prompt; functionary_v31 is read"},
      {"functionary_v32", "calls of version 3.2 begin in the prompt; functionary_v31 is read"},
      {"hf", "a response template in the tokenizer's files is not read"}};
  return *formats;
}

const std::vector<UnreadFormat>& UnreadReasoningFormats() {
  static const auto* const formats = new std::vector<UnreadFormat>{
      {"inkling", "its reasoning has a form that no parser here reads"},
      {"minimax_m2_append_think",
       "reasoning that stays in the content is --reasoning-parser=none; minimax_m2 takes the reasoning out"}};
  return *formats;
}

const ToolFormat* FindToolFormat(absl::string_view name) { return Find(ToolFormats(), name); }
const ReasoningFormat* FindReasoningFormat(absl::string_view name) { return Find(ReasoningFormats(), name); }

const ToolFormat& ForcedJsonFormat() {
  static const auto* const format =
      new ToolFormat{.name = "json",
                     .bare = "[{",
                     .special_markers = false,
                     .forced = {.open = "[",
                                .begin = "{\"name\": \"NAME\", \"parameters\": ",
                                .end = "}",
                                .separator = ", ",
                                .close = "]",
                                .trigger = "["}};
  return *format;
}

}  // namespace somnus
