#include "coordinator/executor/worker_process.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"

namespace somnus {
namespace {

struct Exit {
  int rank;
  pid_t pid;
  std::string message;
};

class Exits {
 public:
  WorkerProcesses::ExitCallback callback() {
    return [this](int rank, pid_t pid, const absl::Status& status) {
      absl::MutexLock lock(&mu_);
      seen_.push_back({rank, pid, std::string(status.message())});
    };
  }
  // The first `count` exits, or fewer after a minute.
  std::vector<Exit> Wait(size_t count) {
    absl::MutexLock lock(&mu_);
    const auto enough = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return seen_.size() >= count; };
    mu_.AwaitWithTimeout(absl::Condition(&enough), absl::Minutes(1));
    return seen_;
  }

 private:
  absl::Mutex mu_;
  std::vector<Exit> seen_ ABSL_GUARDED_BY(mu_);
};

const std::vector<std::string> kSleeper = {"/bin/sleep", "1000"};

bool Alive(pid_t pid) { return kill(pid, 0) == 0; }

size_t NumOpenFiles() {
  size_t count = 0;
  for ([[maybe_unused]] const auto& file : std::filesystem::directory_iterator("/proc/self/fd")) ++count;
  return count;
}

TEST(WorkerProcessesTest, AKilledChildIsReportedWithRankPidAndSignal) {
  Exits exits;
  auto processes = WorkerProcesses::Spawn({kSleeper, kSleeper}, {}, exits.callback());
  ASSERT_TRUE(processes.ok()) << processes.status();
  const pid_t pid = (*processes)->pid(1);
  ASSERT_EQ(kill(pid, SIGKILL), 0);
  const auto seen = exits.Wait(1);
  ASSERT_EQ(seen.size(), 1u);
  EXPECT_EQ(seen[0].rank, 1);
  EXPECT_EQ(seen[0].pid, pid);
  EXPECT_EQ(seen[0].message, absl::StrCat("rank 1 (pid ", pid, ") was killed by signal 9 (Killed)"));
  EXPECT_TRUE(Alive((*processes)->pid(0)));
}

TEST(WorkerProcessesTest, ExitCodesAndTheEnvironmentArrive) {
  Exits exits;
  auto processes = WorkerProcesses::Spawn({{"/bin/sh", "-c", "exit $CODE"}}, {"CODE=42"}, exits.callback());
  ASSERT_TRUE(processes.ok());
  const auto seen = exits.Wait(1);
  ASSERT_EQ(seen.size(), 1u);
  EXPECT_NE(seen[0].message.find("exited with code 42"), std::string::npos) << seen[0].message;
}

TEST(WorkerProcessesTest, TheDestructorLeavesNobodyBehindAndReportsNothing) {
  Exits exits;
  std::vector<pid_t> pids;
  {
    auto processes = WorkerProcesses::Spawn({kSleeper, kSleeper, kSleeper}, {}, exits.callback());
    ASSERT_TRUE(processes.ok());
    for (int rank = 0; rank < 3; ++rank) pids.push_back((*processes)->pid(rank));
  }
  for (pid_t pid : pids) EXPECT_FALSE(Alive(pid)) << "neither running nor a zombie";
  EXPECT_TRUE(exits.Wait(0).empty());
}

TEST(WorkerProcessesTest, WhoIgnoresSigtermIsKilled) {
  Exits exits;
  // The shell writes into the pipe once the trap is set.
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const std::string fifo = absl::StrCat("/proc/", getpid(), "/fd/", ready[1]);
  auto processes = WorkerProcesses::Spawn(
      {{"/bin/bash", "-c", "trap '' TERM; echo > " + fifo + "; while :; do read -t 1000 < /dev/zero; done"}},
      {}, exits.callback());
  ASSERT_TRUE(processes.ok());
  char byte;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  const pid_t pid = (*processes)->pid(0);
  (*processes)->Terminate(absl::Milliseconds(50));
  EXPECT_FALSE(Alive(pid));
  (*processes)->Terminate(absl::Milliseconds(50));
  close(ready[0]);
  close(ready[1]);
}

TEST(WorkerProcessesTest, ChildrenInheritNoDescriptors) {
  Exits exits;
  int low[2];
  ASSERT_EQ(pipe(low), 0);
  // Descriptors that are not close-on-exec, and above kLastWordsFd, which a worker inherits.
  const int leak[2] = {fcntl(low[0], F_DUPFD, 100), fcntl(low[1], F_DUPFD, 100)};
  auto processes = WorkerProcesses::Spawn(
      {{"/bin/sh", "-c", absl::StrCat("test ! -e /proc/self/fd/", leak[0], " && exit 7")}}, {},
      exits.callback());
  ASSERT_TRUE(processes.ok());
  const auto seen = exits.Wait(1);
  ASSERT_EQ(seen.size(), 1u);
  EXPECT_NE(seen[0].message.find("exited with code 7"), std::string::npos) << seen[0].message;
  for (const int fd : {low[0], low[1], leak[0], leak[1]}) close(fd);
}

TEST(WorkerProcessesTest, AMissingBinaryIsNamedAndTheOthersAreEnded) {
  Exits exits;
  const auto processes = WorkerProcesses::Spawn({kSleeper, {"/no/such/worker"}}, {}, exits.callback());
  EXPECT_TRUE(absl::IsNotFound(processes.status()));
  EXPECT_NE(processes.status().message().find("/no/such/worker"), absl::string_view::npos);
  EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1) << "no child is left";
}

TEST(WorkerProcessesTest, ARankIsStartedAgainAfterItsProcessHasEnded) {
  Exits exits;
  auto processes = WorkerProcesses::Spawn({kSleeper, kSleeper}, {}, exits.callback());
  ASSERT_TRUE(processes.ok()) << processes.status();
  const pid_t other = (*processes)->pid(0);
  const pid_t first = (*processes)->pid(1);
  const absl::Status running = (*processes)->Respawn(1);
  EXPECT_TRUE(absl::IsFailedPrecondition(running));
  EXPECT_EQ(running.message(), absl::StrCat("rank 1 (pid ", first, ") has not ended"));
  EXPECT_TRUE(absl::IsDeadlineExceeded((*processes)->AwaitExit(1, first, absl::ZeroDuration())));
  ASSERT_EQ(kill(first, SIGKILL), 0);
  ASSERT_TRUE((*processes)->AwaitExit(1, first, absl::InfiniteDuration()).ok());
  EXPECT_FALSE(Alive(first)) << "it is no zombie either";
  ASSERT_TRUE((*processes)->Respawn(1).ok());
  const pid_t second = (*processes)->pid(1);
  EXPECT_NE(second, first);
  EXPECT_TRUE((*processes)->AwaitExit(1, first, absl::InfiniteDuration()).ok()) << "it has another process";
  EXPECT_TRUE(Alive(second));
  EXPECT_EQ((*processes)->pid(0), other);
  EXPECT_TRUE(Alive(other));
  // The watcher sees the end of the process that was started during the watcher's wait.
  ASSERT_EQ(kill(second, SIGKILL), 0);
  const auto seen = exits.Wait(2);
  ASSERT_EQ(seen.size(), 2u);
  EXPECT_EQ(seen[0].pid, first);
  EXPECT_EQ(seen[1].rank, 1);
  EXPECT_EQ(seen[1].pid, second);
}

TEST(WorkerProcessesTest, AStoppedProcessIsKilledAndOneOfAnotherPidIsNot) {
  Exits exits;
  auto processes = WorkerProcesses::Spawn({kSleeper}, {}, exits.callback());
  ASSERT_TRUE(processes.ok()) << processes.status();
  const pid_t pid = (*processes)->pid(0);
  (*processes)->Kill(0, pid + 1);
  EXPECT_TRUE(absl::IsDeadlineExceeded((*processes)->AwaitExit(0, pid, absl::Milliseconds(50))));
  ASSERT_EQ(kill(pid, SIGSTOP), 0);
  (*processes)->Kill(0, pid);
  ASSERT_TRUE((*processes)->AwaitExit(0, pid, absl::InfiniteDuration()).ok());
  const auto seen = exits.Wait(1);
  ASSERT_EQ(seen.size(), 1u);
  EXPECT_EQ(seen[0].message, absl::StrCat("rank 0 (pid ", pid, ") was killed by signal 9 (Killed)"));
  (*processes)->Kill(0, pid);
  EXPECT_EQ(exits.Wait(0).size(), 1u) << "each process ends once";
}

TEST(WorkerProcessesTest, RespawnsLeaveNoDescriptorsAndNoZombies) {
  constexpr size_t kRespawns = 1000;
  Exits exits;
  // Each process ends by itself, and the exit callback starts the next one.
  absl::Mutex mu;
  WorkerProcesses* started = nullptr;
  size_t respawns = 0;
  const auto on_exit = [&](int rank, pid_t pid, const absl::Status& status) {
    {
      absl::MutexLock lock(&mu);
      const auto set = [&] { return started != nullptr; };
      mu.Await(absl::Condition(&set));
    }
    if (respawns++ < kRespawns) {
      ASSERT_TRUE(started->Respawn(rank).ok());
    }
    exits.callback()(rank, pid, status);
  };
  const size_t files = NumOpenFiles();
  {
    auto processes = WorkerProcesses::Spawn({{"/bin/true"}}, {}, on_exit);
    ASSERT_TRUE(processes.ok()) << processes.status();
    {
      absl::MutexLock lock(&mu);
      started = processes->get();
    }
    EXPECT_EQ(exits.Wait(kRespawns + 1).size(), kRespawns + 1);
    EXPECT_EQ(NumOpenFiles(), files + 1) << "only the watcher's eventfd is open";
    EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1) << "no child is left";
  }
  EXPECT_EQ(NumOpenFiles(), files);
}

// A process that is no child of this one. The process ends with the object.
class Stranger {
 public:
  Stranger() {
    int ends[2];
    EXPECT_EQ(pipe(ends), 0);
    if (fork() == 0) {
      const pid_t pid = fork();
      if (pid == 0) {
        execl("/bin/sleep", "sleep", "1000", static_cast<char*>(nullptr));
        _exit(127);
      }
      _exit(write(ends[1], &pid, sizeof(pid)) == sizeof(pid) ? 0 : 1);
    }
    wait(nullptr);
    EXPECT_EQ(read(ends[0], &pid_, sizeof(pid_)), static_cast<ssize_t>(sizeof(pid_)));
    close(ends[0]);
    close(ends[1]);
    id_ = FindProcess(pid_).value();
  }
  ~Stranger() { (void)EndProcesses({id_}, absl::ZeroDuration()); }

  pid_t pid() const { return pid_; }
  const ProcessId& id() const { return id_; }

 private:
  pid_t pid_ = 0;
  ProcessId id_;
};

TEST(WorkerProcessesTest, AnAdoptedProcessIsWatchedAndReplaced) {
  Exits exits;
  const Stranger stranger;
  auto processes = WorkerProcesses::Spawn({kSleeper, kSleeper}, {}, exits.callback(), {{1, stranger.id()}});
  ASSERT_TRUE(processes.ok()) << processes.status();
  EXPECT_EQ((*processes)->pid(1), stranger.pid());
  EXPECT_NE((*processes)->pid(0), stranger.pid());
  (*processes)->Kill(1, stranger.pid());
  const auto seen = exits.Wait(1);
  ASSERT_EQ(seen.size(), 1u);
  EXPECT_EQ(seen[0].message, absl::StrCat("rank 1 (pid ", stranger.pid(), ") has ended"));
  ASSERT_TRUE((*processes)->AwaitExit(1, stranger.pid(), absl::InfiniteDuration()).ok());
  ASSERT_TRUE((*processes)->Respawn(1).ok());
  EXPECT_NE((*processes)->pid(1), stranger.pid());
  EXPECT_TRUE(Alive((*processes)->pid(1)));
}

TEST(WorkerProcessesTest, TerminateEndsAdoptedProcessesToo) {
  Exits exits;
  const Stranger stranger;
  auto processes = WorkerProcesses::Spawn({kSleeper}, {}, exits.callback(), {{0, stranger.id()}});
  ASSERT_TRUE(processes.ok()) << processes.status();
  (*processes)->Terminate(absl::Minutes(1));
  EXPECT_FALSE(IsRunning(stranger.id()));
}

TEST(WorkerProcessesTest, AProcessThatHasEndedOrHasAnotherStartTimeIsNotAdopted) {
  Exits exits;
  const Stranger stranger;
  ProcessId other = stranger.id();
  other.start_time += 1;
  auto processes = WorkerProcesses::Spawn({kSleeper}, {}, exits.callback(), {{0, other}});
  ASSERT_TRUE(processes.ok()) << processes.status();
  EXPECT_NE((*processes)->pid(0), stranger.pid());
  EXPECT_TRUE(IsRunning(stranger.id()));
}

TEST(WorkerProcessesTest, ACommandLineThatIsWrongIsNoLossToRecoverFrom) {
  const std::vector<std::pair<std::string, absl::StatusCode>> cases = {
      {"exit 2", absl::StatusCode::kFailedPrecondition},
      {"exit 1", absl::StatusCode::kUnavailable},
      {"kill -2 $$", absl::StatusCode::kUnavailable}};
  for (const auto& [script, expected] : cases) {
    absl::Notification ended;
    absl::Status status;
    auto processes =
        WorkerProcesses::Spawn({{"/bin/sh", "-c", script}}, {}, [&](int, pid_t, const absl::Status& end) {
          status = end;
          ended.Notify();
        });
    ASSERT_TRUE(processes.ok()) << processes.status();
    ended.WaitForNotification();
    EXPECT_EQ(status.code(), expected) << status;
  }
}

TEST(WorkerProcessesTest, ProcessesThatAreLeftRunOnAndNobodyIsTold) {
  Exits exits;
  const size_t before = NumOpenFiles();
  auto processes = WorkerProcesses::Spawn({kSleeper, kSleeper}, {}, exits.callback());
  ASSERT_TRUE(processes.ok()) << processes.status();
  const pid_t pids[] = {(*processes)->pid(0), (*processes)->pid(1)};
  (*processes)->Leave();
  (*processes)->Terminate(absl::ZeroDuration());
  processes->reset();
  EXPECT_EQ(NumOpenFiles(), before);
  for (const pid_t pid : pids) {
    EXPECT_TRUE(Alive(pid));
    ASSERT_EQ(kill(pid, SIGKILL), 0);
    ASSERT_EQ(waitpid(pid, nullptr, 0), pid);
  }
  EXPECT_TRUE(exits.Wait(0).empty());
}

TEST(WorkerProcessesTest, NothingIsStartedAfterTerminate) {
  Exits exits;
  auto processes = WorkerProcesses::Spawn({kSleeper}, {}, exits.callback());
  ASSERT_TRUE(processes.ok()) << processes.status();
  const pid_t pid = (*processes)->pid(0);
  std::thread waits([&] { EXPECT_TRUE((*processes)->AwaitExit(0, pid, absl::InfiniteDuration()).ok()); });
  (*processes)->Terminate(absl::Minutes(1));
  waits.join();
  EXPECT_TRUE(absl::IsCancelled((*processes)->Respawn(0)));
  EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1) << "no child is left";
}

TEST(WorkerProcessesTest, RespawnsAndTheEndOfAllMayMeet) {
  for (int round = 0; round < 20; ++round) {
    Exits exits;
    auto processes = WorkerProcesses::Spawn({{"/bin/true"}, kSleeper}, {}, exits.callback());
    ASSERT_TRUE(processes.ok()) << processes.status();
    std::thread respawns([&] {
      while (!absl::IsCancelled((*processes)->Respawn(0))) {
        (void)(*processes)->AwaitExit(0, (*processes)->pid(0), absl::InfiniteDuration());
      }
    });
    exits.Wait(3);
    (*processes)->Terminate(absl::Minutes(1));
    respawns.join();
    EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1) << "no child is left";
  }
}

// A conversation between this process and a process that is forked off.
class Wire {
 public:
  Wire() { EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends_), 0); }
  ~Wire() {
    for (const int end : ends_) close(end);
  }

  // Called by both processes after the fork, each with a different end.
  void Keep(int end) {
    close(std::exchange(ends_[1 - end], -1));
    mine_ = ends_[end];
  }
  void Send(pid_t pid) const { (void)!send(mine_, &pid, sizeof(pid), MSG_NOSIGNAL); }
  // -1: the other process has ended.
  pid_t Receive() const {
    pid_t pid = -1;
    return read(mine_, &pid, sizeof(pid)) == static_cast<ssize_t>(sizeof(pid)) ? pid : -1;
  }

 private:
  int ends_[2];
  int mine_ = -1;
};

// Starts a process and ends it, while `tracer` keeps the process's end to itself.
void TerminateATracedProcess(const Wire& tracer) {
  Exits exits;
  const size_t files = NumOpenFiles();
  auto processes = WorkerProcesses::Spawn({kSleeper, {"/bin/true"}}, {}, exits.callback(), {},
                                          /*kill_patience=*/absl::ZeroDuration());
  ASSERT_TRUE(processes.ok()) << processes.status();
  const pid_t pid = (*processes)->pid(0);
  ASSERT_EQ(exits.Wait(1).size(), 1u) << "one process alone is let be";
  tracer.Send(pid);
  if (tracer.Receive() != pid) return;
  (*processes)->Terminate(absl::ZeroDuration());
  // The calls of a thread that comes too late.
  EXPECT_EQ((*processes)->pid(0), pid);
  (*processes)->Kill(0, pid);
  EXPECT_TRUE(absl::IsDeadlineExceeded((*processes)->AwaitExit(0, pid, absl::ZeroDuration())));
  EXPECT_TRUE((*processes)->AwaitExit(1, (*processes)->pid(1), absl::InfiniteDuration()).ok());
  EXPECT_TRUE(absl::IsCancelled((*processes)->Respawn(0)));
  (*processes)->Terminate(absl::ZeroDuration());
  processes->reset();
  EXPECT_EQ(NumOpenFiles(), files);
  tracer.Send(pid);
  EXPECT_EQ(waitpid(pid, nullptr, 0), pid) << "nobody has reaped it";
}

// The parent of a traced process does not see the process's end before the tracer has, so that such a process
// stays, as one does that the system cannot end.
TEST(WorkerProcessesTest, AProcessThatDoesNotEndIsLetBe) {
  Wire wire;
  const pid_t parent = fork();
  if (parent == 0) {
    wire.Keep(1);
    TerminateATracedProcess(wire);
    _exit(HasFailure() ? 1 : 0);
  }
  wire.Keep(0);
  const pid_t pid = wire.Receive();
  const bool traced = pid > 0 && ptrace(PTRACE_SEIZE, pid, nullptr, nullptr) == 0;
  wire.Send(traced ? pid : -1);
  int status = 0;
  if (traced) {
    EXPECT_EQ(wire.Receive(), pid) << "Terminate returns";
    kill(pid, SIGKILL);
    do {
      ASSERT_EQ(waitpid(pid, &status, __WALL), pid);
    } while (WIFSTOPPED(status));
  }
  ASSERT_EQ(waitpid(parent, &status, 0), parent);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  if (!traced) GTEST_SKIP() << "processes may not be traced here";
}

}  // namespace
}  // namespace somnus
