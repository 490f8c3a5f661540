#pragma once
// Between the scheduler's types and the step messages of proto/worker.proto. Stateless.

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "coordinator/scheduler/sequence.h"
#include "proto/worker.pb.h"

namespace somnus {

// `sequence` whole, as the workers see it for the first time or again after a preemption.
void FillNewSequence(const Sequence& sequence, const std::vector<int32_t>& block_ids,
                     v1::NewSequence* message);

Logprobs FromMessage(const v1::StepLogprobs& message);

// Appends to `output` what the chunk [start, start + num_tokens) of `sequence`'s prompt decided and was not
// delivered before. `message` may be null when it decided nothing. Internal when it does not fit the chunk.
absl::Status DeliverPromptLogprobs(const v1::PromptLogprobs* message, int64_t start, int64_t num_tokens,
                                   Sequence* sequence, RequestOutput* output);

}  // namespace somnus
