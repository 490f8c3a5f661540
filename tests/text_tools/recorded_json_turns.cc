#include "tests/text_tools/recorded_tables.h"

namespace somnus {

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

}  // namespace somnus
