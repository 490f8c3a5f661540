#include "coordinator/group/run_state.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/counted.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "proto/group_file.h"

namespace somnus {
namespace {

constexpr absl::Duration kEndGrace = absl::Seconds(5);

// Why workers of the group that `left` describes are of no use to `own`; empty where they may be.
std::string WhyUseless(const v1::GroupFile& left, const v1::GroupFile& own) {
  if (left.model_path() != own.model_path()) return absl::StrCat("they hold ", left.model_path());
  if (left.world_size() != own.world_size()) {
    return absl::StrCat("they are a group of ", left.world_size(), ", not of ", own.world_size());
  }
  if (left.options_digest() != own.options_digest()) return "they were started with other options";
  return "";
}

std::vector<ProcessId> LiveProcesses(const std::string& group_path) {
  std::vector<ProcessId> live;
  const absl::StatusOr<v1::GroupFile> left = ReadGroupFile(group_path);
  if (left.ok()) {
    for (const v1::LocalWorker& worker : LiveWorkers(*left)) live.push_back(ProcessOf(worker));
  } else if (!absl::IsNotFound(left.status())) {
    LogWarning("--run-dir: {}", std::string(left.status().message()));
  }
  return live;
}

}  // namespace

// One replica has its files in the directory itself, several have directories of their own there.
absl::Status EndWorkersOfOtherReplicas(const RunDir& directory, int32_t num_replicas) {
  std::vector<ProcessId> useless;
  if (num_replicas > 1) useless = LiveProcesses(directory.group_path());
  std::vector<int32_t> others;
  for (const int32_t replica : directory.Replicas()) {
    if (num_replicas > 1 && replica < num_replicas) continue;
    others.push_back(replica);
    const std::string path = RunDir::ReplicaPath(directory.path(), replica);
    for (const ProcessId& process : LiveProcesses(RunDir::GroupPath(path))) useless.push_back(process);
  }
  if (!useless.empty()) {
    LogInfo("ending {} that were left: they belong to another number of replicas",
            Counted(static_cast<int64_t>(useless.size()), "worker"));
  }
  RETURN_IF_ERROR(EndProcesses(useless, kEndGrace));
  if (num_replicas > 1) directory.Clear();
  for (const int32_t replica : others) directory.RemoveReplica(replica);
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<RunState>> RunState::Open(const std::string& path,
                                                         const v1::GroupFile& group) {
  ASSIGN_OR_RETURN(RunDir directory, RunDir::Open(path));
  std::unique_ptr<RunState> state(new RunState(std::move(directory), group));
  RETURN_IF_ERROR(state->TakeOver());
  return state;
}

absl::Status RunState::TakeOver() {
  RETURN_IF_ERROR(EndWorkersOfOtherReplicas(directory_, /*num_replicas=*/1));
  const absl::StatusOr<v1::GroupFile> left = ReadGroupFile(directory_.group_path());
  if (left.ok()) {
    left_epoch_ = left->group_epoch();
    std::vector<ProcessId> useless;
    const std::string why = WhyUseless(*left, group_);
    for (const v1::LocalWorker& worker : LiveWorkers(*left)) {
      if (why.empty()) {
        left_[worker.rank()] = ProcessOf(worker);
      } else {
        useless.push_back(ProcessOf(worker));
      }
    }
    if (!useless.empty())
      LogInfo("ending {} that were left: {}", Counted(static_cast<int64_t>(useless.size()), "worker"), why);
    RETURN_IF_ERROR(EndProcesses(useless, kEndGrace));
  } else if (!absl::IsNotFound(left.status())) {
    // Workers that nobody knows of are sent away when they register.
    LogWarning("--run-dir: {}", std::string(left.status().message()));
  }
  directory_.RemoveDeadSockets();
  return absl::OkStatus();
}

absl::Status RunState::Record(int64_t group_epoch, const ProcessesByRank& workers) {
  v1::GroupFile group = group_;
  group.set_group_epoch(std::max(group_epoch, left_epoch_));
  group.clear_workers();
  for (const auto& [rank, process] : workers) {
    v1::LocalWorker* worker = group.add_workers();
    worker->set_rank(rank);
    worker->set_pid(process.pid);
    worker->set_start_time(process.start_time);
  }
  if (written_ && group.SerializeAsString() == group_.SerializeAsString()) return absl::OkStatus();
  RETURN_IF_ERROR(WriteGroupFile(directory_.group_path(), group));
  group_ = std::move(group);
  written_ = true;
  return absl::OkStatus();
}

}  // namespace somnus
