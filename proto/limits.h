#pragma once
// What a message between the coordinator and a worker may hold. Both ends take these numbers from here, so
// that neither sends what the other refuses: a refused message ends the step stream, and with it the engine.

#include <cstdint>

namespace somnus {

// The largest message, either way, in bytes.
inline constexpr int kMaxWorkerMessageBytes = 64 << 20;

// What one new sequence may take of a StepRequest, with its sampling parameters. A request above is refused
// when it is submitted.
inline constexpr int64_t kMaxSequenceBytes = 32 << 20;

// A step that has this many bytes of new sequences gets no more of them, and one that has this many bytes of
// prompt log-probabilities to report computes no more of them. One sequence, and one token, always fit. What
// else a message holds (slots, new blocks, sampled tokens) is bounded by the flags' ranges: at most 4,096
// sequences and 2^20 tokens and blocks of a few bytes each, far less than what the largest message leaves.
inline constexpr int64_t kStepBytes = 4 << 20;

// Alternatives per token that a worker reports.
inline constexpr int32_t kMaxStepLogprobs = 64;

}  // namespace somnus
