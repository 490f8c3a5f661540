#pragma once
// What the flags say of chat: which formats answers have. Values.

#include <string>

namespace somnus {

struct ChatFlags {
  // "auto": as the chat template says; "none"; or a name of text/tools/tool_format.h.
  std::string tool_call_parser = "auto";
  std::string reasoning_parser = "auto";
  bool auto_tool_choice = true;  // false: a model calls tools only where a request forces it to
};

}  // namespace somnus
