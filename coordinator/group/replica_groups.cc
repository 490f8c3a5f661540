#include "coordinator/group/replica_groups.h"

#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/status_macros.h"

namespace somnus {

ReplicaGroups::ReplicaGroups(const Flags& flags) {
  for (int32_t i = 0; i < flags.data_parallel_size; ++i)
    groups_.push_back(std::make_unique<WorkerGroup>(OfReplica(flags, i)));
}

void ReplicaGroups::ForAll(const std::function<void(size_t)>& call) {
  std::vector<std::thread> threads;
  for (size_t i = 1; i < groups_.size(); ++i) threads.emplace_back([&call, i] { call(i); });
  call(0);
  for (std::thread& thread : threads) thread.join();
}

absl::Status ReplicaGroups::Named(size_t replica, const absl::Status& status) const {
  if (groups_.size() == 1) return status;
  return absl::Status(status.code(), absl::StrCat("replica ", replica, ": ", status.message()));
}

absl::Status ReplicaGroups::Start(const ModelConfig& config, int32_t max_model_len,
                                  const std::string& fingerprint) {
  for (size_t i = 0; i < groups_.size(); ++i) {
    if (absl::Status status = groups_[i]->Start(config, max_model_len, fingerprint); !status.ok())
      return Named(i, status);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<KvPlan>> ReplicaGroups::Load() {
  std::vector<KvPlan> plans(groups_.size());
  absl::Mutex mu;
  absl::Status first;
  ForAll([&](size_t i) {
    absl::StatusOr<KvPlan> plan = groups_[i]->Load();
    if (plan.ok()) {
      plans[i] = *plan;
      return;
    }
    {
      absl::MutexLock lock(&mu);
      if (!first.ok()) return;
      first = Named(i, plan.status());
    }
    for (size_t other = 0; other < groups_.size(); ++other) {
      if (other != i) groups_[other]->Interrupt(plan.status());
    }
  });
  RETURN_IF_ERROR(first);
  return plans;
}

void ReplicaGroups::Interrupt(const absl::Status& reason) {
  for (const auto& group : groups_) group->Interrupt(reason);
}

void ReplicaGroups::Stop() {
  ForAll([this](size_t i) { groups_[i]->Stop(); });
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
