#pragma once
// The largest steps that a rank can be asked for, which run before the KV cache is sized. Pure functions.

#include <cstdint>

#include "proto/worker.pb.h"

namespace somnus {

// A prompt of num_tokens in slot 0, with total_blocks blocks.
v1::StepRequest LongestPrompt(int32_t num_tokens, int32_t total_blocks);

// A step of as many sequences as there may be, the first with every sampling parameter: every rank then
// gathers whole logits and runs all of sampling's code. The sequences share the null block
// (BatchState::AllowNullBlock), since nobody reads the results. Slot 0 held the prompt. `proposes`: there is
// a draft model.
v1::StepRequest WidestBatch(int32_t num_seqs, int32_t vocab_size, bool proposes);

}  // namespace somnus
