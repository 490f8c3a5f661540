#pragma once
// Worker processes on this host that the coordinator itself starts, or takes over from a killed coordinator,
// and then watches, replaces and ends.
//
// Ownership: owns the processes and a watcher thread; the destructor ends all processes (SIGTERM, then
// SIGKILL), unless Leave was called, so no process is left behind on any other way out of main. After a kill
// -9 of the coordinator the workers notice by themselves. Children are in process groups of their own: Ctrl-C
// reaches the coordinator alone, which ends its children in order. Thread safety: all methods are thread
// safe, and all but Terminate and Leave may be called by the exit callback too. A rank is below the number of
// commands.

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/process_id.h"

namespace somnus {

// From SIGKILL until the processes have ended: the time for the system to free a worker's memory. A worker
// that needs longer is let be, and ends later.
inline constexpr absl::Duration kKillPatience = absl::Seconds(30);

class WorkerProcesses {
 public:
  // Called on the watcher thread when a process of `rank` has ended and was reaped, once for each process,
  // unless Terminate was called before: "rank 1 (pid 77) was killed by signal 9 (Killed)". The rank may have
  // a new process by then: `pid` is the process that ended. The status is FailedPrecondition where the end
  // recurs, InvalidArgument where the program refuses to run (WorkerEnd), else Unavailable. Must not block.
  using ExitCallback = std::function<void(int rank, pid_t pid, const absl::Status&)>;

  // Starts `commands[rank]` (argv; [0] is the binary's path) for every rank, with `environment`
  // ("NAME=value", where secrets belong: every user can read a command line) added to this process' own,
  // instead of variables of the same names. NotFound or PermissionDenied names the binary; processes that
  // were already started are ended then. A rank in `adopted` keeps that process instead, unless the process
  // has ended by now. An adopted process is no child, so the system does not tell how the process ends: "rank
  // 1 (pid 77) has ended". `kill_patience`: see Terminate.
  static absl::StatusOr<std::unique_ptr<WorkerProcesses>> Spawn(
      const std::vector<std::vector<std::string>>& commands, const std::vector<std::string>& environment,
      ExitCallback on_exit, const std::map<int, ProcessId>& adopted = {},
      absl::Duration kill_patience = kKillPatience);
  virtual ~WorkerProcesses() = default;

  // The process that was started or adopted last for `rank`, whether it runs or has ended.
  virtual pid_t pid(int rank) const = 0;
  // Starts the rank's command once more, after its process has ended. FailedPrecondition: the process runs,
  // or was not reaped yet (see AwaitExit); Cancelled: Terminate was called; else why the command cannot be
  // started.
  virtual absl::Status Respawn(int rank) = 0;
  // Sends SIGKILL to the rank's process, running or stopped, if that is still `pid`. Returns at once; the end
  // is reported as usual.
  virtual void Kill(int rank, pid_t pid) = 0;
  // Waits until the rank's process `pid` has ended and was reaped; Ok at once where the rank has another
  // process. DeadlineExceeded after `timeout`. The callback may come a moment later.
  virtual absl::Status AwaitExit(int rank, pid_t pid, absl::Duration timeout) = 0;
  // Sends SIGTERM to all processes that still run, and SIGKILL after `grace`. All have ended and are reaped
  // on return, but for processes that the system cannot end, because it waits within them for a device or a
  // file system that does not answer: `kill_patience` after SIGKILL a warning names them, and they are let
  // be. From then on such a process gets no signal any more, and AwaitExit does not see its end. Idempotent.
  virtual void Terminate(absl::Duration grace) = 0;
  // Stops watching the processes, and lets them run. Only Terminate, which does nothing then, and the
  // destructor may be called afterwards.
  virtual void Leave() = 0;
};

}  // namespace somnus
