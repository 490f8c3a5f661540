#pragma once
// Limits of messages between the coordinator and a worker. Both ends use these numbers, so that neither sends
// a message that the other end refuses: a refused message ends the step stream, and so the engine.

#include <cstdint>

namespace somnus {

// The largest message, either way, in bytes.
inline constexpr int kMaxWorkerMessageBytes = 64 << 20;

// The most bytes of a StepRequest that one new sequence may take, with its sampling parameters. A larger
// request is refused when it is submitted.
inline constexpr int64_t kMaxSequenceBytes = 32 << 20;

// A step that holds this many bytes of new sequences gets no further sequence, and a step that has this many
// bytes of prompt log-probabilities to report computes no more log-probabilities. A single sequence, and a
// single token, always fit. The rest of a message (slots, new blocks, sampled tokens) is bounded by the
// ranges of flags: at most 4,096 sequences, and 2^20 tokens and blocks of a few bytes each, far less than the
// largest message leaves.
inline constexpr int64_t kStepBytes = 4 << 20;

// The most bytes that a chunk of a tensor may carry; a client sends larger tensors in parts.
inline constexpr int kMaxWeightChunkBytes = 4 << 20;

// The most blocks of the KV cache that outlive a sleep: each takes at most 14 bytes of a transition.
inline constexpr int32_t kMaxKeptBlocks = 2 << 20;

// The most blocks that a step swaps: each takes at most 14 bytes of the step.
inline constexpr int32_t kMaxStepSwaps = 256 << 10;

// SlotError.slot of a step's swap_outs.
inline constexpr int32_t kSwapsSlot = -1;

// The most draft tokens of a step: each token takes a row of the logits that a worker samples from.
inline constexpr int32_t kMaxStepDraftTokens = 256;
// The most tokens that are guessed for a sequence at a time.
inline constexpr int32_t kMaxSpeculativeTokens = 64;

// The most adapters (LoRA) that a worker holds.
inline constexpr int32_t kMaxAdapters = 1024;

// The most alternatives per token that a worker reports.
inline constexpr int32_t kMaxStepLogprobs = 64;

}  // namespace somnus
