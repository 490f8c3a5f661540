#pragma once
// One epoch of a group of workers (proto/worker.proto): the calls that form the epoch, the steps, and the
// first failure, which ends the epoch. A new epoch is a new object over the same workers or their successors.
//
// The first cause of a failure is kept (Health), everything under way is cancelled, and every later call
// returns the cause. A worker that died is blamed before workers that only noticed: when a call fails, the
// loss of a process has a moment to become known before the call's own error counts. A GroupMonitor watches
// what a blocking call cannot see; the owner of the workers reports a process that ended and a heartbeat that
// stayed away (ReportLoss).
//
// Thread safety: the calls that form the epoch and Shutdown are for one thread at a time, steps for one
// thread (the engine's), Sleep, WakeUp, SelfCheck and changes of the weights for one thread at a time
// (group_weights.h); Health, OnFailure, ReportLoss, RankStatuses and ChecksumWeights are for any
// thread.

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "coordinator/executor/collective_calls.h"
#include "coordinator/executor/executor_options.h"
#include "coordinator/executor/failure_latch.h"
#include "coordinator/executor/group_monitor.h"
#include "coordinator/executor/group_sleep.h"
#include "coordinator/executor/group_weights.h"
#include "coordinator/executor/step_streams.h"
#include "coordinator/executor/worker_link.h"
#include "coordinator/residency/residency.h"
#include "coordinator/residency/self_check.h"
#include "coordinator/residency/transition_report.h"
#include "proto/worker.pb.h"

namespace somnus {

// How many ranks take part.
size_t NumIn(const Ranks& ranks);

// Fences `workers`, all at once: a status or a snapshot for each. `latch` cancels the calls.
std::vector<absl::StatusOr<v1::WorkerSnapshot>> FenceWorkers(const std::vector<WorkerLink>& workers,
                                                             int64_t group_epoch, absl::Duration timeout,
                                                             FailureLatch* latch);

class GroupEpoch {
 public:
  // `workers`: by rank, at least one.
  GroupEpoch(int64_t number, std::vector<WorkerLink> workers, const ExecutorOptions& options);
  ~GroupEpoch();
  GroupEpoch(const GroupEpoch&) = delete;

  int64_t number() const { return number_; }
  const std::vector<WorkerLink>& workers() const { return workers_; }

  // Unavailable names the rank that cannot be reached; a failure ends the wait with its reason.
  absl::Status AwaitConnections();
  absl::StatusOr<std::vector<v1::WorkerSnapshot>> Fence();
  // `request` is the same for all ranks; the call fills in `parallel`. `progress` gets the bytes loaded and
  // the bytes to be loaded, summed over ranks; several threads call it, one at a time. An error cancels the
  // other ranks' loading. Returns each rank's last event.
  absl::StatusOr<std::vector<v1::LoadModelEvent>> LoadModel(
      const Ranks& ranks, const v1::LoadModelRequest& request,
      const std::function<void(int64_t, int64_t)>& progress);
  // `group_name` is of this epoch alone. FailedPrecondition names a rank that has another version of the
  // weights than rank 0, unless the ranks `may_differ`, since their weights are of no use.
  absl::Status JoinGroup(const std::string& group_name, bool may_differ = false);
  absl::StatusOr<std::vector<v1::ProfileResponse>> Profile();
  absl::Status AllocateKvCache(const Ranks& ranks, const v1::KvCacheConfig& config, bool defer_graphs);
  // As Executor::ResizeKvCacheAsync; blocks. A failed resize is undone; a rank that does not confirm that is
  // lost.
  absl::StatusOr<TransitionReport> ResizeKvCache(int32_t num_blocks, int32_t num_before);
  // As Executor::SetAdaptersAsync; blocks. A rank that does not confirm that a failed call is undone is lost.
  absl::StatusOr<TransitionReport> SetAdapters(const std::vector<HeldAdapter>& adapters,
                                               const std::vector<HeldAdapter>& kept);
  // As Executor::ReadAdaptersAsync; blocks. A failure of `cancelled` ends the call with the latch's status.
  // For any thread.
  absl::StatusOr<TransitionReport> ReadAdapters(const std::vector<HeldAdapter>& adapters,
                                                FailureLatch* cancelled);
  // SetAdapters on ranks that may hold any adapters; nothing is undone. The report has the fingerprints
  // alone.
  absl::StatusOr<TransitionReport> SetAdaptersOnAll(const std::vector<HeldAdapter>& adapters);
  // Brings every rank to `num_blocks` whose snapshot has a different number.
  absl::Status SetKvCacheSize(const std::vector<v1::WorkerSnapshot>& snapshots, int32_t num_blocks);
  // Brings every rank from its snapshot's state to `held`.
  absl::Status SetResidency(const std::vector<v1::WorkerSnapshot>& snapshots, const Residency& held) {
    return sleep_.SetResidency(snapshots, held);
  }

  // As Executor (executor.h) and GroupSleep say; Sleep and WakeUp block.
  absl::Status ExecuteAsync(v1::StepRequest* step);
  absl::Status SendMasks(v1::StepMasks masks);
  absl::StatusOr<v1::StepReply> Wait(absl::Duration timeout);
  absl::StatusOr<TransitionReport> Sleep(const SleepSpec& spec, const HostTierBlocks& host,
                                         std::atomic<bool>* committed) {
    return sleep_.Sleep(spec, host, committed);
  }
  absl::StatusOr<TransitionReport> WakeUp(const std::vector<std::string>& tags, bool reads_weights,
                                          const HostTierBlocks& host, std::atomic<bool>* committed) {
    return sleep_.WakeUp(tags, reads_weights, host, committed);
  }
  // As Executor::SelfCheckAsync; blocks.
  absl::StatusOr<SelfCheckResult> SelfCheck();
  GroupWeights* weights() { return &weights_; }
  // As Executor; thread safe.
  absl::Status Prefetch() const;
  absl::StatusOr<std::vector<RankNeed>> PlanWakeUp(const std::vector<std::string>& tags) const {
    return sleep_.PlanWakeUp(tags);
  }

  // A rank may still be reading weights again, for a wake-up or a reload. Thread safe.
  bool reads_weights() const { return sleep_.reads_weights() || weights_.reads_weights(); }
  // As StepStreams::MissingRanks. Thread safe.
  std::vector<size_t> missing_ranks() const { return streams_.MissingRanks(); }
  // Ok until the epoch has ended.
  absl::Status Health() const { return latch_.status(); }
  void OnFailure(std::function<void(absl::Status)> callback) { latch_.SetCallback(std::move(callback)); }
  // Ends the epoch. A rank is known to be lost, and `reason` names it ("rank 1 (pid 77) was killed by signal
  // 9"), or the epoch is not wanted any longer.
  void ReportLoss(const absl::Status& reason) { latch_.Fail(reason); }
  // Returns one entry per rank: an error where a rank does not reply within `timeout`.
  std::vector<absl::StatusOr<v1::WorkerStatusResponse>> RankStatuses(absl::Duration timeout);
  // Checksums of every rank's weights, while steps go on; an error where a rank has none, or does not reply.
  std::vector<absl::StatusOr<v1::ChecksumWeightsResponse>> ChecksumWeights();
  // The bytes that the ranks hold now, together: as a Sleep or a WakeUp that has just ended says, or else as
  // the ranks say when asked. An error, where a rank does not answer, has no consequences.
  absl::StatusOr<GroupBytes> Bytes();
  // Asks every worker to end, and waits for replies no longer than `timeout`. Nothing may be called
  // afterwards.
  void Shutdown(absl::Duration timeout);

 private:
  // How each rank joins the epoch's group.
  absl::StatusOr<std::vector<v1::ParallelConfig>> NewGroup(const std::string& group_name);
  // Of the ranks in `makers`, in rank order.
  absl::StatusOr<std::vector<std::string>> MakeNcclIds(const Ranks& makers);
  absl::Status OpenPorts(v1::ParallelConfig* parallel);
  v1::ParallelConfig Parallel() const;
  absl::Status AwaitConnection(const WorkerLink& worker, MonotonicTime deadline);
  absl::StatusOr<std::vector<v1::ResizeKvCacheResponse>> ResizeRanks(const Ranks& ranks, int32_t num_blocks);

  const int64_t number_;
  const ExecutorOptions options_;
  const std::vector<WorkerLink> workers_;
  FailureLatch latch_;
  const CollectiveCalls calls_;
  GroupSleep sleep_;
  GroupWeights weights_;
  StepStreams streams_;
  std::deque<int64_t> sent_;  // ids of steps not yet waited for; for the engine thread alone
  GroupMonitor monitor_;      // last: the monitor's thread ends before the parts that it watches
};

}  // namespace somnus
