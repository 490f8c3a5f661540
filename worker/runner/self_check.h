#pragma once
// The self-check of a rank: a fixed prompt, and a fingerprint of the logits, which tells whether the weights
// and the tables in workspace compute the same as before a sleep. Pure functions.

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "worker/runner/batch_state.h"

namespace somnus {

// At most a block of tokens; the same on all ranks.
std::vector<int32_t> SelfCheckPrompt(const BatchLimits& limits);

// A hash of the bits of `values`.
uint64_t FingerprintOf(absl::Span<const float> values);

}  // namespace somnus
