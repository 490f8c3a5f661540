#pragma once
// The engines that the paper compares with: an engine keeps the keys and values of a sequence in one
// contiguous piece of memory, reserved before the sequence's first step. No sequence is ever preempted, and
// nothing is shared: each of n sequences has its own copy of the prompt, which is computed once and copied at
// no cost.

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
// long as a buddy allocator has pieces for all sequences of the next request; the step that admits a request
// computes the whole prompt, and a step has at most max_num_batched_tokens of prompts, or one prompt.
std::unique_ptr<SimulatedEngine> MakeOrcaEngine(const EngineOptions& options, Reservation reservation);

// FasterTransformer with a dynamic batcher in front of it: up to as many requests as the memory has room for
// at the model's longest length, the earliest first, are computed as one batch from the first prompt to the
// last output. Prompts are padded to the longest, the computation of a sequence goes on after its end, and
// requests end with the batch.
std::unique_ptr<SimulatedEngine> MakeRequestBatchEngine(const EngineOptions& options);

}  // namespace somnus
