#include "tests/text_tools/recorded_tables.h"

namespace somnus {

std::vector<RecordedTurn> RareTurns() {
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

}  // namespace somnus
