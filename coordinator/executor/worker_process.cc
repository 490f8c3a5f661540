#include "coordinator/executor/worker_process.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <thread>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/check.h"
#include "base/heartbeat.h"
#include "base/last_words.h"
#include "base/log.h"
#include "base/monotonic.h"
#include "base/status_macros.h"
#include "coordinator/executor/worker_end.h"

extern char** environ;

namespace somnus {
namespace {

constexpr int kWatchTurnMs = 500;  // the longest time without a sign of life

constexpr char kWithinSystem[] =
    "it is within the system, which waits for a device or a file system that does not answer, or frees much "
    "memory";

// One process of a rank, the latest that was started or adopted for it.
struct Child {
  pid_t pid = -1;
  int pidfd = -1;                     // -1 once the process was reaped, or seen to have ended, or is let be
  int words_fd = -1;                  // of the process's last words (base/last_words.h); -1 as pidfd, and if
                                      // adopted
  int64_t killed_for_memory = 0;      // NumKilledForMemory() at the process' start
  bool adopted = false;               // no child of this process: somebody else reaps it
  std::shared_ptr<StopSignal> ended;  // stopped once the process was reaped, or seen to have ended

  bool running() const { return pidfd >= 0; }
};

absl::StatusCode CodeOf(const WorkerEnd& end) {
  if (end.recurs) return absl::StatusCode::kFailedPrecondition;
  return end.refuses ? absl::StatusCode::kInvalidArgument : absl::StatusCode::kUnavailable;
}

// Whether `replacements` has another value of the variable in `entry`, "NAME=value".
bool IsReplaced(absl::string_view entry, const std::vector<std::string>& replacements) {
  const absl::string_view name = entry.substr(0, entry.find('='));
  return std::any_of(replacements.begin(), replacements.end(),
                     [name](absl::string_view other) { return other.substr(0, other.find('=')) == name; });
}

// `words_fd`: the end of the pipe that is for the process.
absl::StatusOr<pid_t> Start(const std::vector<std::string>& command,
                            const std::vector<std::string>& environment, int words_fd) {
  std::vector<char*> argv;
  for (const std::string& argument : command) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  std::vector<char*> envp;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    if (!IsReplaced(*entry, environment)) envp.push_back(*entry);
  }
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
  // the coordinator.
  posix_spawn_file_actions_adddup2(&actions, words_fd, kLastWordsFd);
  posix_spawn_file_actions_addclosefrom_np(&actions, kLastWordsFd + 1);
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

absl::StatusOr<Child> StartChild(const std::vector<std::string>& command,
                                 const std::vector<std::string>& environment) {
  Child child;
  int words[2];
  if (pipe2(words, O_CLOEXEC | O_NONBLOCK) != 0) return absl::ErrnoToStatus(errno, "pipe2");
  const auto close_write_end = absl::MakeCleanup([&words] { close(words[1]); });
  auto close_read_end = absl::MakeCleanup([&words] { close(words[0]); });
  child.killed_for_memory = NumKilledForMemory();
  ASSIGN_OR_RETURN(child.pid, Start(command, environment, words[1]));
  child.pidfd = static_cast<int>(syscall(SYS_pidfd_open, child.pid, 0));
  if (child.pidfd < 0) {
    const int error = errno;
    kill(child.pid, SIGKILL);
    waitpid(child.pid, nullptr, 0);
    return absl::ErrnoToStatus(error, "pidfd_open");
  }
  std::move(close_read_end).Cancel();
  child.words_fd = words[0];
  child.ended = std::make_shared<StopSignal>();
  return child;
}

absl::StatusOr<Child> AdoptChild(const ProcessId& process) {
  Child child;
  child.pid = process.pid;
  child.adopted = true;
  ASSIGN_OR_RETURN(child.pidfd, OpenProcess(process));
  child.ended = std::make_shared<StopSignal>();
  return child;
}

class WorkerProcessesImpl : public WorkerProcesses {
 public:
  WorkerProcessesImpl(const std::vector<std::vector<std::string>>& commands,
                      const std::vector<std::string>& environment, ExitCallback on_exit,
                      absl::Duration kill_patience)
      : commands_(commands),
        environment_(WithLastWords(environment)),
        on_exit_(std::move(on_exit)),
        kill_patience_(kill_patience),
        wake_fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    SOMNUS_CHECK(wake_fd_ >= 0);
  }

  ~WorkerProcessesImpl() override {
    Terminate(absl::Seconds(5));
    close(wake_fd_);
  }

  absl::Status SpawnAll(const std::map<int, ProcessId>& adopted) {
    absl::MutexLock lock(&mu_);
    for (size_t rank = 0; rank < commands_.size(); ++rank) {
      const auto known = adopted.find(static_cast<int>(rank));
      absl::StatusOr<Child> child = absl::NotFoundError("not adopted");
      if (known != adopted.end()) child = AdoptChild(known->second);
      if (absl::IsNotFound(child.status())) child = StartChild(commands_[rank], environment_);
      RETURN_IF_ERROR(child.status());
      children_.push_back(*std::move(child));
    }
    watcher_ = std::thread([this] { Watch(); });
    return absl::OkStatus();
  }

  pid_t pid(int rank) const override {
    absl::MutexLock lock(&mu_);
    return children_[rank].pid;
  }

  absl::Status Respawn(int rank) override {
    absl::MutexLock lock(&mu_);
    if (terminating_) return absl::CancelledError("the workers are being ended");
    Child& child = children_[rank];
    if (child.running()) {
      return absl::FailedPreconditionError(
          absl::StrCat("rank ", rank, " (pid ", child.pid, ") has not ended"));
    }
    ASSIGN_OR_RETURN(child, StartChild(commands_[rank], environment_));
    Wake();  // the watcher does not poll the new child yet
    return absl::OkStatus();
  }

  void Kill(int rank, pid_t pid) override {
    absl::MutexLock lock(&mu_);
    if (children_[rank].running() && children_[rank].pid == pid)
      (void)SignalProcess(children_[rank].pidfd, SIGKILL);
  }

  absl::Status AwaitExit(int rank, pid_t pid, absl::Duration timeout) override {
    std::shared_ptr<StopSignal> ended;
    {
      absl::MutexLock lock(&mu_);
      if (children_[rank].pid != pid) return absl::OkStatus();
      ended = children_[rank].ended;
    }
    if (ended->WaitFor(timeout)) return absl::OkStatus();
    return absl::DeadlineExceededError(absl::StrCat("rank ", rank, " (pid ", pid, ") has not ended within ",
                                                    absl::FormatDuration(timeout),
                                                    " of its SIGKILL: ", kWithinSystem));
  }

  void Terminate(absl::Duration grace) override {
    absl::MutexLock terminate_lock(&terminate_mu_);
    EndWatch();
    Signal(SIGTERM);
    if (AwaitAll(grace)) return;
    Signal(SIGKILL);
    if (AwaitAll(kill_patience_)) return;
    WarnOfStuck();
    Forget();
  }

  void Leave() override {
    absl::MutexLock terminate_lock(&terminate_mu_);
    EndWatch();
    Forget();
  }

 private:
  static std::vector<std::string> WithLastWords(std::vector<std::string> environment) {
    environment.push_back(absl::StrCat(kLastWordsVariable, "=", kLastWordsFd));
    return environment;
  }

  void EndWatch() {
    {
      absl::MutexLock lock(&mu_);
      terminating_ = true;
      Wake();
    }
    if (watcher_.joinable()) watcher_.join();
  }

  // Lets the processes that still run be. Other threads may still ask for their ids, or wait for their ends.
  void Forget() {
    absl::MutexLock lock(&mu_);
    for (Child& child : children_) {
      if (!child.running()) continue;
      close(child.pidfd);
      if (child.words_fd >= 0) close(child.words_fd);
      child.pidfd = child.words_fd = -1;
    }
  }

  void WarnOfStuck() const {
    absl::MutexLock lock(&mu_);
    for (size_t rank = 0; rank < children_.size(); ++rank) {
      if (!children_[rank].running()) continue;
      LogWarning("rank {} (pid {}) was killed and does not end: {}; it ends as soon as the system lets it",
                 rank, children_[rank].pid, kWithinSystem);
    }
  }

  // Whether all processes end within that time.
  bool AwaitAll(absl::Duration timeout) {
    const MonotonicTime deadline = MonotonicNow() + timeout;
    while (!ReapAll()) {
      const absl::Duration left = deadline - MonotonicNow();
      if (left <= absl::ZeroDuration()) return false;
      Poll(static_cast<int>(absl::ToInt64Milliseconds(left)) + 1);
    }
    return true;
  }

  // Ends the watcher's wait, or its next wait.
  void Wake() {
    const uint64_t one = 1;
    SOMNUS_CHECK(write(wake_fd_, &one, sizeof(one)) == sizeof(one));
  }

  void Signal(int signal) {
    absl::MutexLock lock(&mu_);
    for (const Child& child : children_) {
      if (child.running()) (void)SignalProcess(child.pidfd, signal);
    }
  }

  // Waits until a child ends or the time is over; with `until_wake` also until Wake. Descriptors are closed
  // by the thread alone that polls them: the watcher, and Terminate after it.
  void Poll(int timeout_ms, bool until_wake = false) {
    std::vector<pollfd> fds;
    {
      absl::MutexLock lock(&mu_);
      for (const Child& child : children_) {
        if (child.running()) fds.push_back({child.pidfd, POLLIN, 0});
      }
    }
    if (until_wake) fds.push_back({wake_fd_, POLLIN, 0});
    poll(fds.data(), fds.size(), timeout_ms);
    uint64_t wakes;
    if (until_wake) (void)!read(wake_fd_, &wakes, sizeof(wakes));  // EAGAIN: nobody has called Wake
  }

  // Returns whether the process has ended, the first time that the end is seen.
  static bool Reap(Child* child, const std::string& binary, WorkerEnd* end) {
    if (!child->running()) return false;
    if (child->adopted) {
      if (!AwaitProcess(child->pidfd, absl::ZeroDuration())) return false;
      end->words = "has ended";
    } else {
      int wait_status = 0;
      if (waitpid(child->pid, &wait_status, WNOHANG) != child->pid) return false;
      *end = DescribeEnd(wait_status, binary, ReadLastWords(child->words_fd),
                         NumKilledForMemory() > child->killed_for_memory);
      close(child->words_fd);
      child->words_fd = -1;
    }
    close(child->pidfd);
    child->pidfd = -1;
    child->ended->Stop();
    return true;
  }

  // True when no child is left.
  bool ReapAll() {
    absl::MutexLock lock(&mu_);
    bool all = true;
    for (size_t rank = 0; rank < children_.size(); ++rank) {
      WorkerEnd ignored;
      Reap(&children_[rank], commands_[rank][0], &ignored);
      all = all && !children_[rank].running();
    }
    return all;
  }

  void Watch() {
    const Heartbeat heartbeat("", absl::StrCat("watch of the processes of ", commands_.size(), " workers"));
    while (true) {
      heartbeat.Beat();
      Poll(kWatchTurnMs, /*until_wake=*/true);
      for (size_t rank = 0; rank < commands_.size(); ++rank) {
        pid_t pid = -1;
        WorkerEnd end;
        {
          absl::MutexLock lock(&mu_);
          if (terminating_) return;
          if (!Reap(&children_[rank], commands_[rank][0], &end)) continue;
          pid = children_[rank].pid;
        }
        on_exit_(static_cast<int>(rank), pid,
                 absl::Status(CodeOf(end), absl::StrCat("rank ", rank, " (pid ", pid, ") ", end.words)));
      }
    }
  }

  const std::vector<std::vector<std::string>> commands_;  // by rank
  const std::vector<std::string> environment_;
  const ExitCallback on_exit_;
  const absl::Duration kill_patience_;
  const int wake_fd_;
  std::thread watcher_;
  absl::Mutex terminate_mu_;
  mutable absl::Mutex mu_;
  std::vector<Child> children_ ABSL_GUARDED_BY(mu_);  // by rank
  bool terminating_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace

absl::StatusOr<std::unique_ptr<WorkerProcesses>> WorkerProcesses::Spawn(
    const std::vector<std::vector<std::string>>& commands, const std::vector<std::string>& environment,
    ExitCallback on_exit, const std::map<int, ProcessId>& adopted, absl::Duration kill_patience) {
  auto processes =
      std::make_unique<WorkerProcessesImpl>(commands, environment, std::move(on_exit), kill_patience);
  RETURN_IF_ERROR(processes->SpawnAll(adopted));
  return processes;
}

}  // namespace somnus
