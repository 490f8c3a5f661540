#pragma once
// The flags about answers: which formats chat answers have, and how much grammars may cost. Values.

#include <string>

#include "coordinator/structured/gate_options.h"
#include "coordinator/structured/grammar_cache.h"
#include "coordinator/structured/grammar_limits.h"

namespace somnus {

struct ChatFlags {
  // "auto": as the chat template says; "none"; or a name of text/tools/tool_format.h.
  std::string tool_call_parser = "auto";
  std::string reasoning_parser = "auto";
  bool auto_tool_choice = true;         // false: a model calls tools only where a request forces it to
  std::string chat_template;            // in place of the model's own; empty: the model's own
  std::string default_template_kwargs;  // a JSON object: variables of the template; empty: none
  GateOptions gate;                     // of the schemas of structured outputs
  GrammarLimits grammar_limits;         // of structured outputs
  GrammarCache::Options grammar_cache;
};

}  // namespace somnus
