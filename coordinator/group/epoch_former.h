#pragma once
// Forms the epochs of a group, from survivors, newcomers and adopted workers, and knows the state that the
// ranks of the last epoch hold: weights, KV cache, residency.
//
// The first epoch loads the model everywhere and decides the number of KV blocks, unless an earlier
// coordinator has left workers that hold both already. Each later epoch keeps the workers that reply to its
// Fence, with weights and cache; lost workers are replaced, and the successors load the shard and allocate as
// many blocks. An attempt that fails, because a further worker is lost meanwhile, is followed by a further
// attempt, with a new number: nothing of an older epoch is ever used again.
//
// Borrowed, and must outlive this object: flags, pool, current. Used by a single thread at a time.

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "coordinator/block_manager/kv_plan.h"
#include "coordinator/executor/executor_options.h"
#include "coordinator/executor/group_epoch.h"
#include "coordinator/flags/flags.h"
#include "coordinator/group/current_epoch.h"
#include "coordinator/group/worker_pool.h"
#include "proto/worker.pb.h"

namespace somnus {

class EpochFormer {
 public:
  EpochFormer(const Flags* flags, const ExecutorOptions& options, WorkerPool* pool, CurrentEpoch* current);

  // The load of a newcomer, but for the rank, and the reach of the model's queries (AttentionReachOf). To be
  // called before Form.
  void SetLoad(v1::LoadModelRequest request, int64_t attention_reach) {
    load_request_ = std::move(request);
    attention_reach_ = attention_reach;
  }
  // Forms the next epoch, of ranks that are to hold `held`. Before NoteServing: the first epoch, whose ranks
  // decide the state. The error names the rank that failed, or is an interruption.
  absl::StatusOr<std::shared_ptr<GroupEpoch>> Form(Held held);
  // The first epoch serves: from now on lost workers are replaced.
  void NoteServing();

  // Every rank of the epoch that is being formed, or was formed last, has weights. On any thread.
  bool has_weights() const { return has_weights_; }
  // The last epoch's number, which log lines name.
  int64_t number() const { return number_; }
  // The state that the ranks of the last formed epoch hold: `held` of Form after HeldAgain.
  const Held& held() const { return held_; }
  const KvPlan& plan() const { return plan_; }

 private:
  using Snapshots = std::vector<v1::WorkerSnapshot>;

  absl::StatusOr<std::shared_ptr<GroupEpoch>> TryEpoch(Held* held, int max_starts);
  bool WorthAnotherTry(const absl::Status& error) const;
  absl::Duration Patience() const;
  // A new number is later than any number that a worker has seen, of any coordinator.
  void BeginNumber();
  absl::Status FenceSurvivors();
  // Waits until every rank has a worker.
  absl::StatusOr<std::vector<WorkerLink>> AwaitWorkers();
  // Makes the workers an epoch, which the ranks may have no use for yet.
  absl::StatusOr<std::shared_ptr<GroupEpoch>> Connect(std::vector<WorkerLink> workers);
  absl::Status CheckFenced(const GroupEpoch& epoch, const Snapshots& snapshots, const Held& held);
  void NoteAdopted(const Snapshots& snapshots);
  void SetCache(const KvPlan& plan);
  // Ranks without weights get the weights of held_.
  absl::Status LoadWeights(GroupEpoch* epoch, Snapshots* snapshots);
  absl::Status CheckFingerprints(const GroupEpoch& epoch, const Snapshots& snapshots);
  absl::Status AllocateCache(GroupEpoch* epoch, Snapshots* snapshots);
  // Ranks hold the adapters of held_, as far as all ranks can load these.
  absl::Status SetAdapters(GroupEpoch* epoch, Held* held);
  absl::Status PlanCache(GroupEpoch* epoch, const Snapshots& snapshots);
  void LogRanks(const Snapshots& snapshots, const std::vector<v1::ProfileResponse>& profiles) const;

  const Flags& flags_;
  const ExecutorOptions options_;
  WorkerPool& pool_;
  CurrentEpoch& current_;
  const std::string group_name_;  // unique on all hosts

  v1::LoadModelRequest load_request_;
  int64_t attention_reach_ = 0;
  bool serves_ = false;   // NoteServing was called
  int64_t number_ = 0;    // of the last epoch
  bool loading_ = false;  // a worker may still be reading a shard
  std::atomic<bool> has_weights_{false};
  bool refused_newcomer_ = false;  // in the last attempt: the newcomer had read other files
  std::string fingerprint_;        // of the group's checkpoint; empty: not known yet
  v1::KvCacheConfig cache_;        // num_blocks 0: not planned yet
  KvPlan plan_;
  Held held_;
};

}  // namespace somnus
