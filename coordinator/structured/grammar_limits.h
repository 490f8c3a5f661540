#pragma once
// The bounds of a grammar's cost. Limits of the source come first: they cost nothing to check, and bound the
// work that a WorkMeter cannot end.

#include <cstdint>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "coordinator/structured/grammar.h"

namespace somnus {

struct GrammarLimits {
  int64_t source_bytes = int64_t{256} << 10;
  // Brackets of all sorts within each other, in strings and patterns too.
  int32_t depth = 128;
  // Characters of white space in a row within a JSON text, where the source allows any number; 0: no limit.
  // A weak model that writes spaces without an end fills its answer with them.
  int32_t max_whitespace = 40;
  // Branches of the rules that counted repetitions become (xgrammar_repetitions.h); others stay repetitions,
  // whose masks are slow.
  int64_t max_chain_branches = 1 << 16;
  // A compile, and the masks of a grammar. Times are those of the CPU.
  int64_t compile_bytes = int64_t{256} << 20;
  absl::Duration compile_time = absl::Seconds(1);
  // The sum over the calls of a matcher, with the masks that the calls make.
  int64_t matcher_bytes = int64_t{64} << 20;
  // One call of a matcher.
  absl::Duration step_time = absl::Milliseconds(500);
};

// InvalidArgument: the source is too long, too deep, has a byte of value 0, or an empty list of choices.
absl::Status CheckGrammarSource(const GrammarSource& source, const GrammarLimits& limits);

}  // namespace somnus
