#include "tests/text_tools/recorded_turns.h"

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace somnus {
namespace {

using Call = ParsedTurn::Call;

const char* const kParis = R"({"city": "Paris", "days": 3})";
const Call kParisCall = {"id0", "get_weather", kParis};
const Call kTimeCall = {"id1", "get_time", "{}"};

std::vector<RecordedTurn> JsonTurns() {
  return {
      {"hermes: one call",
       "hermes",
       "",
       false,
       "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\", \"days\": "
       "3}}\n</tool_call>",
       {"", "", {kParisCall}}},
      {"hermes: reasoning, text, two calls, text",
       "hermes",
       "qwen3",
       false,
       "<think>\nShould I write <tool_call>{\"name\": \"f\"}</tool_call>? Yes.\n</think>\n\nI will look. é\n"
       "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\", \"days\": "
       "3}}\n</tool_call>\n"
       "<tool_call>\n{\"name\": \"get_time\", \"arguments\": {}}\n</tool_call>\nDone.",
       {"Should I write <tool_call>{\"name\": \"f\"}</tool_call>? Yes.",
        "I will look. é\nDone.",
        {kParisCall, kTimeCall}}},
      {"hermes: markers, brackets and quotes in a string",
       "hermes",
       "",
       false,
       "<tool_call>\n{\"name\": \"run\", \"arguments\": {\"code\": \"</tool_call> } \\\" ] <tool_call> "
       "世界\"}}\n</tool_call>",
       {"", "", {{"id0", "run", "{\"code\": \"</tool_call> } \\\" ] <tool_call> 世界\"}"}}}},
      {"hermes: one bracket too many, and one too few",
       "hermes",
       "",
       false,
       "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\", \"days\": "
       "3}}}\n</tool_call>\n"
       "<tool_call>\n{\"name\": \"run\", \"arguments\": {\"code\": \"x\"</tool_call>",
       {"", "", {kParisCall, {"id1", "run", "{\"code\": \"x\"}"}}}},
      {"hermes: arguments before the name, as a string, and not at all",
       "hermes",
       "",
       false,
       "<tool_call>{\"arguments\": {\"city\": \"Paris\", \"days\": 3}, \"name\": \"get_weather\"}</tool_call>"
       "<tool_call>{\"name\": \"run\", \"arguments\": \"{\\\"code\\\": \\\"x\\\"}\"}</tool_call>"
       "<tool_call>{\"name\": \"get_time\"}</tool_call>",
       {"", "", {kParisCall, {"id1", "run", "{\"code\": \"x\"}"}, {"id2", "get_time", "{}"}}}},
      {"hermes: a line break in a string",
       "hermes",
       "",
       false,
       "<tool_call>{\"name\": \"run\", \"arguments\": {\"code\": \"a\nb\"}}</tool_call>",
       {"", "", {{"id0", "run", "{\"code\": \"a\\nb\"}"}}}},
      {"hermes: no call",
       "hermes",
       "qwen3",
       false,
       "  Use <tool_call> and </tool_call>, or <tool_cal, \n",
       {"", "  Use <tool_call> and </tool_call>, or <tool_cal, \n", {}}},
      {"hermes: no calls in reasoning that has an end, calls in reasoning that has none",
       "hermes",
       "qwen3",
       true,
       "I call.\n<tool_call>\n{\"name\": \"get_time\", \"arguments\": {}}\n</tool_call>",
       {"I call.\n<tool_call>\n{\"name\": \"get_time\", \"arguments\": {}}\n</tool_call>",
        "",
        {{"id0", "get_time", "{}"}}}},
      {"hermes: the tags of another family",
       "qwen3_coder",
       "",
       false,
       "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\", \"days\": "
       "3}}\n</tool_call>",
       {"",
        "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\", \"days\": "
        "3}}\n</tool_call>",
        {}}},
      {"llama3_json: the whole turn",
       "llama3_json",
       "",
       false,
       "{\"name\": \"get_weather\", \"parameters\": {\"city\": \"Paris\", \"days\": 3}}; {\"name\": "
       "\"get_time\", \"parameters\": {}}",
       {"", "", {kParisCall, kTimeCall}}},
      {"llama3_json: a marker and a type",
       "llama3_json",
       "",
       false,
       "<|python_tag|>{\"type\": \"function\", \"name\": \"get_weather\", \"parameters\": {\"city\": "
       "\"Paris\", \"days\": 3}}",
       {"", "", {kParisCall}}},
      {"llama3_json: JSON that is no call",
       "llama3_json",
       "",
       false,
       "{\"name\": \"Bob\", \"age\": 3}",
       {"", "{\"name\": \"Bob\", \"age\": 3}", {}}},
      {"llama3_json: JSON behind text",
       "llama3_json",
       "",
       false,
       "As JSON: {\"name\": \"get_time\", \"parameters\": {}}",
       {"", "As JSON: {\"name\": \"get_time\", \"parameters\": {}}", {}}},
      {"granite: an array",
       "granite",
       "granite",
       false,
       "Here is my thought process:\nHm.\nHere is my response:\n<|tool_call|>[{\"name\": \"get_weather\", "
       "\"arguments\": "
       "{\"city\": \"Paris\", \"days\": 3}}, {\"name\": \"get_time\", \"arguments\": {}}]",
       {"Hm.", "", {kParisCall, kTimeCall}}},
      {"phi4_mini_json: functools",
       "phi4_mini_json",
       "",
       false,
       "functools[{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\", \"days\": 3}}]",
       {"", "", {kParisCall}}},
      {"phi4_mini_json: Python's functools",
       "phi4_mini_json",
       "",
       false,
       "import functools\n@functools.cache",
       {"", "import functools\n@functools.cache", {}}},
      {"jamba: an array",
       "jamba",
       "",
       false,
       "<tool_calls>[\n  {\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\", \"days\": "
       "3}}\n]</tool_calls>",
       {"", "", {kParisCall}}},
      {"jamba: one object a line",
       "jamba",
       "",
       false,
       "<tool_calls>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\", \"days\": 3}}\n"
       "{\"name\": \"get_time\", \"arguments\": {}}\n</tool_calls> {Done}",
       {"", " {Done}", {kParisCall, kTimeCall}}},
      {"nemotron_json: an array",
       "nemotron_json",
       "",
       false,
       "<TOOLCALL>[{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\", \"days\": "
       "3}}]</TOOLCALL>",
       {"", "", {kParisCall}}},
      {"mistral: an array with ids",
       "mistral",
       "mistral",
       false,
       "[THINK]Let me see.[/THINK][TOOL_CALLS] [{\"name\": \"get_weather\", \"arguments\": {\"city\": "
       "\"Paris\", \"days\": 3}, "
       "\"id\": \"abcdefGH1\"}, {\"id\": \"abcdefGH2\", \"name\": \"get_time\", \"arguments\": {}}]",
       {"Let me see.", "", {kParisCall, {"abcdefGH2", "get_time", "{}"}}}},
      {"json: forced calls",
       "json",
       "qwen3",
       true,
       "Hm.</think>\n\n[{\"name\": \"get_weather\", \"parameters\": {\"city\": \"Paris\", \"days\": 3}}, "
       "{\"name\": \"get_time\", \"parameters\": {}}]",
       {"Hm.", "", {kParisCall, kTimeCall}}},
  };
}

std::vector<RecordedTurn> NamedTurns() {
  return {
      {"mistral_v11: two calls",
       "mistral_v11",
       "",
       false,
       "Sure.[TOOL_CALLS]get_weather[ARGS]{\"city\": \"Paris\", \"days\": 3}[TOOL_CALLS]get_time[ARGS]{}",
       {"", "Sure.", {kParisCall, kTimeCall}}},
      {"mistral_v11: an id, and no [ARGS]",
       "mistral_v11",
       "",
       false,
       "[TOOL_CALLS]get_weather[CALL_ID]abcdefGH1[ARGS]{\"city\": \"Paris\", \"days\": "
       "3}[TOOL_CALLS]get_time{}",
       {"", "", {{"abcdefGH1", "get_weather", kParis}, kTimeCall}}},
      {"mistral_v11: the older form",
       "mistral_v11",
       "",
       false,
       "[TOOL_CALLS][{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\", \"days\": 3}}]",
       {"", "", {kParisCall}}},
      {"deepseek_v3: fenced",
       "deepseek_v3",
       "deepseek_r1",
       true,
       "Hm.\n</think>\n\nOne "
       "moment.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n"
       "{\"city\": \"Paris\", \"days\": "
       "3}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>get_time\n"
       "```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
       {"Hm.", "One moment.", {kParisCall, kTimeCall}}},
      {"deepseek_v31: bare",
       "deepseek_v31",
       "",
       false,
       "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{\"city\": \"Paris\", \"days\": "
       "3}<｜tool▁call▁end｜>"
       "<｜tool▁call▁begin｜>get_time<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
       {"", "", {kParisCall, kTimeCall}}},
      {"kimi_k2: ids count",
       "kimi_k2",
       "kimi_k2",
       false,
       "<think>Hm.</think>I "
       "look.<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:4<|tool_call_argument_"
       "begin|>"
       "{\"city\": \"Paris\", \"days\": 3}<|tool_call_end|><|tool_call_begin|>functions.get_time:5"
       "<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>",
       {"Hm.",
        "I look.",
        {{"functions.get_weather:4", "get_weather", kParis}, {"functions.get_time:5", "get_time", "{}"}}}},
      {"gemma4: every type",
       "gemma4",
       "gemma4",
       false,
       "<|channel>thought\nHm.<channel|><|tool_call>call:get_weather{city:<|\"|>Par{is, "
       "\"x\"<|\"|>,days:3,detailed:true,"
       "options:{a:[1,<|\"|>b<|\"|>],c:null}}<tool_call|><|tool_call>call:get_time{}<tool_call|>",
       {"Hm.",
        "",
        {{"id0", "get_weather",
          "{\"city\": \"Par{is, \\\"x\\\"\", \"days\": 3, \"detailed\": true, \"options\": {\"a\": [1, "
          "\"b\"], \"c\": null}}"},
         kTimeCall}}},
      {"functiongemma",
       "functiongemma",
       "",
       false,
       "<start_function_call>call:get_weather{city:<escape>Paris<escape>,days:3}<end_function_call>",
       {"", "", {kParisCall}}},
  };
}

std::vector<RecordedTurn> TagTurns() {
  const char* const every_type =
      R"({"city": "Paris", "days": 3, "detailed": true, "tags": ["a", "b"], "options": {"x": 1}, "note": null})";
  return {
      {"qwen3_coder: every type",
       "qwen3_coder",
       "qwen3",
       true,
       "Hm.\n</think>\n\nI "
       "look.\n\n<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n"
       "<parameter=days>\n3\n</parameter>\n<parameter=detailed>\nTrue\n</"
       "parameter>\n<parameter=tags>\n[\"a\", \"b\"]\n"
       "</parameter>\n<parameter=options>\n{'x': "
       "1}\n</parameter>\n<parameter=note>\nNone\n</parameter>\n</function>\n"
       "</tool_call>\n<tool_call>\n<function=get_time>\n</function>\n</tool_call>",
       {"Hm.", "I look.", {{"id0", "get_weather", every_type}, kTimeCall}}},
      {"qwen3_coder: tags, quotes and line breaks in a string",
       "qwen3_coder",
       "",
       false,
       "<tool_call>\n<function=run>\n<parameter=code>\n\n  a = \"</parameter>\"\n<parameter>\n</function> "
       "<tool_call>\n\n"
       "</parameter>\n</function>\n</tool_call>\nDone.",
       {"",
        "\nDone.",
        {{"id0", "run",
          "{\"code\": \"\\n  a = \\\"</parameter>\\\"\\n<parameter>\\n</function> <tool_call>\\n\"}"}}}},
      {"qwen3_coder: without the outer marker",
       "qwen3_coder",
       "",
       false,
       "I "
       "look.\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n<parameter=days>\n3\n</"
       "parameter>\n</function>\n"
       "</tool_call>",
       {"", "I look.", {kParisCall}}},
      {"qwen3_coder: end tags that lack",
       "qwen3_coder",
       "",
       false,
       "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n<parameter=days>\n3\n</parameter>\n</"
       "tool_call>\n"
       "<tool_call><function=run><parameter=code>x</function></tool_call>",
       {"", "", {kParisCall, {"id1", "run", "{\"code\": \"x\"}"}}}},
      {"qwen3_coder: a value that fits no type, and what no schema knows",
       "qwen3_coder",
       "",
       false,
       "<tool_call>\n<function=get_weather>\n<parameter=days>\nthree\n</parameter>\n<parameter=new>\n5\n</"
       "parameter>\n"
       "</function>\n<function=unknown>\n<parameter=n>\n5\n</parameter>\n</function>\n</tool_call>",
       {"",
        "",
        {{"id0", "get_weather", "{\"days\": \"three\", \"new\": \"5\"}"},
         {"id1", "unknown", "{\"n\": \"5\"}"}}}},
      {"qwen3_coder: no call",
       "qwen3_coder",
       "",
       false,
       "Write <tool_call> then.",
       {"", "Write <tool_call> then.", {}}},
      {"seed_oss",
       "seed_oss",
       "seed_oss",
       false,
       "<seed:think>Hm.</seed:think><seed:tool_call>\n<function=get_weather>\n<parameter=city>Paris</"
       "parameter>\n"
       "<parameter=days>3</parameter>\n</function>\n</seed:tool_call>",
       {"Hm.", "", {kParisCall}}},
      {"minimax_m2",
       "minimax_m2",
       "minimax_m2",
       true,
       "Hm.\n</think>\n\nI look.\n<minimax:tool_call>\n<invoke name=\"get_weather\">\n<parameter "
       "name=\"city\">Paris</parameter>\n"
       "<parameter name=\"days\">3</parameter>\n</invoke>\n<invoke "
       "name=\"get_time\">\n</invoke>\n</minimax:tool_call>",
       {"Hm.", "I look.", {kParisCall, kTimeCall}}},
      {"minimax_m2: a call's tag in text",
       "minimax_m2",
       "",
       false,
       "Write <invoke name=\"x\"></invoke>.",
       {"", "Write <invoke name=\"x\"></invoke>.", {}}},
      {"minimax_m3: elements within elements",
       "minimax_m3",
       "minimax_m3",
       false,
       "<mm:think>Hm.</mm:think>I look.\n]<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name=\"get_weather\">"
       "]<]minimax[>[<city>5 ]<]mini\"]<]minimax[>[</city>\n]<]minimax[>[<days>3]<]minimax[>[</days>"
       "]<]minimax[>[<tags>\n]<]minimax[>[<item>a]<]minimax[>[</item>]<]minimax[>[<item>7]<]minimax[>[</"
       "item>\n"
       "]<]minimax[>[</tags>]<]minimax[>[<options>]<]minimax[>[<depth>2]<]minimax[>[</"
       "depth>]<]minimax[>[<deep>"
       "]<]minimax[>[<x>1]<]minimax[>[</x>]<]minimax[>[</deep>]<]minimax[>[</options>]<]minimax[>[</invoke>\n"
       "]<]minimax[>[<invoke name=\"get_time\">\n]<]minimax[>[</invoke>\n]<]minimax[>[</tool_call>",
       {"Hm.",
        "I look.",
        {{"id0", "get_weather",
          "{\"city\": \"5 ]<]mini\\\"\", \"days\": 3, \"tags\": [\"a\", \"7\"], \"options\": "
          "{\"depth\": 2, \"deep\": {\"x\": \"1\"}}}"},
         kTimeCall}}},
      {"minimax_m3: end tags that lack, and values that were JSON",
       "minimax_m3",
       "",
       false,
       "]<]minimax[>[<tool_call>]<]minimax[>[<invoke name=\"get_weather\">]<]minimax[>[<tags>[\"a\"]"
       "]<]minimax[>[</tags>]<]minimax[>[<city>Par]<]minimax[>[</is>]<]minimax[>[</invoke>"
       "]<]minimax[>[<invoke name=\"get_weather\">]<]minimax[>[<tags>]<]minimax[>[</tags>]<]minimax[>[<days>3"
       "]<]minimax[>[</tool_call>Done.",
       {"",
        "Done.",
        {{"id0", "get_weather", "{\"tags\": [\"a\"], \"city\": \"Par]<]minimax[>[</is>\"}"},
         {"id1", "get_weather", "{\"tags\": [], \"days\": 3}"}}}},
      {"deepseek_v32: types in the tags",
       "deepseek_v32",
       "",
       false,
       "\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"get_weather\">\n<｜DSML｜parameter "
       "name=\"city\" string=\"true\">Paris"
       "</｜DSML｜parameter>\n<｜DSML｜parameter name=\"days\" "
       "string=\"false\">3</｜DSML｜parameter>\n</｜DSML｜invoke>\n"
       "<｜DSML｜invoke name=\"get_time\">\n</｜DSML｜invoke>\n</｜DSML｜function_calls>",
       {"", "", {kParisCall, kTimeCall}}},
      {"deepseek_v4: JSON in the place of tags",
       "deepseek_v4",
       "",
       false,
       "<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"get_weather\">\n{\"city\": \"Paris\", \"days\": "
       "3}\n</｜DSML｜invoke>\n"
       "</｜DSML｜tool_calls>",
       {"", "", {kParisCall}}},
      {"glm45: line breaks",
       "glm45",
       "glm45",
       false,
       "\n<think>Hm.</think>\nI "
       "look.\n<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n"
       "<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>\n<tool_call>get_time\n</tool_call>",
       {"Hm.", "I look.", {kParisCall, kTimeCall}}},
      {"glm47: no line breaks, and an end tag in a string",
       "glm47",
       "",
       false,
       "<tool_call>run<arg_key>code</arg_key><arg_value>\na</arg_value>b\n</arg_value></tool_call>",
       {"", "", {{"id0", "run", "{\"code\": \"\\na</arg_value>b\\n\"}"}}}},
      {"glm45: no call",
       "glm45",
       "",
       false,
       "<tool_call>Hello you</tool_call>",
       {"", "<tool_call>Hello you</tool_call>", {}}},
  };
}

std::vector<RecordedTurn> PythonicTurns() {
  return {
      {"pythonic: a list",
       "pythonic",
       "",
       false,
       "[get_weather(city=\"Paris\", days=3), get_time()]",
       {"", "", {kParisCall, kTimeCall}}},
      {"pythonic: a value that is no literal",
       "pythonic",
       "",
       false,
       "[run(code=[1, f(2)], b=3)]",
       {"", "(2)], b=3)]", {{"id0", "run", "{\"code\": [1, \"f\"]}"}}}},
      {"pythonic: values",
       "pythonic",
       "",
       false,
       R"PY([run(code='it\'s "x"\n\x41\u00e9 ])', a=-1.5, b=True, c=None, d=[1, {'k': False}], e={}, f=1_000, g="", h="""a"b""",)])PY",
       {"",
        "",
        {{"id0", "run",
          R"J({"code": "it's \"x\"\n\u0041\u00e9 ])", "a": -1.5, "b": true, "c": null, "d": [1, {"k": false}], "e": {}, "f": 1000, "g": "", "h": "a\"b"})J"}}}},
      {"pythonic: a list that holds no calls",
       "pythonic",
       "",
       false,
       "[1] See [get_time] (x=1) and [f(1)].",
       {"", "[1] See [get_time] (x=1) and [f(1)].", {}}},
      {"llama4_pythonic: markers",
       "llama4_pythonic",
       "",
       false,
       "I look.<|python_start|>[get_weather(city=\"Paris\", days=3), get_time()]<|python_end|>",
       {"", "I look.", {kParisCall, kTimeCall}}},
      {"llama4_pythonic: none",
       "llama4_pythonic",
       "",
       false,
       "[get_weather(city=\"Paris\", days=3)]",
       {"", "", {kParisCall}}},
      {"olmo3: one call a line",
       "olmo3",
       "olmo3",
       false,
       "<think>Hm.</think><function_calls>\nget_weather(city=\"Paris\", "
       "days=3)\nget_time()\n</function_calls>",
       {"Hm.", "", {kParisCall, kTimeCall}}},
      {"lfm2: a list",
       "lfm2",
       "",
       false,
       "<|tool_call_start|>[get_weather(city=\"Paris\", days=3), get_time()]<|tool_call_end|>I look.",
       {"", "I look.", {kParisCall, kTimeCall}}},
      {"lfm2: JSON",
       "lfm2",
       "",
       false,
       "<|tool_call_start|>[{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\", \"days\": "
       "3}}]<|tool_call_end|>",
       {"", "", {kParisCall}}},
  };
}

// Formats of vLLM's list that few families write.
std::vector<RecordedTurn> MoreTurns() {
  return {
      {"ernie45: an answer in tags, and a call",
       "hermes",
       "ernie45",
       true,
       "Hm.\n</think>\n\n<response>\nI look.\n</response>\n\n<tool_call>\n{\"name\": \"get_weather\", "
       "\"arguments\": {\"city\": \"Paris\", \"days\": 3}}\n</tool_call>\n",
       {"Hm.", "I look.", {kParisCall}}},
      {"hunyuan_a13b: an answer in tags",
       "",
       "hunyuan_a13b",
       false,
       "<think>\nHm.\n</think>\n<answer>\nUse <answer> and\n\n</response>.\n</answer>",
       {"Hm.", "Use <answer> and\n\n</response>.", {}}},
      {"hunyuan_a13b: an end of an answer that no tag began",
       "",
       "hunyuan_a13b",
       false,
       "Yes.\n</answer> No.",
       {"", "Yes.\n</answer> No.", {}}},
      {"longcat",
       "longcat",
       "",
       false,
       "I look.\n<longcat_tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\", "
       "\"days\": 3}}\n</longcat_tool_call>\n<longcat_tool_call>{\"name\": \"get_time\", \"arguments\": "
       "{}}</longcat_tool_call>",
       {"", "I look.", {kParisCall, kTimeCall}}},
      {"granite-20b-fc: no end markers",
       "granite-20b-fc",
       "",
       false,
       "<function_call> {\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\", \"days\": 3}} "
       "<function_call> {\"name\": \"get_time\", \"arguments\": {}}",
       {"", "", {kParisCall, kTimeCall}}},
      {"internlm",
       "internlm",
       "",
       false,
       "I look.<|action_start|><|plugin|>\n{\"name\": \"get_weather\", \"parameters\": {\"city\": \"Paris\", "
       "\"days\": 3}}<|action_end|>",
       {"", "I look.", {kParisCall}}},
      {"gigachat3: both ways to begin a call",
       "gigachat3",
       "",
       false,
       "I look.<|message_sep|>\n\nfunction call<|role_sep|>\n{\"name\": \"get_weather\", \"arguments\": "
       "{\"city\": \"Paris\", \"days\": 3}}<|function_call|>{\"name\": \"get_time\", \"arguments\": {}}",
       {"", "I look.", {kParisCall, kTimeCall}}},
      {"xlam: an array",
       "xlam",
       "qwen3",
       true,
       "Hm.</think>[{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\", \"days\": 3}}, "
       "{\"name\": "
       "\"get_time\", \"arguments\": {}}]",
       {"Hm.", "", {kParisCall, kTimeCall}}},
      {"xlam: a block of code",
       "xlam",
       "",
       false,
       "I look:\n```json\n[{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\", \"days\": "
       "3}}]\n```",
       {"", "I look:", {kParisCall}}},
      {"xlam: JSON that is no call",
       "xlam",
       "",
       false,
       "```json\n[1, 2]\n``` and `x`",
       {"", "```json\n[1, 2]\n``` and `x`", {}}},
      {"xlam: an object with a name that is no call",
       "xlam",
       "",
       false,
       "```json\n{\"name\": \"Alice\", \"age\": 3}\n```",
       {"", "```json\n{\"name\": \"Alice\", \"age\": 3}\n```", {}}},
      {"apertus: the name is a key",
       "apertus",
       "apertus",
       false,
       "<|inner_prefix|>Hm.<|inner_suffix|>I look.<|tools_prefix|>[{\"get_weather\": {\"city\": \"Paris\", "
       "\"days\": 3}}, {\"get_time\": {}}]<|tools_suffix|>",
       {"Hm.", "I look.", {kParisCall, kTimeCall}}},
      {"cohere_command3: an action",
       "cohere_command3",
       "cohere_command3",
       true,
       "Hm.<|END_THINKING|><|START_ACTION|>[\n    {\"tool_call_id\": \"0\", \"tool_name\": \"get_weather\", "
       "\"parameters\": {\"city\": \"Paris\", \"days\": 3}},\n    {\"tool_call_id\": \"1\", \"tool_name\": "
       "\"get_time\", \"parameters\": {}}\n]<|END_ACTION|>",
       {"Hm.", "", {kParisCall, kTimeCall}}},
      {"cohere_command3: an answer, begun by the prompt, too",
       "",
       "cohere_command3",
       false,
       "<|START_RESPONSE|> It is\n5.\n<|END_RESPONSE|>\n",
       {"", "It is\n5.", {}}},
      {"functionary_v31: JSON between tags",
       "functionary_v31",
       "",
       false,
       "I look.\n<function=get_weather>{\"city\": \"Paris\", \"days\": 3}</function><function=get_time>{}"
       "</function>",
       {"", "I look.", {kParisCall, kTimeCall}}},
      {"hy_v3",
       "hy_v3",
       "hy_v3",
       false,
       "<think>Hm.</think>I look.<tool_calls>\n<tool_call>get_weather<tool_sep>\n<arg_key>city</arg_key>\n"
       "<arg_value>Paris</arg_value>\n<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>\n"
       "<tool_call>get_time<tool_sep></tool_call>\n</tool_calls>",
       {"Hm.", "I look.", {kParisCall, kTimeCall}}},
      {"step3",
       "step3",
       "step3",
       true,
       "Hm.</think>I look.<｜tool_calls_begin｜>\n<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke "
       "name=\"get_weather\">\n<steptml:parameter "
       "name=\"city\">Paris</steptml:parameter>\n<steptml:parameter "
       "name=\"days\">3</steptml:parameter>\n</"
       "steptml:invoke><｜tool_call_end｜>\n<｜tool_call_begin｜>function"
       "<｜tool_sep｜><steptml:invoke name=\"get_time\">\n</steptml:invoke><｜tool_call_end｜>\n"
       "<｜tool_calls_end｜>",
       {"Hm.", "I look.", {kParisCall, kTimeCall}}},
      {"minicpm5",
       "minicpm5",
       "",
       false,
       "I look.\n<function name=\"get_weather\"><param name=\"city\">Paris</param><param "
       "name=\"days\">3</param>"
       "</function>\n<function name=\"get_time\"></function>",
       {"", "I look.", {kParisCall, kTimeCall}}},
      {"solar_open2",
       "solar_open2",
       "solar_open2",
       false,
       "<|think:start|>Hm.<|think:end|>I look.<|tool_call:start|>get_weather\n<|tool_arg:start|>city"
       "<|tool_arg:value|>Paris<|tool_arg:end|>\n<|tool_arg:start|>days<|tool_arg:value|>3<|tool_arg:end|>\n"
       "<|tool_call:end|>\n<|tool_call:start|>get_time\n<|tool_call:end|>",
       {"Hm.", "I look.", {kParisCall, kTimeCall}}},
      {"kimi_k3: every type, and a tool without parameters",
       "kimi_k3",
       "kimi_k3",
       true,
       "Hm.<|close|>think<|sep|><|open|>response<|sep|>I look.<|close|>response<|sep|><|open|>tools<|sep|>"
       "<|open|>call tool=\"get_weather\" index=\"0\"<|sep|><|open|>argument key=\"city\" "
       "type=\"string\"<|sep|>"
       "4<|close|>argument<|sep|><|open|>argument key=\"days\" "
       "type=\"number\"<|sep|>3<|close|>argument<|sep|>"
       "<|open|>argument key=\"new\" "
       "type=\"object\"<|sep|>{\"a\":1}<|close|>argument<|sep|><|close|>call<|sep|>"
       "<|open|>call tool=\"get_time\" index=\"1\"<|sep|><|close|>call<|sep|><|close|>tools<|sep|>"
       "<|close|>message<|sep|>",
       {"Hm.",
        "I look.",
        {{"id0", "get_weather", "{\"city\": \"4\", \"days\": 3, \"new\": {\"a\":1}}"}, kTimeCall}}},
      {"kimi_k3: an answer that the prompt has begun",
       "",
       "kimi_k3",
       false,
       "Yes.\n\nNo.\n<|close|>response<|sep|><|close|>message<|sep|>",
       {"", "Yes.\n\nNo.", {}}},
  };
}

std::vector<RecordedTurn> OtherTurns() {
  return {
      {"openai: analysis, preamble, calls",
       "openai",
       "openai_gptoss",
       false,
       "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary<|message|>I "
       "look.<|end|>"
       "<|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>"
       "{\"city\": \"Paris\", \"days\": 3}<|call|><|start|>assistant "
       "to=functions.get_time<|channel|>commentary json<|message|>{}",
       {"Hm.", "I look.", {kParisCall, kTimeCall}}},
      {"openai: analysis and answer",
       "openai",
       "openai_gptoss",
       false,
       "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>analysis<|message|>So.<|end|>"
       "<|start|>assistant<|channel|>final<|message|>It is\n5 < 6.<|return|>",
       {"Hm.\nSo.", "It is\n5 < 6.", {}}},
      {"openai: no tools",
       "",
       "openai_gptoss",
       false,
       "<|channel|>commentary to=functions.get_time<|message|>{}<|call|>",
       {"", "{}", {}}},
      {"openai: no channels",
       "openai",
       "",
       false,
       "to begin with: 5 < 6.",
       {"", "to begin with: 5 < 6.", {}}},
      {"openai: the answer of a prompt that has begun it",
       "openai",
       "openai_gptoss",
       true,
       "Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes.",
       {"Hm.", "Yes.", {}}},
      {"think: once more",
       "",
       "qwen3",
       true,
       "<think>\nHm.\n\nSo </thin.\n</think>\n</think>\n\nYes </think> <think>.\n",
       {"Hm.\n\nSo </thin.", "Yes </think> <think>.\n", {}}},
      {"think: empty", "hermes", "qwen3", false, "<think>\n\n</think>\n\nYes.", {"", "Yes.", {}}},
      {"cohere",
       "",
       "cohere_command3",
       false,
       "<|START_THINKING|>Hm.<|END_THINKING|>Yes.",
       {"Hm.", "Yes.", {}}},
      {"minimax_m3", "", "minimax_m3", false, "<mm:think>Hm.</mm:think>Yes.", {"Hm.", "Yes.", {}}},
  };
}

}  // namespace

const std::vector<RecordedTurn>& RecordedTurns() {
  static const auto* const turns = [] {
    auto* all = new std::vector<RecordedTurn>;
    for (auto* part : {&JsonTurns, &NamedTurns, &TagTurns, &PythonicTurns, &MoreTurns, &OtherTurns}) {
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
