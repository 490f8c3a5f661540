#include "coordinator/scheduler/preemption_cost.h"

#include <algorithm>

namespace somnus {
namespace {

constexpr double kAssumedBytesPerSecond = 4e9;
constexpr double kAssumedBlocks = 32;  // the weight of that, in blocks that were copied
// The weight of a step once another step of the same kind has come: the last dozens count.
constexpr double kStepDecay = 0.95;
constexpr double kCopyDecay = 0.8;
// The share of the measured sums that a step without swaps forgets.
constexpr double kCopyForgets = 1e-3;

}  // namespace

bool SwapIsCheaper(const PreemptionPrices& prices, int64_t num_tokens, int64_t num_blocks) {
  const double recompute = prices.seconds_per_token * static_cast<double>(num_tokens);
  return 2 * prices.seconds_per_block * static_cast<double>(num_blocks) < recompute;
}

PreemptionCost::PreemptionCost(int64_t block_bytes)
    : assumed_seconds_(static_cast<double>(block_bytes) / kAssumedBytesPerSecond),
      copied_blocks_(kAssumedBlocks),
      copy_seconds_(kAssumedBlocks * assumed_seconds_) {}

void PreemptionCost::Steps::Add(double num_tokens, double duration) {
  weight = kStepDecay * weight + 1;
  tokens += (num_tokens - tokens) / weight;
  seconds += (duration - seconds) / weight;
}

void PreemptionCost::Observe(int64_t num_tokens, int64_t num_blocks, bool only_decodes, double seconds) {
  if (seconds <= 0) return;
  const auto tokens = static_cast<double>(num_tokens);
  if (num_blocks > 0) {
    copied_blocks_ = kCopyDecay * copied_blocks_ + static_cast<double>(num_blocks);
    copy_seconds_ = kCopyDecay * copy_seconds_ + std::max(0.0, seconds - StepSeconds(tokens));
  } else if (num_tokens > 0) {
    copy_seconds_ += kCopyForgets * (copied_blocks_ * assumed_seconds_ - copy_seconds_);
    (only_decodes ? decodes_ : prefills_).Add(tokens, seconds);
  }
}

// Between the means of the two kinds of steps. A prefill step that takes no longer than decodes tells
// nothing.
double PreemptionCost::TokenSeconds() const {
  if (prefills_.weight == 0) return 0;
  if (decodes_.weight == 0 || prefills_.tokens <= decodes_.tokens)
    return prefills_.seconds / prefills_.tokens;
  return std::max(0.0, (prefills_.seconds - decodes_.seconds) / (prefills_.tokens - decodes_.tokens));
}

double PreemptionCost::StepSeconds(double num_tokens) const {
  const Steps& near = decodes_.weight > 0 ? decodes_ : prefills_;
  return std::max(0.0, near.seconds + TokenSeconds() * (num_tokens - near.tokens));
}

PreemptionPrices PreemptionCost::prices() const { return {TokenSeconds(), copy_seconds_ / copied_blocks_}; }

}  // namespace somnus
