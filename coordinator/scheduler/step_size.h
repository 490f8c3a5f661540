#pragma once
// How many bytes a sequence adds to the messages of a step: bounds from above, cheap to compute, never below
// what protobuf writes. Stateless.

#include <cstdint>

#include "coordinator/request/request.h"

namespace somnus {

// The size of a StepSampling.
int64_t StepSamplingBytes(const SamplingParams& sampling);
// Returns the name of the field that takes most of a StepSampling.
const char* LargestSamplingField(const SamplingParams& sampling);

// The size of a NewSequence of `num_tokens` tokens and its ScheduledSequence, without sampling parameters.
int64_t NewSequenceBytes(int64_t num_tokens, int32_t block_size);

// The size of a SequenceFork of a sequence of `num_tokens` tokens.
int64_t SequenceForkBytes(int64_t num_tokens, int32_t block_size);

// The size of one position of a PromptLogprobs with `num_prompt_logprobs` alternatives.
int64_t PromptLogprobBytes(int32_t num_prompt_logprobs);

// The size of a PooledState of `width` numbers.
int64_t PooledStateBytes(int64_t width);

}  // namespace somnus
