#pragma once
// The use of host memory behind the KV cache: preemption by swap, and the host's prefix cache.
//
// Swap: a sequence waits with its blocks in host memory, and nothing is computed twice. Workers copy in the
// order of steps, so that blocks change hands on both sides as soon as a step is made. Only one thing is
// waited for: whether all ranks had memory for the blocks that were swapped out. No step swaps both ways.
//
// Prefix cache: steps that swap nothing in copy the cached blocks there that would be lost next
// (write-behind), and the step that admits a sequence copies back the blocks that the sequence begins with.
// Swapped sequences come first: the cache gives way for their blocks.
//
// State: the swaps of the step in the making, the sequences that are swapped out, the prices, and for how
// long nothing is swapped out after a refusal. The host blocks themselves are the block manager's:
// block_manager/host_blocks.h and swapped_sequences.h.
// Owned by the Scheduler; not thread safe.

#include <cstdint>
#include <vector>

#include "coordinator/block_manager/block_manager.h"
#include "coordinator/request/preemption_counts.h"
#include "coordinator/scheduler/fork_copies.h"
#include "coordinator/scheduler/preemption_cost.h"
#include "coordinator/scheduler/scheduler_options.h"
#include "coordinator/scheduler/sequence.h"
#include "coordinator/scheduler/step_builder.h"
#include "coordinator/scheduler/step_ledger.h"
#include "coordinator/scheduler/waiting_queue.h"

namespace somnus {

class HostTier {
 public:
  // All are borrowed; `counts` is where swaps are counted.
  HostTier(const SchedulerOptions& options, const StepLedger& ledger, BlockManager* blocks,
           ForkCopies* copies, SwapCounts* counts)
      : options_(options), ledger_(ledger), blocks_(*blocks), copies_(*copies), counts_(*counts) {}
  HostTier(const HostTier&) = delete;

  void SetPrices(const PreemptionPrices& prices) { prices_ = prices; }

  // Preemption. Whether sequences that are preempted together leave by swap; counts why not.
  bool Takes(const std::vector<SequencePtr>& all, PreemptionCause cause);
  // The next step swaps these sequences out, as Takes has said. The sequences have no blocks on the device
  // then.
  void SwapOut(const std::vector<SequencePtr>& all);
  // The content of a waiting sequence that is swapped out is computed again, or not needed any more.
  void OnForget(Sequence* sequence);
  // Forgets the contents of all sequences, the prefix cache, and the swaps of the step in the making.
  void ForgetAll(const WaitingQueue& waiting);

  // Admission. Whether the swapped ones of the sequences may come back in the step in the making, if there is
  // room.
  bool MayRun(const std::vector<SequencePtr>& all);
  // Swaps the swapped ones of the sequences in, which are suspended then. Returns how many sequences came
  // back; 0: there is no room, and nothing has changed.
  int32_t SwapIn(std::vector<SequencePtr> all, bool ignore_watermark);
  // Blocks that the step in the making would bring back are free again.
  void ForgetUnusedSwapIns();
  // To be called before a sequence takes blocks: whether the sequence may take blocks from the host's cache.
  void SetReadsCache(const Sequence& sequence);
  // To be called after a sequence has taken blocks: the step copies the blocks that the host's cache had.
  // `num_found`: the tokens that both levels of the cache had.
  void TakeHits(const Sequence& sequence, int64_t num_found);

  // Whether the step in the making swaps, either way.
  bool has_swaps() const { return !swap_outs_.empty() || !swap_ins_.empty(); }
  bool swaps_out() const { return !swap_outs_.empty(); }
  // Lets the step copy cached blocks to the host, if they may be lost soon.
  void StoreCached(int32_t num_running, StepBuilder* builder);
  void Send(StepBuilder* builder);
  void NoteReply(const InFlightStep& step, const v1::StepReply& reply);

  int32_t num_swapped() const { return num_swapped_; }
  // Internal unless the books of the waiting sequences agree with the block manager's.
  absl::Status CheckIntegrity(const WaitingQueue& waiting) const;

 private:
  SwapObstacle FindObstacle(const std::vector<SequencePtr>& all) const;
  // The computed tokens of sequences, and of their beams.
  std::vector<ComputedTokens> ComputedOf(const std::vector<SequencePtr>& all) const;
  bool UsesCache() const;
  bool HasPause() const { return ledger_.next_step() < swap_again_step_; }
  void NoteRefusal(const InFlightStep& step, int64_t pause);

  const SchedulerOptions& options_;
  const StepLedger& ledger_;
  BlockManager& blocks_;
  ForkCopies& copies_;
  SwapCounts& counts_;
  PreemptionPrices prices_;
  std::vector<BlockCopyOp> swap_outs_, swap_ins_;  // of the step in the making
  std::vector<SequencePtr> swapped_out_;           // by the step in the making
  int32_t num_swapped_ = 0;                        // waiting sequences
  int64_t swap_again_step_ = 0;                    // before this step nothing is swapped out
};

}  // namespace somnus
