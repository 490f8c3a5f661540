#pragma once
// Which suspended sequences have their blocks outlive a sleep of the KV cache (sleep level 1 with kept
// blocks).
//
// The order of calls is Choose, then ForgetUnkept once the sleep has happened and Restore once the blocks are
// on the device again. Abandon takes the choice back where the sleep did not happen. From the choice until
// Restore, Abandon or Scheduler::ForgetComputed no sequence may be running, and nothing may be scheduled.
// KeptBlocks knows the blocks, and HeldBlocks of each sequence whether all blocks of the sequence were
// chosen.
//
// Owned by the Scheduler, whose other parts are borrowed. Not thread safe.

#include <vector>

#include "coordinator/block_manager/block_manager.h"
#include "coordinator/scheduler/host_tier.h"
#include "coordinator/scheduler/live_sequences.h"
#include "coordinator/scheduler/scheduler_stats.h"
#include "coordinator/scheduler/step_ledger.h"

namespace somnus {

class KeptSequences {
 public:
  KeptSequences(const StepLedger& ledger, BlockManager* blocks, HostTier* host_tier, LiveSequences* sequences,
                SchedulerStats* stats)
      : ledger_(ledger), blocks_(*blocks), host_tier_(*host_tier), sequences_(*sequences), stats_(*stats) {}
  KeptSequences(const KeptSequences&) = delete;

  // Chooses blocks of suspended sequences in the order of service (KeptBlocks::Choose). No step may be in
  // flight.
  const std::vector<KeptBlock>& Choose(const KeepLimits& limits = {});
  // The device's other blocks are lost. `keeps_swapped`: the workers keep swapped blocks.
  void ForgetUnkept(bool keeps_swapped);
  void Restore();
  void Abandon();

 private:
  const StepLedger& ledger_;
  BlockManager& blocks_;
  HostTier& host_tier_;
  LiveSequences& sequences_;
  SchedulerStats& stats_;
};

}  // namespace somnus
