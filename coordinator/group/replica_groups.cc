#include "coordinator/group/replica_groups.h"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/threads.h"
#include "coordinator/group/run_state.h"
#include "coordinator/group/served_weights.h"

namespace somnus {

ReplicaGroups::ReplicaGroups(const Flags& flags) : model_(flags.model), run_dir_path_(flags.run_dir) {
  for (int32_t i = 0; i < flags.data_parallel_size; ++i)
    groups_.push_back(std::make_unique<WorkerGroup>(OfReplica(flags, i)));
}

void ReplicaGroups::ForAll(const std::function<void(size_t)>& call) { RunTogether(groups_.size(), call); }

absl::Status ReplicaGroups::Named(size_t replica, const absl::Status& status) const {
  if (groups_.size() == 1) return status;
  return absl::Status(status.code(), absl::StrCat("replica ", replica, ": ", status.message()));
}

absl::Status ReplicaGroups::ErrorOf(size_t replica, const absl::Status& status) const {
  absl::MutexLock lock(&mu_);
  return interruption_.ok() ? Named(replica, status) : interruption_;
}

absl::Status ReplicaGroups::ForAllUntilError(const std::function<absl::Status(size_t)>& call) {
  absl::Mutex mu;
  absl::Status first;
  ForAll([&](size_t i) {
    const absl::Status status = call(i);
    if (status.ok()) return;
    {
      absl::MutexLock lock(&mu);
      if (!first.ok()) return;
      first = ErrorOf(i, status);
    }
    for (size_t other = 0; other < groups_.size(); ++other) {
      if (other != i) groups_[other]->Interrupt(status);
    }
  });
  return first;
}

absl::Status ReplicaGroups::Start(const ModelConfig& config, int32_t max_model_len,
                                  const std::string& fingerprint) {
  if (groups_.size() > 1 && !run_dir_path_.empty()) {
    ASSIGN_OR_RETURN(RunDir directory, RunDir::Open(run_dir_path_));
    run_dir_.emplace(std::move(directory));
    RETURN_IF_ERROR(EndWorkersOfOtherReplicas(*run_dir_, static_cast<int32_t>(groups_.size())));
  }
  const int64_t version = FirstWeightsVersion(run_dir_path_, model_);
  // All at once: each group waits for its own left workers.
  return ForAllUntilError(
      [&](size_t i) { return groups_[i]->Start(config, max_model_len, fingerprint, version); });
}

bool ReplicaGroups::adopted() const {
  return std::all_of(groups_.begin(), groups_.end(), [](const auto& group) { return group->adopted(); });
}

absl::StatusOr<std::vector<KvPlan>> ReplicaGroups::Load() {
  std::vector<KvPlan> plans(groups_.size());
  RETURN_IF_ERROR(ForAllUntilError([&](size_t i) -> absl::Status {
    ASSIGN_OR_RETURN(plans[i], groups_[i]->Load());
    return absl::OkStatus();
  }));
  RETURN_IF_ERROR(CheckCpuIsas());
  return plans;
}

// A request that goes on at another replica has to get the same tokens there.
absl::Status ReplicaGroups::CheckCpuIsas() const {
  if (groups_.size() == 1) return absl::OkStatus();
  const std::string first = groups_[0]->cpu_isa();
  for (size_t i = 1; i < groups_.size(); ++i) {
    if (groups_[i]->cpu_isa() == first) continue;
    return Named(i, absl::FailedPreconditionError(absl::StrCat(
                        "cpu_isa: it computes with ", groups_[i]->cpu_isa(), ", replica 0 with ", first,
                        ", which gives other tokens; SOMNUS_CPU_ISA chooses one that all hosts have")));
  }
  return absl::OkStatus();
}

void ReplicaGroups::Interrupt(const absl::Status& reason) {
  {
    absl::MutexLock lock(&mu_);
    if (interruption_.ok()) interruption_ = reason;
  }
  for (const auto& group : groups_) group->Interrupt(reason);
}

void ReplicaGroups::Stop() {
  ForAll([this](size_t i) { groups_[i]->Stop(); });
  if (!run_dir_.has_value()) return;
  for (const int32_t replica : run_dir_->Replicas()) {
    // Where a start was interrupted, workers of an earlier coordinator may still be there.
    std::error_code ignored;
    const std::string group = RunDir::GroupPath(RunDir::ReplicaPath(run_dir_->path(), replica));
    if (!std::filesystem::exists(group, ignored)) run_dir_->RemoveReplica(replica);
  }
  run_dir_.reset();  // another coordinator may use the directory from now on
}

void ReplicaGroups::Leave() {
  ForAll([this](size_t i) { groups_[i]->Leave(); });
  run_dir_.reset();
}

absl::StatusOr<ModelChecksums> ReplicaGroups::ChecksumWeights() {
  std::vector<absl::StatusOr<ModelChecksums>> by_replica(groups_.size());
  ForAll([&](size_t i) { by_replica[i] = groups_[i]->ChecksumWeights(); });
  ModelChecksums ranks;
  for (absl::StatusOr<ModelChecksums>& of_replica : by_replica) {
    RETURN_IF_ERROR(of_replica.status());
    for (RankChecksums& rank : *of_replica) ranks.push_back(std::move(rank));
  }
  return ranks;
}

std::vector<v1::RankStatus> ReplicaGroups::RankStatuses() {
  std::vector<std::vector<v1::RankStatus>> by_replica(groups_.size());
  ForAll([&](size_t i) { by_replica[i] = groups_[i]->RankStatuses(); });
  std::vector<v1::RankStatus> ranks;
  for (std::vector<v1::RankStatus>& of_replica : by_replica) {
    for (v1::RankStatus& rank : of_replica) ranks.push_back(std::move(rank));
  }
  return ranks;
}

}  // namespace somnus
