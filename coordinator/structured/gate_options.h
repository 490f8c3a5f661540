#pragma once
// Bounds of the schemas, patterns and choices that requests send, before a grammar is made. Plain data; each
// is a flag of the coordinator.

#include <algorithm>
#include <cstdint>

namespace somnus {

// The bounds of a pattern.
struct RegexLimits {
  int32_t max_bytes = 4096;
  int32_t max_depth = 64;         // nested groups
  int32_t max_repeat = 100'000;   // a count within {}
  int32_t max_alternatives = 64;  // branches that have anchors of their own
};

// Bounds of a schema's size and of the work on it. A schema beyond a bound is refused.
struct GateOptions {
  int64_t max_bytes = 1 << 20;       // text of a schema
  int32_t max_depth = 64;            // nesting of the schema's JSON
  int32_t max_values = 50'000;       // JSON values in the schema
  int32_t max_keys = 4096;           // keys of an object, and values of an enum
  int32_t max_name_bytes = 512;      // a property's name
  int32_t max_cases = 512;           // alternatives of one subschema, once combinations are multiplied out
  int32_t max_definitions = 20'000;  // different combinations of subschemas
  int64_t max_steps = 2'000'000;     // units of work, a few microseconds at most each
  int32_t max_regex_terms = 200'000;
  int32_t max_regex_states = 400;       // automaton of a combination of patterns
  int32_t max_pattern_bytes = 1 << 18;  // a pattern that the gate writes
  int64_t max_output_bytes = 4 << 20;   // the schema that the gate writes
  // Brackets within each other in it, and in a structural tag around it: at most GrammarLimits::depth.
  int64_t max_output_depth = 128;
  RegexLimits regex;
  int32_t max_choices = 10'000;  // texts of structured_outputs.choice
};

// The bounds of a schema that stands within so many further brackets.
inline GateOptions Within(GateOptions options, int64_t brackets) {
  options.max_output_depth = std::max<int64_t>(0, options.max_output_depth - brackets);
  return options;
}

}  // namespace somnus
