#pragma once
// Transitions, sleeps and wake-ups, over all ranks of an epoch, so that all ranks change or none
// (proto/worker.proto). Plan, Prepare, then Commit or Abort. Blocking; for one thread at a time.
//
// Deadlines come from the bytes that are moved and the speeds that were measured (transition_speeds.h). A
// sleep needs no Plan while the resident bytes are known: no rank moves more than these bytes, which bounds
// the deadlines. Whether a wake-up fits is asked anew every time.
//
// Until a transition is committed, an error leaves every rank where it was. From then on the transition has
// happened: a rank that does not confirm its Commit is lost, which fails the latch, and the former of the
// next epoch brings all ranks to where the transition leads. A rank that does not confirm its Abort is lost,
// too.

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordinator/block_manager/kept_block.h"
#include "coordinator/executor/collective_calls.h"
#include "coordinator/executor/executor_options.h"
#include "coordinator/executor/failure_latch.h"
#include "coordinator/executor/memory_check.h"
#include "coordinator/executor/transition_speeds.h"
#include "coordinator/residency/residency.h"
#include "coordinator/residency/transition_report.h"
#include "proto/worker.pb.h"

namespace somnus {

class GroupSleep {
 public:
  // All are borrowed. `workers`: by rank. `options` have speeds.
  GroupSleep(const CollectiveCalls* calls, FailureLatch* latch, const std::vector<WorkerLink>* workers,
             const ExecutorOptions& options)
      : calls_(*calls), latch_(*latch), workers_(*workers), options_(options) {}

  // `host`: as Executor::SleepAsync. `committed` is true from before the first rank is told to commit.
  // ResourceExhausted names the ranks that lack memory, and carries how much, by tag
  // (proto/missing_memory.h).
  absl::StatusOr<TransitionReport> Sleep(const SleepSpec& spec, const HostTierBlocks& host,
                                         std::atomic<bool>* committed);
  // `reads_weights`: as Executor::WakeUpAsync.
  absl::StatusOr<TransitionReport> WakeUp(const std::vector<std::string>& tags, bool reads_weights,
                                          const HostTierBlocks& host, std::atomic<bool>* committed);
  // As Executor::PlanWakeUp.
  absl::StatusOr<std::vector<RankNeed>> PlanWakeUp(const std::vector<std::string>& tags) const;
  // Brings every rank from its snapshot's state to `held`, but stale weights are only mapped.
  absl::Status SetResidency(const std::vector<v1::WorkerSnapshot>& snapshots, const Residency& held);
  // The resident bytes on the rank that has most.
  void NoteHeldBytes(int64_t most) { held_bytes_ = most; }
  // The resident bytes are not known any more.
  void ForgetHeldBytes() { held_bytes_.reset(); }
  // The bytes that the ranks hold, from their last Commits; returned once. nullopt: no new Commit.
  std::optional<GroupBytes> TakeCommittedBytes() { return std::exchange(committed_bytes_, std::nullopt); }
  // A rank may still be reading its weights. Thread safe.
  bool reads_weights() const { return reads_weights_.load(); }

 private:
  using Transitions = std::vector<std::optional<v1::Transition>>;  // by rank; nullopt: the rank is left alone
  using Plans = std::vector<v1::PlanResponse>;
  struct Timeouts {
    absl::Duration prepare, commit;
  };

  absl::StatusOr<TransitionReport> Run(const Transitions& transitions, std::atomic<bool>* committed);
  absl::StatusOr<Plans> Plan(const Transitions& transitions) const;
  // By rank. An account for each host, or pool of the host's memory, and for each GPU.
  std::vector<RankNeed> NeedsOf(const Plans& plans) const;
  absl::StatusOr<Timeouts> AskRanks(const Transitions& transitions, bool only_sleeps);
  Timeouts TimeoutsOf(const std::vector<TransitionSpeeds::Movement>& prepared, int64_t released) const;
  void NoteSpeeds(const TransitionReport& report, bool only_sleeps) const;
  absl::Status Prepare(const Transitions& transitions, uint64_t id, absl::Duration timeout) const;
  void NoteBytes(const TransitionReport& report);
  absl::StatusOr<TransitionReport> Commit(const Transitions& transitions, uint64_t id,
                                          absl::Duration timeout);
  void Abort(const Transitions& transitions, uint64_t id, absl::Duration timeout, const absl::Status& error);

  const CollectiveCalls& calls_;
  FailureLatch& latch_;
  const std::vector<WorkerLink>& workers_;
  const ExecutorOptions options_;
  std::optional<int64_t> held_bytes_;  // resident on the rank that has most; nullopt: not known
  std::optional<GroupBytes> committed_bytes_;
  std::vector<int64_t> copy_bytes_;  // by rank, as the last Plan says; empty: the transition had none
  std::atomic<bool> reads_weights_{false};
};

}  // namespace somnus
