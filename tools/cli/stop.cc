// The command stop: ends a coordinator with its workers, or the workers that a killed coordinator has left.
#include <signal.h>
#include <unistd.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "base/counted.h"
#include "base/process_id.h"
#include "base/run_dir.h"
#include "base/status_macros.h"
#include "proto/group_file.h"
#include "tools/cli/commands.h"
#include "tools/cli/control_client.h"
#include "tools/cli/server.h"
#include "tools/cli/terminal.h"

namespace somnus::cli {
namespace {

constexpr absl::Duration kStatusTimeout = absl::Seconds(10);
constexpr absl::Duration kWorkerGrace = absl::Seconds(10);  // from SIGTERM to SIGKILL

struct StopOptions {
  ServerOptions server;
  std::optional<std::string> run_dir;
  absl::Duration timeout = absl::Minutes(2);
};

// Like a supervisor's SIGTERM: open requests may end, and the workers end with their coordinator.
absl::Status StopCoordinator(const ProcessId& coordinator, absl::Duration timeout) {
  const absl::StatusOr<int> process = OpenProcess(coordinator);
  if (absl::IsNotFound(process.status())) return absl::OkStatus();  // the coordinator has ended a moment ago
  RETURN_IF_ERROR(process.status());
  const auto close_process = absl::MakeCleanup([&] { close(*process); });
  if (const absl::Status sent = SignalProcess(*process, SIGTERM); !sent.ok() && !absl::IsNotFound(sent)) {
    return absl::Status(sent.code(),
                        absl::StrCat("coordinator (pid ", coordinator.pid, "): ", sent.message()));
  }
  if (!AwaitProcess(*process, timeout)) {
    return absl::DeadlineExceededError(absl::StrCat("the coordinator (pid ", coordinator.pid,
                                                    ") has not ended within ", absl::FormatDuration(timeout),
                                                    "; somnus stop once more makes it end open requests"));
  }
  absl::PrintF("stopped the coordinator (pid %d) and its workers\n", coordinator.pid);
  return absl::OkStatus();
}

// No coordinator can start while this runs. Returns how many workers there were.
absl::StatusOr<size_t> StopLeftWorkers(const std::string& path) {
  ASSIGN_OR_RETURN(const RunDir directory, RunDir::Open(path));
  std::vector<std::string> groups = RunDir::GroupPaths(directory.path());
  for (const std::string& model : directory.Models()) {
    for (std::string& group_path : RunDir::GroupPaths(model)) groups.push_back(std::move(group_path));
  }
  std::vector<ProcessId> workers;
  for (const std::string& group_path : groups) {
    const absl::StatusOr<v1::GroupFile> group = ReadGroupFile(group_path);
    if (absl::IsNotFound(group.status())) continue;
    RETURN_IF_ERROR(group.status());
    for (const v1::LocalWorker& worker : LiveWorkers(*group)) workers.push_back(ProcessOf(worker));
  }
  RETURN_IF_ERROR(EndProcesses(workers, kWorkerGrace));
  directory.RemoveGroups();
  if (workers.empty()) return 0;
  const std::string pids = absl::StrJoin(
      workers, ", ", [](std::string* out, const ProcessId& worker) { absl::StrAppend(out, worker.pid); });
  absl::PrintF("ended %s that were left (pid %s)\n", Counted(static_cast<int64_t>(workers.size()), "worker"),
               pids);
  return workers.size();
}

absl::StatusOr<int> StopByDirectory(const std::string& path, absl::Duration timeout) {
  const absl::StatusOr<std::optional<ProcessId>> holder = RunDirHolder(path);
  if (absl::IsNotFound(holder.status())) return absl::UnavailableError(holder.status().message());
  RETURN_IF_ERROR(holder.status());
  if (holder->has_value()) RETURN_IF_ERROR(StopCoordinator(**holder, timeout));
  ASSIGN_OR_RETURN(const size_t num_left, StopLeftWorkers(path));
  if (!holder->has_value() && num_left == 0) absl::PrintF("nothing runs in %s\n", path);
  return kOk;
}

absl::StatusOr<int> StopByAddress(const ServerOptions& options, absl::Duration timeout) {
  ASSIGN_OR_RETURN(const Server server, FindServer(options));
  ASSIGN_OR_RETURN(const v1::GetStatusResponse status, GetStatus(server, {}, kStatusTimeout));
  const ProcessId coordinator{.pid = status.process().pid(), .start_time = status.process().start_time()};
  if (status.process().boot_id() != BootId() || !IsRunning(coordinator)) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the coordinator at ", server.http.ToString(),
        " is no process that can be seen from here: stop it on its own host, or in its container"));
  }
  RETURN_IF_ERROR(StopCoordinator(coordinator, timeout));
  return kOk;
}

}  // namespace

int RunStop(const std::vector<std::string>& args) {
  StopOptions o;
  FlagGroup server = ServerFlags(&o.server);
  const FlagTable table = {
      .program = "somnus stop",
      .usage = "somnus stop [flags]",
      .about =
          "Ends a coordinator on this host with its workers, as SIGTERM does, and waits for it. With\n"
          "--run-dir also workers that a coordinator has left which was killed. Exit code 0 when nothing\n"
          "runs any longer.\n\n"
          "  somnus stop --run-dir=/run/somnus\n"
          "  somnus stop --url=http://127.0.0.1:8000",
      .groups = {{"Flags",
                  {Flag::Text("run-dir", &o.run_dir, "the coordinator's --run-dir, instead of its address")
                       .Shows("DIR"),
                   Flag::Time("timeout", &o.timeout, absl::Seconds(1), absl::Hours(24),
                              "how long to wait for the coordinator's end")}},
                 std::move(server)}};
  if (const auto code = ParseCommand(table, args)) return *code;
  if (o.run_dir.has_value() && o.server.url.has_value())
    return Fail(absl::InvalidArgumentError("--run-dir and --url: one of them says which coordinator"));
  return ExitCode(o.run_dir.has_value() ? StopByDirectory(*o.run_dir, o.timeout)
                                        : StopByAddress(o.server, o.timeout));
}

}  // namespace somnus::cli
