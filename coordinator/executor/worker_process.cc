#include "coordinator/executor/worker_process.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/check.h"
#include "base/monotonic.h"
#include "base/status_macros.h"

extern char** environ;

namespace somnus {
namespace {

struct Child {
  pid_t pid = -1;
  int pidfd = -1;
  bool reaped = false;
};

absl::StatusOr<pid_t> Start(const std::vector<std::string>& command,
                            const std::vector<std::string>& environment) {
  std::vector<char*> argv;
  for (const std::string& argument : command) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  std::vector<char*> envp;
  for (char** entry = environ; *entry != nullptr; ++entry) envp.push_back(*entry);
  for (const std::string& entry : environment) envp.push_back(const_cast<char*>(entry.c_str()));
  envp.push_back(nullptr);

  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  posix_spawn_file_actions_init(&actions);
  posix_spawnattr_init(&attributes);
  const auto cleanup = absl::MakeCleanup([&] {
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
  });
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  // No descriptor of the coordinator's, a listening socket above all, stays open in a worker that outlives
  // it.
  posix_spawn_file_actions_addclosefrom_np(&actions, STDERR_FILENO + 1);
  sigset_t none, all;
  sigemptyset(&none);
  sigfillset(&all);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &all);
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawnattr_setflags(&attributes,
                           POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);

  pid_t pid = -1;
  const int error = posix_spawn(&pid, argv[0], &actions, &attributes, argv.data(), envp.data());
  if (error != 0) return absl::ErrnoToStatus(error, absl::StrCat("cannot start worker ", command[0]));
  return pid;
}

class WorkerProcessesImpl : public WorkerProcesses {
 public:
  explicit WorkerProcessesImpl(ExitCallback on_exit)
      : on_exit_(std::move(on_exit)), wake_fd_(eventfd(0, EFD_CLOEXEC)) {
    SOMNUS_CHECK(wake_fd_ >= 0);
  }

  ~WorkerProcessesImpl() override {
    Terminate(absl::Seconds(5));
    for (const Child& child : children_) {
      if (child.pidfd >= 0) close(child.pidfd);
    }
    close(wake_fd_);
  }

  absl::Status SpawnAll(const std::vector<std::vector<std::string>>& commands,
                        const std::vector<std::string>& environment) {
    for (const std::vector<std::string>& command : commands) {
      ASSIGN_OR_RETURN(const pid_t pid, Start(command, environment));
      Child child;
      child.pid = pid;
      child.pidfd = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
      const int error = errno;
      children_.push_back(child);
      if (child.pidfd < 0) return absl::ErrnoToStatus(error, "pidfd_open");
    }
    watcher_ = std::thread([this] { Watch(); });
    return absl::OkStatus();
  }

  pid_t pid(int rank) const override { return children_[rank].pid; }

  void Terminate(absl::Duration grace) override {
    absl::MutexLock terminate_lock(&terminate_mu_);
    {
      absl::MutexLock lock(&mu_);
      terminating_ = true;
    }
    if (watcher_.joinable()) {
      const uint64_t one = 1;
      SOMNUS_CHECK(write(wake_fd_, &one, sizeof(one)) == sizeof(one));
      watcher_.join();
    }
    Signal(SIGTERM);
    const MonotonicTime deadline = MonotonicNow() + grace;
    while (!ReapAll()) {
      const absl::Duration left = deadline - MonotonicNow();
      if (left <= absl::ZeroDuration()) break;
      Poll(static_cast<int>(absl::ToInt64Milliseconds(left)) + 1);
    }
    Signal(SIGKILL);
    while (!ReapAll()) Poll(1000);
  }

 private:
  void Signal(int signal) {
    for (const Child& child : children_) {
      if (!child.reaped) kill(child.pid, signal);
    }
  }

  // Waits until a child ends, the watcher is to stop, or the time is over.
  void Poll(int timeout_ms) {
    std::vector<pollfd> fds;
    for (const Child& child : children_) {
      if (!child.reaped) fds.push_back({child.pidfd, POLLIN, 0});
    }
    if (timeout_ms < 0) fds.push_back({wake_fd_, POLLIN, 0});
    poll(fds.data(), fds.size(), timeout_ms);
  }

  // True when no child is left.
  bool ReapAll() {
    bool all = true;
    for (Child& child : children_) {
      if (!child.reaped) {
        int status = 0;
        child.reaped = waitpid(child.pid, &status, WNOHANG) == child.pid;
      }
      all = all && child.reaped;
    }
    return all;
  }

  void Watch() {
    while (true) {
      Poll(-1);
      for (size_t rank = 0; rank < children_.size(); ++rank) {
        Child& child = children_[rank];
        if (child.reaped) continue;
        int status = 0;
        if (waitpid(child.pid, &status, WNOHANG) != child.pid) continue;
        child.reaped = true;
        Report(static_cast<int>(rank), status);
      }
      absl::MutexLock lock(&mu_);
      if (terminating_) return;
    }
  }

  void Report(int rank, int wait_status) {
    {
      absl::MutexLock lock(&mu_);
      if (terminating_) return;
    }
    on_exit_(rank, absl::UnavailableError(absl::StrCat("rank ", rank, " (pid ", children_[rank].pid, ") ",
                                                       DescribeExit(wait_status))));
  }

  const ExitCallback on_exit_;
  const int wake_fd_;
  std::vector<Child> children_;  // `reaped` belongs to the watcher while it runs, then to Terminate
  std::thread watcher_;
  absl::Mutex terminate_mu_;
  absl::Mutex mu_;
  bool terminating_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace

std::string DescribeExit(int wait_status) {
  if (WIFSIGNALED(wait_status)) {
    const int signal = WTERMSIG(wait_status);
    return absl::StrCat("was killed by signal ", signal, " (", strsignal(signal), ")");
  }
  return absl::StrCat("exited with code ", WEXITSTATUS(wait_status));
}

absl::StatusOr<std::unique_ptr<WorkerProcesses>> WorkerProcesses::Spawn(
    const std::vector<std::vector<std::string>>& commands, const std::vector<std::string>& environment,
    ExitCallback on_exit) {
  auto processes = std::make_unique<WorkerProcessesImpl>(std::move(on_exit));
  RETURN_IF_ERROR(processes->SpawnAll(commands, environment));
  return processes;
}

}  // namespace somnus
