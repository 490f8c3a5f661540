#pragma once
// Reads patterns of JSON Schema (ECMA 262, by code points) into terms of a RegexArena. Pure function.

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "coordinator/structured/schema_regex.h"

namespace somnus {

struct RegexLimits {
  int32_t max_bytes = 4096;
  int32_t max_depth = 64;         // nested groups
  int32_t max_repeat = 100'000;   // a count within {}
  int32_t max_alternatives = 64;  // branches that have anchors of their own
};

// Returns the language of all strings in which `pattern` is found: JSON Schema's patterns are searches, so a
// pattern without anchors gets any text before and after. InvalidArgument: the pattern is malformed, or has
// something that no regular language expresses or that depends on a mode (look-around, back references, \b,
// \p, flags, anchors in the middle); the message names the thing and its place.
absl::StatusOr<RegexId> ParsePattern(absl::string_view pattern, const RegexLimits& limits, RegexArena* arena);

// The same for a pattern that must match the whole text (structured_outputs.regex).
absl::StatusOr<RegexId> ParseWholePattern(absl::string_view pattern, const RegexLimits& limits,
                                          RegexArena* arena);

}  // namespace somnus
