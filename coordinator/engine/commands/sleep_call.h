#pragma once
// A sleep of the group, from the call of the executor to the books of the group. A sleep for whose kept KV
// blocks the host has no memory is tried once more, and keeps nothing.

#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "coordinator/engine/loop_access.h"
#include "coordinator/residency/residency.h"
#include "coordinator/residency/transition_report.h"

namespace somnus {

class SleepCall {
 public:
  // `max_kept_bytes`: of host memory over all ranks for kept KV blocks; not set: as much as the host tier
  // has.
  explicit SleepCall(std::optional<int64_t> max_kept_bytes = std::nullopt)
      : max_kept_bytes_(max_kept_bytes) {}

  bool under_way() const { return changes_.has_value(); }
  void Begin(LoopAccess* loop, const SleepSpec& spec);
  // False: the sleep is tried once more, and a second result will come.
  bool OnResult(LoopAccess* loop, const absl::Status& status);
  // The group was lost. A sleep that was committed has happened.
  void OnLoss(LoopAccess* loop);

 private:
  const std::optional<int64_t> max_kept_bytes_;
  bool keeps_nothing_ = false;  // the host had no memory for blocks to keep
  SleepSpec spec_;
  std::optional<SleepSpec> changes_;  // with the tags that change, while the call is under way
};

}  // namespace somnus
