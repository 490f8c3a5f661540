#pragma once
// The group of workers that serves one model, over all its epochs: launched, and made whole again after a
// failure. epoch_former.h says how an epoch is formed.
//
// Ownership: owns the workers, the executor and a thread that forms the epochs after the first. Thread
// safety: Interrupt, RankStatuses and ChecksumWeights are for any thread, everything else is for one thread.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "checkpoint/model_config.h"
#include "coordinator/block_manager/kv_plan.h"
#include "coordinator/executor/grpc_executor.h"
#include "coordinator/flags/flags.h"
#include "coordinator/group/current_epoch.h"
#include "coordinator/group/epoch_former.h"
#include "coordinator/group/worker_pool.h"
#include "coordinator/residency/rank_checksums.h"
#include "proto/control.pb.h"

namespace somnus {

class WorkerGroup {
 public:
  explicit WorkerGroup(const Flags& flags);
  ~WorkerGroup() { Stop(); }
  WorkerGroup(const WorkerGroup&) = delete;

  // Opens the listener and starts local workers, without waiting for their registration. `fingerprint` is the
  // checkpoint's (checkpoint/fingerprint.h): workers that an earlier coordinator left may go on only with the
  // same files and `weights_version`. The error names the flag or the address at fault.
  absl::Status Start(const ModelConfig& config, int32_t max_model_len, const std::string& fingerprint,
                     int64_t weights_version = 1);
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
  const Residency& residency() const { return former_.held().residency; }
  // How many blocks of the KV cache have memory then, as of Held.
  int32_t num_mapped_blocks() const { return former_.held().num_mapped_blocks; }
  // The ranks' weights then.
  const Weights& weights() const { return former_.held().weights; }
  // The instruction set of all ranks, after a successful Load; empty on GPUs.
  std::string cpu_isa() const;
  // Null before a successful Load and after Stop.
  GrpcExecutor* executor() { return executor_.get(); }
  // How many workers have registered. On any thread.
  int NumCome() const { return pool_.NumCome(); }
  // Whether all workers have weights, or get none since the group sleeps. On any thread.
  bool HasWeights() const { return former_.has_weights(); }
  // Asks every rank for its status; may be called after a successful Load and before Stop. A rank that does
  // not reply within 2 seconds has `error` set.
  std::vector<v1::RankStatus> RankStatuses();
  // The checksums of every rank's weights, all of one version; blocks, while steps go on. Errors: as of
  // WorkerService.ChecksumWeights; Unavailable: there is no group now.
  absl::StatusOr<ModelChecksums> ChecksumWeights();

 private:
  // A recovery, or a restart of all workers; or, with an error, the end of the workers.
  struct Wanted {
    Held held;
    bool restart = false;
    absl::Status given_up;
  };

  void OnStall(const absl::Status& stall);
  void HealLoop();
  void EndWorkers();
  // Local workers end, and hold nothing any more. False: the workers are remote, and stay, since this process
  // cannot start remote workers; or the group is being stopped; or a local worker has not ended.
  bool EndGivenUp();
  void EndHealing();
  void EndExecutor();

  const Flags flags_;
  CurrentEpoch current_;
  WorkerPool pool_;
  EpochFormer former_;  // used by the thread that forms epochs: the caller of Load, then healer_

  mutable absl::Mutex mu_;
  std::unique_ptr<GrpcExecutor> executor_;             // set and reset under mu_
  std::optional<Wanted> wanted_ ABSL_GUARDED_BY(mu_);  // asked for by the executor
  bool stop_healing_ ABSL_GUARDED_BY(mu_) = false;
  std::thread healer_;
};

}  // namespace somnus
