#pragma once
// The group of workers that serves one model, over all its epochs: launched, and made whole again after a
// failure. worker_group_epoch.cc says how an epoch is formed.
//
// The first epoch loads the model everywhere and decides the number of KV blocks, unless an earlier
// coordinator has left workers that hold both already. Each later epoch keeps the workers that reply to its
// Fence, with their weights; lost workers are replaced, and their successors load their shard and allocate as
// many blocks. An attempt that fails, because one more worker is lost meanwhile, is followed by another
// attempt, with a new epoch: nothing of an older epoch is ever used again.
//
// Ownership: owns the workers, the executor and a thread that forms the epochs after the first. Thread
// safety: Interrupt and RankStatuses are for any thread, everything else is for one thread.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "base/monotonic.h"
#include "checkpoint/model_config.h"
#include "coordinator/block_manager/kv_plan.h"
#include "coordinator/executor/grpc_executor.h"
#include "coordinator/flags/flags.h"
#include "coordinator/group/worker_pool.h"
#include "proto/control.pb.h"

namespace somnus {

class WorkerGroup {
 public:
  explicit WorkerGroup(const Flags& flags);
  ~WorkerGroup() { Stop(); }
  WorkerGroup(const WorkerGroup&) = delete;

  // Opens the listener and starts local workers, without waiting for their registration. `fingerprint` is the
  // checkpoint's (checkpoint/fingerprint.h): workers that an earlier coordinator left may go on only with the
  // same files. The error names the flag or the address at fault.
  absl::Status Start(const ModelConfig& config, int32_t max_model_len, const std::string& fingerprint);
  // As WorkerPool: Load loads nothing then.
  bool adopted() const { return pool_.adopted(); }
  // Forms the first epoch. The error names the rank that failed.
  absl::StatusOr<KvPlan> Load();
  // Makes any wait of Start, Load or a recovery end with `reason`, and the epoch, too.
  void Interrupt(const absl::Status& reason);
  // Ends the workers: by the Shutdown call, and local ones by SIGTERM and at last by SIGKILL. Idempotent.
  void Stop();
  // As Stop, but the workers stay, with weights and memory, for the next coordinator: local workers as
  // --run-dir and --worker-grace say, remote workers for their own --worker-grace.
  void Leave();

  // Where workers register: "unix:/path" or "host:port". After a successful Start.
  const std::string& cluster_address() const { return pool_.cluster_address(); }
  // The ranks' residency after a successful Load: everything, unless the workers were adopted asleep.
  const Residency& residency() const { return held_.residency; }
  // How many blocks of the KV cache have memory then, as of Held.
  int32_t num_mapped_blocks() const { return held_.num_mapped_blocks; }
  // The ranks' weights then.
  const Weights& weights() const { return held_.weights; }
  // The instruction set of all ranks, after a successful Load; empty on GPUs.
  std::string cpu_isa() const;
  // Null before a successful Load and after Stop.
  GrpcExecutor* executor() { return executor_.get(); }
  // How many workers have registered. On any thread.
  int NumCome() const { return pool_.NumCome(); }
  // Asks every rank for its status; may be called after a successful Load and before Stop. A rank that does
  // not reply within 2 seconds has `error` set.
  std::vector<v1::RankStatus> RankStatuses();

 private:
  using Snapshots = std::vector<v1::WorkerSnapshot>;
  // A recovery, or a restart of all workers; or, with an error, the end of the workers.
  struct Wanted {
    Held held;
    bool restart = false;
    absl::Status given_up;
  };

  // Once an epoch was formed, held_ is what its ranks hold: `held`, or what HeldAgain makes of `held`.
  absl::StatusOr<std::shared_ptr<GroupEpoch>> FormEpoch(Held held);
  absl::StatusOr<std::shared_ptr<GroupEpoch>> TryEpoch(Held* held, int max_starts);
  absl::Status FenceSurvivors();
  void BeginNumber();
  absl::Status CheckFenced(const GroupEpoch& epoch, const Snapshots& snapshots, const Held& held);
  void NoteAdopted(const Snapshots& snapshots);
  void SetCache(const KvPlan& plan);
  // Ranks without weights get the weights of held_.
  absl::Status LoadWeights(GroupEpoch* epoch, Snapshots* snapshots);
  absl::Status CheckFingerprints(const GroupEpoch& epoch, const Snapshots& snapshots);
  absl::Status AllocateCache(GroupEpoch* epoch, Snapshots* snapshots);
  absl::Status PlanCache(GroupEpoch* epoch, const Snapshots& snapshots);
  absl::Duration Patience() const;
  bool WorthAnotherTry(const absl::Status& error) const;
  void LogRanks(const Snapshots& snapshots, const std::vector<v1::ProfileResponse>& profiles) const;

  absl::Status Interruption() const;
  // The epoch that losses are reported to from now on; an error when the epoch must not go on.
  absl::Status SetCurrent(std::shared_ptr<GroupEpoch> epoch);
  void OnLoss(const absl::Status& reason);
  void OnStall(const absl::Status& stall);
  void HealLoop();
  void EndWorkers();
  // Local workers end, and hold nothing any more. False: the workers are remote, and stay, since this process
  // cannot start remote workers; or the group is being stopped; or a local worker has not ended.
  bool EndGivenUp();
  void EndHealing();
  void EndExecutor();

  const Flags flags_;
  ExecutorOptions options_;
  WorkerPool pool_;

  // Used by the thread that forms epochs.
  v1::LoadModelRequest load_request_;
  std::string group_name_;
  int64_t number_ = 0;             // of the last epoch
  bool loading_ = false;           // a worker may still be reading a shard
  bool refused_newcomer_ = false;  // in the last attempt: the newcomer had read other files
  std::string fingerprint_;        // of the group's checkpoint; empty: not known yet
  v1::KvCacheConfig cache_;        // num_blocks 0: not planned yet
  KvPlan plan_;
  Held held_;  // what the ranks of the last epoch hold

  mutable absl::Mutex mu_;
  std::unique_ptr<GrpcExecutor> executor_;  // set and reset under mu_
  absl::Status interruption_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<GroupEpoch> current_ ABSL_GUARDED_BY(mu_);  // being formed or served
  FailureLatch* fencing_ ABSL_GUARDED_BY(mu_) = nullptr;      // of the Fence calls under way
  std::optional<Wanted> wanted_ ABSL_GUARDED_BY(mu_);         // that is asked for
  bool stop_healing_ ABSL_GUARDED_BY(mu_) = false;
  StopSignal stop_;
  std::thread healer_;
};

}  // namespace somnus
