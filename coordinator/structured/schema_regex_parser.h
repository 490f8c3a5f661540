#pragma once
// Reads patterns of JSON Schema (ECMA 262, by code points) into terms of a RegexArena. Pure function.

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "coordinator/structured/gate_options.h"
#include "coordinator/structured/schema_regex.h"

namespace somnus {

// Returns the language of all strings in which `pattern` is found: JSON Schema's patterns are searches, so a
// pattern without anchors gets any text before and after. InvalidArgument: the pattern is malformed, or has
// something that no regular language expresses or that depends on a mode (look-around, back references, \b,
// \p, flags, anchors in the middle); the message names the thing and its place.
absl::StatusOr<RegexId> ParsePattern(absl::string_view pattern, const RegexLimits& limits, RegexArena* arena);

// The same for a pattern that must match the whole text (structured_outputs.regex).
absl::StatusOr<RegexId> ParseWholePattern(absl::string_view pattern, const RegexLimits& limits,
                                          RegexArena* arena);

}  // namespace somnus
