#include "coordinator/executor/worker_process.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"

namespace somnus {
namespace {

class Exits {
 public:
  WorkerProcesses::ExitCallback callback() {
    return [this](int rank, const absl::Status& status) {
      absl::MutexLock lock(&mu_);
      seen_.push_back({rank, std::string(status.message())});
    };
  }
  // The first `count` exits, or fewer after a minute.
  std::vector<std::pair<int, std::string>> Wait(size_t count) {
    absl::MutexLock lock(&mu_);
    const auto enough = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return seen_.size() >= count; };
    mu_.AwaitWithTimeout(absl::Condition(&enough), absl::Minutes(1));
    return seen_;
  }

 private:
  absl::Mutex mu_;
  std::vector<std::pair<int, std::string>> seen_ ABSL_GUARDED_BY(mu_);
};

const std::vector<std::string> kSleeper = {"/bin/sleep", "1000"};

bool Alive(pid_t pid) { return kill(pid, 0) == 0; }

TEST(WorkerProcessesTest, AKilledChildIsReportedWithRankPidAndSignal) {
  Exits exits;
  auto processes = WorkerProcesses::Spawn({kSleeper, kSleeper}, {}, exits.callback());
  ASSERT_TRUE(processes.ok()) << processes.status();
  const pid_t pid = (*processes)->pid(1);
  ASSERT_EQ(kill(pid, SIGKILL), 0);
  const auto seen = exits.Wait(1);
  ASSERT_EQ(seen.size(), 1u);
  EXPECT_EQ(seen[0].first, 1);
  EXPECT_EQ(seen[0].second, absl::StrCat("rank 1 (pid ", pid, ") was killed by signal 9 (Killed)"));
  EXPECT_TRUE(Alive((*processes)->pid(0)));
}

TEST(WorkerProcessesTest, ExitCodesAndTheEnvironmentArrive) {
  Exits exits;
  auto processes = WorkerProcesses::Spawn({{"/bin/sh", "-c", "exit $CODE"}}, {"CODE=42"}, exits.callback());
  ASSERT_TRUE(processes.ok());
  const auto seen = exits.Wait(1);
  ASSERT_EQ(seen.size(), 1u);
  EXPECT_NE(seen[0].second.find("exited with code 42"), std::string::npos) << seen[0].second;
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
  // The shell writes into the pipe once its trap is set.
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
  int leak[2];
  ASSERT_EQ(pipe(leak), 0);  // not close-on-exec
  auto processes = WorkerProcesses::Spawn(
      {{"/bin/sh", "-c", absl::StrCat("test ! -e /proc/self/fd/", leak[0], " && exit 7")}}, {},
      exits.callback());
  ASSERT_TRUE(processes.ok());
  const auto seen = exits.Wait(1);
  ASSERT_EQ(seen.size(), 1u);
  EXPECT_NE(seen[0].second.find("exited with code 7"), std::string::npos) << seen[0].second;
  close(leak[0]);
  close(leak[1]);
}

TEST(WorkerProcessesTest, AMissingBinaryIsNamedAndTheOthersAreEnded) {
  Exits exits;
  const auto processes = WorkerProcesses::Spawn({kSleeper, {"/no/such/worker"}}, {}, exits.callback());
  EXPECT_TRUE(absl::IsNotFound(processes.status()));
  EXPECT_NE(processes.status().message().find("/no/such/worker"), absl::string_view::npos);
  EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1) << "no child is left";
}

}  // namespace
}  // namespace somnus
