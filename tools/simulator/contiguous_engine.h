#pragma once
// What the paper compares with: engines that keep the keys and values of a sequence in one contiguous piece
// of memory, which they reserve before its first step. No sequence is ever preempted, and nothing is shared:
// of n sequences each has the prompt, which is computed once and copied, at no cost.

#include <memory>

#include "tools/simulator/simulated_engine.h"

namespace somnus {

enum class Reservation {
  kOracle,  // the prompt and exactly as many outputs as will come
  kPow2,    // the prompt and the next power of two of the outputs
  kMax,     // the model's longest sequence
};

// How many slots one sequence reserves; at most max_model_len.
int64_t ReservedSlots(Reservation reservation, const LoadRequest& request, int32_t max_model_len);

// Orca: sequences join and leave the batch at every step. Requests are admitted first come, first served, as
// long as a buddy allocator has pieces for all sequences of the next one; its whole prompt is computed in the
// step that admits it, and a step has at most max_num_batched_tokens of prompts, or one prompt.
std::unique_ptr<SimulatedEngine> MakeOrcaEngine(const EngineOptions& options, Reservation reservation);

// FasterTransformer with a dynamic batcher in front of it: up to as many requests as the memory has room for
// at the model's longest length, the earliest first, are computed as one batch from the first prompt to the
// last output. Prompts are padded to the longest, a sequence that has ended is computed on, and requests end
// when the batch does.
std::unique_ptr<SimulatedEngine> MakeRequestBatchEngine(const EngineOptions& options);

}  // namespace somnus
