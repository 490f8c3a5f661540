#include "coordinator/engine/recovery_book.h"

#include <utility>

namespace somnus {

bool RecoveryBook::MayRecover(MonotonicTime now) {
  while (!losses_.empty() && now - losses_.front() >= options_.recovery_window) losses_.pop_front();
  if (static_cast<int32_t>(losses_.size()) >= options_.max_recoveries) return false;
  losses_.push_back(now);
  return true;
}

RecoveryBook::Ended RecoveryBook::End(MonotonicTime now) {
  return {.was_under_way = std::exchange(under_way_, false),
          .was_restart = std::exchange(restarts_, false),
          .duration = now - began_};
}

bool RecoveryBook::Suspect(Sequence* sequence) const {
  sequence->num_tokens_at_failure = static_cast<int64_t>(sequence->tokens.size());
  sequence->runs_alone = ++sequence->num_failures >= options_.max_recoveries_per_request;
  return sequence->num_failures > options_.max_recoveries_per_request;
}

void RecoveryBook::Exonerate(Sequence* sequence) {
  // Two steps may have been in flight at the failure.
  constexpr int64_t kTokensInFlight = 2;
  if (sequence->num_failures == 0) return;
  if (static_cast<int64_t>(sequence->tokens.size()) <= sequence->num_tokens_at_failure + kTokensInFlight)
    return;
  sequence->num_failures = 0;
  sequence->runs_alone = false;
}

}  // namespace somnus
