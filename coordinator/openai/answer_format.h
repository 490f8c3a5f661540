#pragma once
// How the chat answers of a request are taken apart into reasoning, content and tool calls. A value;
// immutable once a request has it.

#include "text/tools/tool_schemas.h"
#include "text/tools/turn_parser.h"

namespace somnus {

struct AnswerFormat {
  TurnFormat format;                // null where the request asks for no such parts
  TurnOptions options;              // where the answer begins, and the ids of its calls
  ToolSchemas schemas{{}};          // of the request's tools
  bool include_reasoning = true;    // false: reasoning is computed, and not shown
  bool parallel_tool_calls = true;  // false: the first call alone is shown
  bool ends_as_stop = false;        // a named call: finish_reason is "stop", as with OpenAI
  bool only_calls = false;          // a call is forced: a part of a call that was cut is no content
  bool legacy_functions = false;    // the call is told as `function_call` (legacy_functions.h)
};

}  // namespace somnus
