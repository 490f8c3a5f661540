#pragma once
// A self-check of the group, from the call of the executor to the judgement (wake_check.h).

#include <optional>

#include "base/monotonic.h"
#include "coordinator/engine/loop_access.h"
#include "coordinator/residency/self_check.h"

namespace somnus {

class CheckCall {
 public:
  bool under_way() const { return began_.has_value(); }
  void Begin(LoopAccess* loop);
  // Judges the result of a check that the ranks have carried out, and tells the observer. Not set: the ranks
  // have checked other weights, so that the group counts as lost.
  std::optional<SelfCheckOutcome> Judge(LoopAccess* loop, const SelfCheckResult& result);
  // The check is over, or the group was lost.
  void End() { began_.reset(); }

 private:
  std::optional<MonotonicTime> began_;
};

}  // namespace somnus
