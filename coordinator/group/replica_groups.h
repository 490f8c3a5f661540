#pragma once
// The groups of workers of all replicas (--data-parallel-size): started, loaded and ended together. Events in
// a single group in between are the business of the group's replica.
//
// With --run-dir and several replicas the directory is locked here, and each group has a directory of its own
// within.
//
// Ownership: owns the groups. Thread safety: Interrupt and RankStatuses are for any thread, everything else
// is for one thread.

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "base/run_dir.h"
#include "coordinator/group/worker_group.h"
#include "coordinator/residency/rank_checksums.h"

namespace somnus {

class ReplicaGroups {
 public:
  explicit ReplicaGroups(const Flags& flags);
  ~ReplicaGroups() { Stop(); }

  // Calls of WorkerGroup, for all groups; an error names the replica where there are several, but for the
  // reason of an Interrupt. A group that cannot start or load ends the start or load of all groups.
  absl::Status Start(const ModelConfig& config, int32_t max_model_len, const std::string& fingerprint);
  // Whether the workers of all groups were adopted.
  bool adopted() const;
  absl::StatusOr<std::vector<KvPlan>> Load();
  void Interrupt(const absl::Status& reason);
  void Stop();
  void Leave();
  std::vector<v1::RankStatus> RankStatuses();
  // Asks all groups. Returns the first error.
  absl::StatusOr<ModelChecksums> ChecksumWeights();
  // How many workers of all groups have registered. On any thread.
  int NumCome() const {
    int count = 0;
    for (const std::unique_ptr<WorkerGroup>& group : groups_) count += group->NumCome();
    return count;
  }

  // Whether the workers of all groups have weights, as WorkerGroup. On any thread.
  bool HasWeights() const {
    return std::all_of(groups_.begin(), groups_.end(), [](const auto& group) { return group->HasWeights(); });
  }

  const Residency& residency(size_t replica) const { return groups_[replica]->residency(); }
  int32_t num_mapped_blocks(size_t replica) const { return groups_[replica]->num_mapped_blocks(); }
  const Weights& weights(size_t replica) const { return groups_[replica]->weights(); }
  GrpcExecutor* executor(size_t replica) { return groups_[replica]->executor(); }

 private:
  // Runs `call` for every group, all at once where there are several.
  void ForAll(const std::function<void(size_t)>& call);
  // The first error, which also interrupts all other groups.
  absl::Status ForAllUntilError(const std::function<absl::Status(size_t)>& call);
  absl::Status CheckCpuIsas() const;
  absl::Status Named(size_t replica, const absl::Status& status) const;
  // The error of the replica's start or load, as callers get it.
  absl::Status ErrorOf(size_t replica, const absl::Status& status) const;

  const std::string model_;
  const std::string run_dir_path_;
  std::optional<RunDir> run_dir_;  // of several replicas
  std::vector<std::unique_ptr<WorkerGroup>> groups_;
  mutable absl::Mutex mu_;
  absl::Status interruption_ ABSL_GUARDED_BY(mu_);  // the first reason of Interrupt; ok: none
};

}  // namespace somnus
