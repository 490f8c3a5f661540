#pragma once
// Which prompts are long, and in which order equally urgent prompts are served: the prompt with the fewest
// tokens to compute first, where each step that a prompt has waited counts as an eighth of a step's budget
// computed (docs/scheduling.md). Pure.

#include <algorithm>
#include <cstdint>
#include <tuple>

#include "coordinator/scheduler/scheduler_options.h"
#include "coordinator/scheduler/sequence.h"

namespace somnus {

// A long prompt that a step does not complete, or passes over: other prompts have to overtake it.
struct LongPrompt {
  const Sequence* sequence;
  int64_t rank;
};

class LongPrompts {
 public:
  explicit LongPrompts(const SchedulerOptions& options)
      : threshold_(options.long_prefill_token_threshold > 0
                       ? options.long_prefill_token_threshold
                       : std::max(1, options.max_num_batched_tokens / 2)),
        step_tokens_(options.max_num_batched_tokens) {}

  // A prompt with more tokens to compute is long. A long prompt gets at most that many tokens of a step,
  // until no other prompt wants the rest.
  int64_t threshold() const { return threshold_; }
  bool IsLong(int64_t num_tokens) const { return num_tokens > threshold_; }

  // How early a prompt is served that has `num_tokens` to compute, the least first: each step of an earlier
  // arrival makes up for some tokens more.
  int64_t RankOf(const Sequence& sequence, int64_t num_tokens) const {
    constexpr int64_t kAging = 8;  // a step's wait is worth this part of the step's budget
    return num_tokens + sequence.arrival_step * step_tokens_ / kAging;
  }
  static bool Overtakes(const LongPrompt& a, const LongPrompt& b) {
    return a.rank < b.rank && !IsBehind(*a.sequence, *b.sequence);
  }
  // As ServiceKey, with the rank before the arrival.
  using Key = std::tuple<int64_t, int64_t, int64_t, int64_t>;
  static Key KeyOf(const Sequence& sequence, int64_t rank) {
    return {sequence.effective_priority, sequence.service, rank, sequence.id};
  }

 private:
  const int64_t threshold_;
  const int64_t step_tokens_;
};

}  // namespace somnus
