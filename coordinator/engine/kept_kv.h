#pragma once
// A KV cache that outlives a sleep of level 1 (options.keep_kv_on_sleep). Computed blocks stay
// where they are, on the device, unless the sleep releases the cache: then as much of the cache as fits is
// kept in the host tier, and a wake-up of the cache brings the kept blocks back. Everything else that ends a
// cache (a deeper sleep, a loss of the group) makes the scheduler forget the cache.
//
// The class itself keeps no state: the scheduler's block manager knows the kept blocks. Borrows options,
// scheduler and executor; for the loop thread.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "coordinator/block_manager/kept_block.h"
#include "coordinator/engine/engine_options.h"
#include "coordinator/executor/executor.h"
#include "coordinator/residency/residency.h"
#include "coordinator/scheduler/scheduler.h"

namespace somnus {

class KeptKv {
 public:
  KeptKv(const EngineOptions& options, Scheduler* scheduler, const Executor* executor)
      : options_(options), scheduler_(*scheduler), executor_(*executor) {}

  // A sleep like `spec` keeps computed blocks.
  bool KeptBy(const SleepSpec& spec) const;
  // The blocks that the host tier gets at a sleep with these changes. `max_bytes`: of host memory over all
  // ranks; not set: as much as the host tier has.
  HostTierBlocks Choose(const SleepSpec& changes, std::optional<int64_t> max_bytes);
  // As Choose, where the host had no memory for blocks to keep.
  HostTierBlocks ChooseNothing(const SleepSpec& changes) const;
  // Bytes of host memory over all ranks that a sleep of level 1 would take now, or a step later.
  int64_t KeepableBytes() const;
  // The blocks that a wake-up of these tags brings back.
  HostTierBlocks BroughtBackBy(const std::vector<std::string>& woken) const;
  // The sleep, or the wake-up, has happened.
  void NoteSlept(const SleepSpec& changes);
  void NoteWoken(const std::vector<std::string>& tags);
  // The sleep has not happened. True: the host had no memory for the blocks that should be kept.
  bool Abandon(const SleepSpec& changes, const absl::Status& error);
  // The cache sleeps, and host tiers have memory for kept blocks; `residency`: of the group.
  bool Holds(const Residency& residency) const;
  // A sleep like this, which has no tag to change, gives that memory up.
  bool DroppedBy(const SleepSpec& spec, const Residency& residency) const;

 private:
  const EngineOptions& options_;
  Scheduler& scheduler_;
  const Executor& executor_;
};

}  // namespace somnus
