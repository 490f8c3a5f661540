#pragma once
// How a sequence's sampling parameters change the logits before temperature, in the form that the ops of
// kernels/ops.h take, and in vLLM's order: allowed tokens, then bad words, min_tokens and logit bias;
// penalties count on the device.

#include <cstdint>
#include <vector>

#include "kernels/ops.h"
#include "worker/runner/batch_state.h"

namespace somnus {

// `num_tokens`: how many of the slot's tokens are before the sampled token.

// True when the sampled token is simply the likeliest token and nobody asks for the probability.
bool IsPlainGreedy(const Slot& slot, int32_t num_tokens);

// True when the slot's edits depend on the last tokens, which must then be known.
bool LooksAtTokens(const Slot& slot);

// Adds the slot's edits of logits row `row`, an edit per id.
void AppendEdits(const Slot& slot, int32_t num_tokens, int32_t row, std::vector<LogitEdit>* edits);

// Adds the slot's bitmap of allowed ids, (vocab_size + 31) / 32 words. allowed_token_ids is not empty.
void AppendAllowedMask(const Slot& slot, int32_t vocab_size, std::vector<uint32_t>* masks);

// The slot's penalties for kernels/ops.h; `index` is the slot's number, or -1: the row has none.
PenaltyRow PenaltyOf(const Slot& slot, int32_t index);

}  // namespace somnus
