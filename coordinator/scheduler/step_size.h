#pragma once
// How many bytes a sequence adds to the messages of a step: bounds from above, cheap to compute, never below
// what protobuf writes. Stateless.

#include <cstdint>

#include "coordinator/request/request.h"

namespace somnus {

// A StepSampling.
int64_t StepSamplingBytes(const SamplingParams& sampling);
// The name of the field that makes up most of it.
const char* LargestSamplingField(const SamplingParams& sampling);

// A NewSequence of `num_tokens` tokens, and its ScheduledSequence, without its sampling parameters.
int64_t NewSequenceBytes(int64_t num_tokens, int32_t block_size);

// One position of a PromptLogprobs with `num_prompt_logprobs` alternatives.
int64_t PromptLogprobBytes(int32_t num_prompt_logprobs);

}  // namespace somnus
