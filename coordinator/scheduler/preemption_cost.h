#pragma once
// The costs of preemptions by swap and by recompute, as measured from steps. A recompute takes the time in
// which the sequence's computed tokens are computed again; a swap takes the time in which the sequence's
// blocks are copied, out and in. Both are added to steps that are run anyway, so the fixed cost of a step is
// in neither, nor are the copies that a GPU makes beside a step.
//
// Pure: the caller has a clock, and says how long steps took. Not thread safe.

#include <cstdint>

namespace somnus {

struct PreemptionPrices {
  double seconds_per_token = 0;  // of a prompt; 0: not known
  double seconds_per_block = 0;  // copied between the KV cache and the host tier, one way
};

// False as long as no price of a token is known.
bool SwapIsCheaper(const PreemptionPrices& prices, int64_t num_tokens, int64_t num_blocks);

class PreemptionCost {
 public:
  // `block_bytes`: of a KV block on one rank. Until copies were measured, copies are assumed to run at 4
  // GB/s, and again after a thousand steps without copies: a copy that was slow once, since memory was taken
  // for the copy, does not end swapping for good.
  explicit PreemptionCost(int64_t block_bytes);

  // A step that computed `num_tokens` tokens and swapped `num_blocks` blocks. `only_decodes`: a token for
  // each of the step's sequences. A step that takes no time, or computes nothing, is passed over.
  void Observe(int64_t num_tokens, int64_t num_blocks, bool only_decodes, double seconds);
  PreemptionPrices prices() const;

 private:
  // Means of the last steps of a kind.
  struct Steps {
    double tokens = 0, seconds = 0, weight = 0;
    void Add(double num_tokens, double duration);
  };
  double TokenSeconds() const;
  double StepSeconds(double num_tokens) const;

  Steps decodes_, prefills_;             // without swaps
  const double assumed_seconds_;         // of a block
  double copied_blocks_, copy_seconds_;  // sums that decay, from the assumption on
};

}  // namespace somnus
