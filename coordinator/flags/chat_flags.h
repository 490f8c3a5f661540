#pragma once
// What the flags say of answers: which formats chat answers have, and what grammars may cost. Values.

#include <cstdint>
#include <string>

#include "absl/time/time.h"

namespace somnus {

struct ChatFlags {
  // "auto": as the chat template says; "none"; or a name of text/tools/tool_format.h.
  std::string tool_call_parser = "auto";
  std::string reasoning_parser = "auto";
  bool auto_tool_choice = true;  // false: a model calls tools only where a request forces it to
  // Of structured outputs: compiled grammars that are kept, one grammar's compile, and the wait for a
  // compile.
  int64_t max_grammar_bytes = int64_t{512} << 20;
  int64_t max_compile_bytes = int64_t{256} << 20;
  absl::Duration max_compile_time = absl::Seconds(2);
  absl::Duration max_compile_wait = absl::Seconds(10);
};

}  // namespace somnus
