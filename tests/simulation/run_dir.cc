// A run directory, which outlives a coordinator, over the simulation's processes. The group file is the
// product's, as text.

#include "base/run_dir.h"

#include <signal.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/process_id.h"
#include "base/status_macros.h"
#include "proto/text_file.h"
#include "tests/simulation/site.h"

namespace somnus {
namespace {

using simulation::Site;
using simulation::World;

constexpr absl::Duration kPause = absl::Milliseconds(1);

std::map<std::string, std::string>& Files() { return Site::current().files; }

std::string SecretPath(const std::string& path) { return path + "/secret"; }

}  // namespace

absl::StatusOr<RunDir> RunDir::Open(const std::string& path) { return RunDir(path, -1); }
RunDir::RunDir(RunDir&& other) noexcept = default;
RunDir::~RunDir() = default;

// Files alone are remembered, and no directories: a replica's group file is at the path of the replica. There
// are no further models.
std::string RunDir::ReplicaPath(const std::string& path, int32_t replica) {
  return absl::StrCat(path, "/replica-", replica);
}
std::vector<int32_t> RunDir::ReplicasIn(const std::string&) { return {}; }
std::string RunDir::ModelPath(const std::string& path, const std::string& model) {
  return absl::StrCat(path, "/model-", model);
}
std::vector<std::string> RunDir::Models() const { return {}; }
std::vector<std::string> RunDir::GroupPaths(const std::string& path) { return {GroupPath(path)}; }
void RunDir::RemoveReplica(int32_t) const {}
void RunDir::RemoveModel(const std::string&) const {}
void RunDir::RemoveDeadSockets() const {}
void RunDir::RemoveGroups() const { Clear(); }

absl::StatusOr<std::string> RunDir::KeepSecret(const std::string& fresh) const {
  return Files().emplace(SecretPath(path_), fresh).first->second;
}
void RunDir::Clear() const {
  Files().erase(group_path());
  Files().erase(SecretPath(path_));
}

absl::StatusOr<std::optional<ProcessId>> RunDirHolder(const std::string&) { return std::nullopt; }

absl::Status WriteFileAtomically(const std::string& path, const std::string& contents) {
  Files()[path] = contents;
  return absl::OkStatus();
}

absl::Status ReadTextFile(const std::string& path, google::protobuf::Message* message,
                          google::protobuf::TextFormat::ParseInfoTree*) {
  const auto file = Files().find(path);
  if (file == Files().end()) return absl::NotFoundError(absl::StrCat("there is no ", path));
  if (google::protobuf::TextFormat::ParseFromString(file->second, message)) return absl::OkStatus();
  return absl::DataLossError("it is no message");
}

// No process id is given twice.
absl::StatusOr<ProcessId> FindProcess(pid_t pid) {
  if (!Site::current().world.alive(pid))
    return absl::NotFoundError(absl::StrCat("there is no process ", pid));
  return ProcessId{.pid = pid, .start_time = static_cast<uint64_t>(pid)};
}
ProcessId ThisProcess() { return *FindProcess(World::current()->current_process()); }
std::string BootId() { return "simulation"; }
bool IsRunning(const ProcessId& process) { return FindProcess(process.pid).ok(); }

// A descriptor is the process' number.
absl::StatusOr<int> OpenProcess(const ProcessId& process) {
  RETURN_IF_ERROR(FindProcess(process.pid).status());
  return process.pid;
}
absl::Status SignalProcess(int descriptor, int signal) {
  Site& site = Site::current();
  if (!site.world.alive(descriptor)) return absl::NotFoundError("the process has ended");
  if (signal == SIGKILL) {
    site.world.Kill(descriptor, "was killed by signal 9 (Killed)");
  } else if (site.workers[descriptor].leave) {
    site.workers[descriptor].leave();
  }
  return absl::OkStatus();
}
bool AwaitProcess(int descriptor, absl::Duration timeout) {
  World& world = Site::current().world;
  const absl::Duration deadline = world.now() + timeout;
  while (world.alive(descriptor) && world.now() < deadline)
    world.Sleep(std::min(kPause, deadline - world.now()));
  return !world.alive(descriptor);
}
absl::Status EndProcesses(const std::vector<ProcessId>& processes, absl::Duration grace) {
  World& world = Site::current().world;
  for (const ProcessId& process : processes) SignalProcess(process.pid, SIGTERM).IgnoreError();
  const absl::Duration deadline = world.now() + grace;
  for (const ProcessId& process : processes) {
    if (!AwaitProcess(process.pid, deadline - world.now())) SignalProcess(process.pid, SIGKILL).IgnoreError();
  }
  return absl::OkStatus();
}

}  // namespace somnus
