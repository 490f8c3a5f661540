#pragma once
// How deep brackets are nested in a schema, a pattern or a grammar: grammar engines recurse over all of them.
// Pure function.

#include <cstdint>

#include "absl/strings/string_view.h"

namespace somnus {

// How many brackets are open at once at most. A character after a backslash is no bracket. In JSON the
// brackets of a string count too, as a pattern stands in a string of its schema, and what a string opens ends
// with the string.
int64_t BracketDepth(absl::string_view text, bool json);

}  // namespace somnus
