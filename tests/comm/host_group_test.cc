// The promise of a group of ranks on CPUs, in shared memory and over TCP alike: a collective that cannot
// complete is an error within a second, on every rank, and never a hang.

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>

#include <optional>
#include <random>
#include <thread>

#include "absl/time/clock.h"
#include "tests/comm/tcp_group.h"
#include "tests/fakes/unique_name.h"
#include "worker/comm/communicator.h"

namespace somnus {
namespace {

// The promise is one second; the rest is for machines where the test does not get a CPU at once.
constexpr absl::Duration kSoon = absl::Seconds(5);
// Longer than any test takes: such a rank is killed in the end.
constexpr absl::Duration kForGood = absl::Seconds(60);

enum class Transport { kSharedMemory, kTcp };

// Ranks that are forked processes.
class Group {
 public:
  Group(Transport transport, int world_size, absl::Duration collective_timeout = absl::Seconds(60)) {
    if (transport == Transport::kTcp) {
      tcp_.emplace(world_size);
      tcp_->options().collective_timeout = collective_timeout;
    }
    shm_.group_name = UniqueName();
    shm_.world_size = world_size;
    shm_.collective_timeout = collective_timeout;
  }

  // To be called in the rank's own process.
  absl::StatusOr<std::unique_ptr<Communicator>> Join(int rank) {
    if (tcp_.has_value()) return tcp_->Join(rank);
    shm_.rank = rank;
    return MakeShmCommunicator(shm_);
  }
  // To be called in the process that only watches, once the ranks are forked.
  void CloseAll() {
    if (tcp_.has_value()) tcp_->CloseAll();
  }

 private:
  GroupOptions shm_;
  std::optional<TcpGroup> tcp_;
};

// Lets a child tell the parent that the child is so far.
class Signal {
 public:
  Signal() {
    sigemptyset(&set_);
    sigaddset(&set_, SIGUSR1);
    sigprocmask(SIG_BLOCK, &set_, nullptr);
  }
  void Send() const { kill(getppid(), SIGUSR1); }
  void Await() const {
    int signal = 0;
    sigwait(&set_, &signal);
  }

 private:
  sigset_t set_;
};

// Exit code 0: calls worked until one failed with `code`, and from then on all fail alike and at once.
int CallUntilError(Communicator& comm, absl::StatusCode code) {
  std::vector<float> data(100000, 1);
  absl::Status status;
  while (status.ok())
    status = comm.AllReduceSum(data.data(), static_cast<int64_t>(data.size()), DataType::kF32);
  if (status.code() != code) return 2;
  float byte = 0;
  const absl::Time start = absl::Now();
  if (comm.AllGather(&byte, 4, data.data()).code() != code || comm.Barrier().code() != code) return 3;
  if (comm.status().ok()) return 4;
  return absl::Now() - start < kSoon ? 0 : 5;
}

class HostGroup : public testing::TestWithParam<Transport> {};

TEST_P(HostGroup, AKilledPeerIsAnErrorOnEveryOther) {
  for (const int victim : {0, 1, 2}) {
    Group group(GetParam(), 3);
    RankProcesses ranks(3, [&](int r) {
      auto comm = group.Join(r);
      return comm.ok() ? CallUntilError(**comm, absl::StatusCode::kUnavailable) : 1;
    });
    group.CloseAll();
    absl::SleepFor(absl::Milliseconds(300));  // most times the kill meets a collective
    const absl::Time killed = absl::Now();
    ranks.Kill(victim);  // stays a zombie until the end of the loop: that counts as dead too
    for (int r = 0; r < 3; ++r) {
      if (r == victim) continue;
      EXPECT_EQ(ranks.Wait(r), 0) << "rank " << r << ", victim " << victim;
    }
    EXPECT_LT(absl::Now() - killed, kSoon);
  }
}

TEST_P(HostGroup, ARankThatLeavesIsAnError) {
  Group group(GetParam(), 2);
  RankProcesses ranks(2, [&](int r) {
    auto comm = group.Join(r);
    if (!comm.ok() || !(*comm)->Barrier().ok()) return 1;
    if (r == 0) return CallUntilError(**comm, absl::StatusCode::kUnavailable);
    comm->reset();
    absl::SleepFor(kForGood);  // alive, but out of the group
    return 0;
  });
  EXPECT_EQ(ranks.Wait(0), 0);
}

TEST_P(HostGroup, AbortWakesEveryRank) {
  Group group(GetParam(), 3);
  RankProcesses ranks(3, [&](int r) {
    auto comm = group.Join(r);
    if (r == 2) {  // never calls the barrier
      if (comm.ok()) (*comm)->Abort("told so");
      absl::SleepFor(kForGood);
      return 0;
    }
    // Over TCP the abort may come before this rank has seen that the group is complete.
    const absl::Status status = comm.ok() ? (*comm)->Barrier() : comm.status();
    if (!absl::IsAborted(status) || status.message() != "told so") return 2;
    return !comm.ok() || (*comm)->status() == status ? 0 : 3;
  });
  EXPECT_EQ(ranks.Wait(0), 0);
  EXPECT_EQ(ranks.Wait(1), 0);
}

TEST_P(HostGroup, AbortFromAnotherThreadEndsTheOwnWait) {
  Group group(GetParam(), 2);
  RankProcesses ranks(2, [&](int r) {
    auto comm = group.Join(r);
    if (!comm.ok()) return 1;
    if (r == 1) {
      absl::SleepFor(kForGood);
      return 0;
    }
    std::thread aborter([&] {
      absl::SleepFor(absl::Milliseconds(200));
      (*comm)->Abort("first");
      (*comm)->Abort("second");
    });
    const absl::Status status = (*comm)->Barrier();
    aborter.join();
    return absl::IsAborted(status) && status.message() == "first" ? 0 : 2;
  });
  EXPECT_EQ(ranks.Wait(0), 0);
}

TEST_P(HostGroup, TimeoutWhenAPeerStaysAway) {
  Group group(GetParam(), 2, absl::Milliseconds(400));
  RankProcesses ranks(2, [&](int r) {
    auto comm = group.Join(r);
    if (!comm.ok()) return 1;
    if (r == 1) {
      absl::SleepFor(kForGood);
      return 0;
    }
    return CallUntilError(**comm, absl::StatusCode::kDeadlineExceeded);
  });
  EXPECT_EQ(ranks.Wait(0), 0);
}

// status() while no collective is under way.
TEST_P(HostGroup, StatusTellsOfDeathAndAbort) {
  const Signal joined;
  Group group(GetParam(), 2);
  RankProcesses ranks(2, [&](int r) {
    auto comm = group.Join(r);
    if (!comm.ok() || !(*comm)->status().ok() || !(*comm)->Barrier().ok()) return 1;
    if (r == 1) {
      absl::SleepFor(kForGood);
      return 0;
    }
    joined.Send();
    const absl::Time start = absl::Now();
    while ((*comm)->status().ok() && absl::Now() - start < kSoon) absl::SleepFor(absl::Milliseconds(5));
    if (!absl::IsUnavailable((*comm)->status())) return 2;
    (*comm)->Abort("told so");
    return absl::IsAborted((*comm)->status()) ? 0 : 3;
  });
  joined.Await();
  ranks.Kill(1);
  EXPECT_EQ(ranks.Wait(0), 0);
}

TEST_P(HostGroup, DifferentCallsAreAnErrorNotGarbage) {
  for (const bool types : {false, true}) {
    Group group(GetParam(), 2);
    RankProcesses ranks(2, [&](int r) {
      auto comm = group.Join(r);
      if (!comm.ok()) return 1;
      float data[8] = {};
      const DataType type = types && r == 1 ? DataType::kF16 : DataType::kBF16;
      const absl::Status status = (*comm)->AllReduceSum(data, types ? 8 : 4 + r, type);
      // In shared memory the first rank that sees the difference aborts the others.
      return absl::IsInternal(status) || (GetParam() == Transport::kSharedMemory && absl::IsAborted(status))
                 ? 0
                 : 2;
    });
    EXPECT_TRUE(ranks.AllGood()) << types;
  }
}

// Buffers are used again many times by ranks that run ahead, by a round at most, or come late.
TEST_P(HostGroup, ManySmallCallsWithDawdlersComplete) {
  Group group(GetParam(), 3);
  RankProcesses ranks(3, [&](int r) {
    auto comm = group.Join(r);
    if (!comm.ok()) return 1;
    std::mt19937 random(r);
    for (int i = 0; i < 2000; ++i) {
      float data[5] = {1.0f * i, 2.0f * r, 1, 0, -1.0f * i};
      if (random() % 64 == 0) absl::SleepFor(absl::Microseconds(random() % 300));
      if (!(*comm)->AllReduceSum(data, 5, DataType::kF32).ok()) return 2;
      if (data[0] != 3.0f * i || data[1] != 6 || data[2] != 3 || data[4] != -3.0f * i) return 3;
    }
    return 0;
  });
  EXPECT_TRUE(ranks.AllGood());
}

// As ranks in two containers of one host: neither sees the other's processes, and both have pid 1.
TEST(SharedMemoryGroup, RanksInPidNamespacesOfTheirOwnSeeADeath) {
  Group group(Transport::kSharedMemory, 3);
  const auto run = [&](int r) {
    auto comm = group.Join(r);
    if (!comm.ok() || !(*comm)->Barrier().ok() || !(*comm)->status().ok() || !(*comm)->Barrier().ok())
      return 1;
    if (r == 1) _exit(0);
    return CallUntilError(**comm, absl::StatusCode::kUnavailable);
  };
  constexpr int kNotAllowed = 77;
  RankProcesses ranks(3, [&](int r) {
    if (r == 0) return run(r);
    if (unshare(CLONE_NEWPID | CLONE_NEWNS) != 0) return kNotAllowed;
    RankProcesses inner(1, [&](int) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      const bool contained = mount("", "/", "", MS_REC | MS_PRIVATE, "") == 0 &&
                             mount("proc", "/proc", "proc", 0, "") == 0 && getpid() == 1;
      return contained ? run(r) : kNotAllowed;
    });
    return inner.Wait(0);
  });
  const int of_rank_1 = ranks.Wait(1);
  if (of_rank_1 == kNotAllowed) GTEST_SKIP() << "needs the right to make pid namespaces";
  EXPECT_EQ(of_rank_1, 0);
  EXPECT_EQ(ranks.Wait(0), 0);
  EXPECT_EQ(ranks.Wait(2), 0);
}

INSTANTIATE_TEST_SUITE_P(Comm, HostGroup, testing::Values(Transport::kSharedMemory, Transport::kTcp),
                         [](const auto& info) {
                           return info.param == Transport::kTcp ? "Tcp" : "SharedMemory";
                         });

}  // namespace
}  // namespace somnus
