#include "proto/group_file.h"

#include <google/protobuf/text_format.h>

#include <set>

#include "absl/strings/str_cat.h"
#include "base/run_dir.h"
#include "proto/text_file.h"

namespace somnus {
namespace {

absl::Status CheckGroup(const v1::GroupFile& group) {
  if (group.group_epoch() < 0) return absl::DataLossError("group_epoch: is negative");
  if (group.world_size() < 1) return absl::DataLossError("world_size: is less than 1");
  std::set<int32_t> ranks;
  for (const v1::LocalWorker& worker : group.workers()) {
    if (worker.rank() < 0 || worker.rank() >= group.world_size())
      return absl::DataLossError(absl::StrCat("rank: ", worker.rank(), " is not below world_size"));
    if (worker.pid() < 2) return absl::DataLossError(absl::StrCat("pid: ", worker.pid(), " is no worker's"));
    if (!ranks.insert(worker.rank()).second)
      return absl::DataLossError(absl::StrCat("rank: ", worker.rank(), " has two workers"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<v1::GroupFile> ReadGroupFile(const std::string& path) {
  v1::GroupFile group;
  absl::Status status = ReadTextFile(path, &group);
  if (absl::IsNotFound(status)) return status;
  if (status.ok()) status = CheckGroup(group);
  if (!status.ok()) return absl::DataLossError(absl::StrCat(path, " is damaged: ", status.message()));
  return group;
}

absl::Status WriteGroupFile(const std::string& path, v1::GroupFile group) {
  group.set_boot_id(BootId());
  std::string text;
  google::protobuf::TextFormat::PrintToString(group, &text);
  return WriteFileAtomically(path, text);
}

std::vector<v1::LocalWorker> LiveWorkers(const v1::GroupFile& group) {
  std::vector<v1::LocalWorker> live;
  if (group.boot_id() != BootId()) return live;
  for (const v1::LocalWorker& worker : group.workers()) {
    if (IsRunning(ProcessOf(worker))) live.push_back(worker);
  }
  return live;
}

ProcessId ProcessOf(const v1::LocalWorker& worker) {
  return {.pid = worker.pid(), .start_time = worker.start_time()};
}

}  // namespace somnus
