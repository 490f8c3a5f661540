#include "tests/text_tools/recorded_tables.h"

namespace somnus {

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
      {"minimax_m3: a bracket behind the calls is content",
       "minimax_m3",
       "",
       false,
       "]<]minimax[>[<tool_call>]<]minimax[>[<invoke name=\"get_weather\">]<]minimax[>[<city>Paris"
       "]<]minimax[>[</city>]<]minimax[>[<days>3]<]minimax[>[</days>]<]minimax[>[</invoke>]<]minimax[>[</"
       "tool_call>"
       "} is a bracket.",
       {"", "} is a bracket.", {kParisCall}}},
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

}  // namespace somnus
