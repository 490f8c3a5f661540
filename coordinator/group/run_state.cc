#include "coordinator/group/run_state.h"

#include <algorithm>
#include <filesystem>
#include <system_error>
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

// Why workers of the group that `left` describes are of no use to `own`; empty where the workers may be of
// use.
std::string WhyUseless(const v1::GroupFile& left, const v1::GroupFile& own) {
  if (left.model_path() != own.model_path()) return absl::StrCat("they hold ", left.model_path());
  if (left.world_size() != own.world_size()) {
    return absl::StrCat("they are a group of ", left.world_size(), ", not of ", own.world_size());
  }
  if (left.options_digest() != own.options_digest()) return "they were started with other options";
  return "";
}

std::vector<ProcessId> LiveProcesses(const std::vector<std::string>& group_paths) {
  std::vector<ProcessId> live;
  for (const std::string& path : group_paths) {
    const absl::StatusOr<v1::GroupFile> left = ReadGroupFile(path);
    if (left.ok()) {
      for (const v1::LocalWorker& worker : LiveWorkers(*left)) live.push_back(ProcessOf(worker));
    } else if (!absl::IsNotFound(left.status())) {
      LogWarning("--run-dir: {}", std::string(left.status().message()));
    }
  }
  return live;
}

void Append(const std::vector<ProcessId>& more, std::vector<ProcessId>* processes) {
  processes->insert(processes->end(), more.begin(), more.end());
}

absl::Status EndUseless(const std::vector<ProcessId>& useless, const std::string& why,
                        const std::string& log_name = "") {
  if (!useless.empty())
    LogInfo("{}ending {} that were left: {}", log_name,
            Counted(static_cast<int64_t>(useless.size()), "worker"), why);
  return EndProcesses(useless, kEndGrace);
}

}  // namespace

// A single replica has its files in the directory itself; several replicas have directories of their own
// there.
absl::Status EndWorkersOfOtherReplicas(const RunDir& directory, int32_t num_replicas) {
  std::vector<ProcessId> useless;
  if (num_replicas > 1) useless = LiveProcesses({directory.group_path()});
  std::vector<int32_t> others;
  for (const int32_t replica : directory.Replicas()) {
    if (num_replicas > 1 && replica < num_replicas) continue;
    others.push_back(replica);
    Append(LiveProcesses({RunDir::GroupPath(RunDir::ReplicaPath(directory.path(), replica))}), &useless);
  }
  const std::vector<std::string> models = directory.Models();
  for (const std::string& model : models) Append(LiveProcesses(RunDir::GroupPaths(model)), &useless);
  RETURN_IF_ERROR(EndUseless(useless, "they belong to several models, or to another number of replicas"));
  if (num_replicas > 1) directory.Clear();
  for (const int32_t replica : others) directory.RemoveReplica(replica);
  for (const std::string& model : models) directory.RemoveModel(model);
  return absl::OkStatus();
}

absl::Status EndWorkersOfOtherModels(const RunDir& directory, const std::set<std::string>& models) {
  std::vector<ProcessId> useless = LiveProcesses(RunDir::GroupPaths(directory.path()));
  std::vector<std::string> others = directory.Models();
  std::erase_if(others, [&](const std::string& model) { return models.count(model) > 0; });
  for (const std::string& model : others) Append(LiveProcesses(RunDir::GroupPaths(model)), &useless);
  RETURN_IF_ERROR(EndUseless(useless, "they belong to other models"));
  directory.Clear();
  for (const int32_t replica : directory.Replicas()) directory.RemoveReplica(replica);
  for (const std::string& model : others) directory.RemoveModel(model);
  return absl::OkStatus();
}

void RemoveEndedModels(const RunDir& directory) {
  for (const std::string& model : directory.Models()) {
    const std::vector<std::string> groups = RunDir::GroupPaths(model);
    std::error_code ignored;
    const bool ended = std::none_of(groups.begin(), groups.end(), [&](const std::string& group) {
      return std::filesystem::exists(group, ignored);
    });
    if (ended) directory.RemoveModel(model);
  }
}

bool HasLeftWorkers(const std::string& path) { return !LiveProcesses(RunDir::GroupPaths(path)).empty(); }

absl::StatusOr<std::unique_ptr<RunState>> RunState::Open(const std::string& path, const v1::GroupFile& group,
                                                         const std::string& log_name) {
  ASSIGN_OR_RETURN(RunDir directory, RunDir::Open(path));
  std::unique_ptr<RunState> state(new RunState(std::move(directory), group, log_name));
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
    RETURN_IF_ERROR(EndUseless(useless, why, log_name_));
  } else if (!absl::IsNotFound(left.status())) {
    // Unknown workers are sent away at their registration.
    LogWarning("{}--run-dir: {}", log_name_, std::string(left.status().message()));
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
