// The Scheduler's part for sequences whose time is over, or will be before they are served.

#include <algorithm>
#include <utility>
#include <vector>

#include "coordinator/scheduler/scheduler.h"

namespace somnus {

std::vector<ExpiredSequence> Scheduler::Expire(MonotonicTime now) {
  std::vector<ExpiredSequence> expired;
  while (expiries_.next() <= now) {
    const SequencePtr sequence = expiries_.first();
    Finish(sequence);
    expired.push_back({sequence, CauseOfExpiry(sequence->request, sequence->was_scheduled, now)});
  }
  return expired;
}

// The prompt of a fork is computed with its source's: where that is scheduled, it is on its way.
void Scheduler::NoteForkOnItsWay(const SequencePtr& fork) {
  fork->request.first_token_by = absl::InfiniteDuration();
  expiries_.Insert(fork);
}

int64_t Scheduler::BacklogOf(const Sequence& sequence) {
  int64_t own = sequence.num_to_compute();
  if (UsesPrefixCache(sequence) && !sequence.keeps_computed())
    own -= blocks_.CountCached(sequence.id, sequence.tokens, sequence.request.cache_salt);
  own = std::max<int64_t>(own, 1);
  const bool is_long = own > long_prefill_tokens_;
  const LongPrompt own_prompt = {&sequence, RankOf(sequence, own)};
  int64_t before = 0, beside = 0;
  const auto add = [&](const Sequence& other) {
    const int64_t num_tokens = other.num_to_compute();
    if (num_tokens <= 1) return;
    const bool is_overtaken = num_tokens > long_prefill_tokens_ &&
                              (!is_long || Overtakes(own_prompt, {&other, RankOf(other, num_tokens)}));
    (is_overtaken ? beside : before) += num_tokens;
  };
  for (const auto& [key, other] : running_) add(*other);
  const ServiceKey own_key = KeyOf(sequence);
  for (auto it = waiting_.begin(); it != waiting_.end() && it->first < own_key; ++it) {
    if (ForkSource(*it->second) == nullptr) add(*it->second);
  }
  before += own;
  // Long prompts do not hold up one that goes ahead of them: each gets at most its threshold of a step.
  const int64_t budget = options_.max_num_batched_tokens;
  const int64_t of_long = options_.max_long_partial_prefills * long_prefill_tokens_;
  if (of_long >= budget) return before + beside;
  return before + std::min(beside, before * of_long / (budget - of_long));
}

}  // namespace somnus
