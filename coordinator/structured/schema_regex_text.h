#pragma once
// Writes terms of a RegexArena as the `pattern` of a string, such that xgrammar 0.2.9 enforces exactly the
// term. Pure function.

#include <string>

#include "absl/status/statusor.h"
#include "coordinator/structured/schema_regex.h"

namespace somnus {

// Returns a pattern for a term without kAnd and kNot that has at least one string besides the empty one.
// ResourceExhausted: the pattern would have more than max_bytes.
//
// xgrammar compiles a pattern in one of two ways. A pattern of ASCII characters becomes an automaton, which
// never matches characters that JSON must escape, unrolls repetitions at quadratic cost, and accepts too much
// where a loop ends an optional group. Any other pattern becomes grammar rules over the JSON text itself,
// with counted repetitions. So the term is written over the JSON text, with one escape for each character
// that JSON escapes, and with a repetition of a character beyond ASCII by zero, which has no effect but to
// choose the second way.
absl::StatusOr<std::string> XgrammarPattern(RegexId id, size_t max_bytes, RegexArena* arena);

// The strings of a term without kAnd and kNot that have no character which JSON escapes.
RegexId WithoutEscapes(RegexId id, RegexArena* arena);

// Writes the term as an ordinary anchored pattern over characters.
absl::StatusOr<std::string> PlainPattern(RegexId id, size_t max_bytes, const RegexArena& arena);

}  // namespace somnus
