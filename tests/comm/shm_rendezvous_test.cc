// Collectives that cannot complete: an error within a second, on every rank, never a hang.

#include <gtest/gtest.h>

#include <thread>

#include "absl/time/clock.h"
#include "tests/comm/rank_processes.h"
#include "worker/comm/communicator.h"

namespace somnus {
namespace {

// The promise is one second; the rest is for machines where the test does not get a CPU at once.
constexpr absl::Duration kSoon = absl::Seconds(5);

ShmCommunicatorOptions Options(const std::string& group, int rank, int world_size) {
  ShmCommunicatorOptions options;
  options.group_name = group;
  options.rank = rank;
  options.world_size = world_size;
  options.collective_timeout = absl::Seconds(60);
  return options;
}

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
  return absl::Now() - start < kSoon ? 0 : 4;
}

TEST(ShmFailure, KilledPeerIsAnErrorOnEveryOther) {
  for (const int victim : {0, 1, 2}) {
    const std::string group = UniqueGroupName();
    RankProcesses ranks(3, [&](int r) {
      auto comm = MakeShmCommunicator(Options(group, r, 3));
      return comm.ok() ? CallUntilError(**comm, absl::StatusCode::kUnavailable) : 1;
    });
    absl::SleepFor(absl::Milliseconds(200));
    const absl::Time killed = absl::Now();
    ranks.Kill(victim);  // stays a zombie until the end of the loop: that counts as dead too
    for (int r = 0; r < 3; ++r) {
      if (r == victim) continue;
      EXPECT_EQ(ranks.Wait(r), 0) << "rank " << r << ", victim " << victim;
    }
    EXPECT_LT(absl::Now() - killed, kSoon);
  }
}

TEST(ShmFailure, RankThatLeavesIsAnError) {
  const std::string group = UniqueGroupName();
  RankProcesses ranks(2, [&](int r) {
    auto comm = MakeShmCommunicator(Options(group, r, 2));
    if (!comm.ok() || !(*comm)->Barrier().ok()) return 1;
    if (r == 1) {
      comm->reset();
      absl::SleepFor(absl::Seconds(20));  // alive, but out of the group
      return 0;
    }
    return CallUntilError(**comm, absl::StatusCode::kUnavailable);
  });
  EXPECT_EQ(ranks.Wait(0), 0);
}

TEST(ShmFailure, AbortWakesEveryRank) {
  const std::string group = UniqueGroupName();
  RankProcesses ranks(3, [&](int r) {
    auto comm = MakeShmCommunicator(Options(group, r, 3));
    if (!comm.ok() || !(*comm)->Barrier().ok()) return 1;
    if (r == 2) {  // never calls the next barrier
      absl::SleepFor(absl::Milliseconds(300));
      (*comm)->Abort("told so");
      absl::SleepFor(absl::Seconds(20));
      return 0;
    }
    const absl::Status status = (*comm)->Barrier();
    return absl::IsAborted(status) && status.message() == "told so" ? 0 : 2;
  });
  EXPECT_EQ(ranks.Wait(0), 0);
  EXPECT_EQ(ranks.Wait(1), 0);
}

TEST(ShmFailure, AbortFromAnotherThreadEndsTheOwnWait) {
  const std::string group = UniqueGroupName();
  RankProcesses ranks(2, [&](int r) {
    auto comm = MakeShmCommunicator(Options(group, r, 2));
    if (!comm.ok()) return 1;
    if (r == 1) {
      absl::SleepFor(absl::Seconds(20));
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

TEST(ShmFailure, TimeoutWhenAPeerStaysAway) {
  const std::string group = UniqueGroupName();
  RankProcesses ranks(2, [&](int r) {
    ShmCommunicatorOptions options = Options(group, r, 2);
    options.collective_timeout = absl::Milliseconds(400);
    auto comm = MakeShmCommunicator(options);
    if (!comm.ok()) return 1;
    if (r == 1) {
      absl::SleepFor(absl::Seconds(20));
      return 0;
    }
    return CallUntilError(**comm, absl::StatusCode::kDeadlineExceeded);
  });
  EXPECT_EQ(ranks.Wait(0), 0);
}

// status() while no collective is under way.
TEST(ShmFailure, StatusTellsOfDeathAndAbort) {
  const std::string group = UniqueGroupName();
  RankProcesses ranks(2, [&](int r) {
    auto comm = MakeShmCommunicator(Options(group, r, 2));
    if (!comm.ok() || !(*comm)->status().ok() || !(*comm)->Barrier().ok()) return 1;
    if (r == 1) {
      absl::SleepFor(absl::Seconds(20));
      return 0;
    }
    const absl::Time start = absl::Now();
    while ((*comm)->status().ok() && absl::Now() - start < kSoon) absl::SleepFor(absl::Milliseconds(5));
    if (!absl::IsUnavailable((*comm)->status())) return 2;
    (*comm)->Abort("told so");
    return absl::IsAborted((*comm)->status()) ? 0 : 3;
  });
  absl::SleepFor(absl::Milliseconds(300));
  ranks.Kill(1);
  EXPECT_EQ(ranks.Wait(0), 0);
}

TEST(ShmFailure, DifferentTypesAreAnErrorToo) {
  const std::string group = UniqueGroupName();
  RankProcesses ranks(2, [&](int r) {
    auto comm = MakeShmCommunicator(Options(group, r, 2));
    if (!comm.ok()) return 1;
    float data[8] = {};
    const absl::Status status = (*comm)->AllReduceSum(data, 8, r == 0 ? DataType::kBF16 : DataType::kF16);
    return absl::IsInternal(status) || absl::IsAborted(status) ? 0 : 2;
  });
  EXPECT_TRUE(ranks.AllGood());
}

TEST(ShmFailure, DifferentCallsAreAnErrorNotGarbage) {
  const std::string group = UniqueGroupName();
  RankProcesses ranks(2, [&](int r) {
    auto comm = MakeShmCommunicator(Options(group, r, 2));
    if (!comm.ok()) return 1;
    float data[8] = {};
    const absl::Status status = (*comm)->AllReduceSum(data, 4 + r, DataType::kF32);
    return absl::IsInternal(status) || absl::IsAborted(status) ? 0 : 2;
  });
  EXPECT_TRUE(ranks.AllGood());
}

TEST(ShmFailure, MissingRankIsNamed) {
  ShmCommunicatorOptions options = Options(UniqueGroupName(), 0, 3);
  options.connect_timeout = absl::Milliseconds(300);
  const auto host = MakeShmCommunicator(options);
  EXPECT_TRUE(absl::IsDeadlineExceeded(host.status()));
  EXPECT_NE(host.status().message().find("rank 1, 2"), std::string::npos) << host.status();
  options.rank = 2;
  const auto guest = MakeShmCommunicator(options);
  EXPECT_TRUE(absl::IsDeadlineExceeded(guest.status()));
  EXPECT_NE(guest.status().message().find("rank 0"), std::string::npos) << guest.status();
}

TEST(ShmFailure, AGroupThatIsNotWantedAnyLongerEndsTheWait) {
  for (const int rank : {0, 1}) {
    ShmCommunicatorOptions options = Options(UniqueGroupName(), rank, 2);
    int asked = 0;
    options.cancelled = [&] { return ++asked >= 3; };
    const auto comm = MakeShmCommunicator(options);
    EXPECT_TRUE(absl::IsAborted(comm.status())) << comm.status();
  }
}

TEST(ShmFailure, RankThatDiesWhileTheGroupForms) {
  const std::string group = UniqueGroupName();
  RankProcesses ranks(3, [&](int r) {
    if (r == 2) {
      absl::SleepFor(absl::Seconds(3));  // arrives late, at a group that has given up or lacks rank 1
      ShmCommunicatorOptions options = Options(group, r, 3);
      options.connect_timeout = absl::Seconds(1);
      return MakeShmCommunicator(options).ok() ? 1 : 0;
    }
    ShmCommunicatorOptions options = Options(group, r, 3);
    options.connect_timeout = absl::Seconds(20);
    return MakeShmCommunicator(options).ok() ? 1 : 0;
  });
  absl::SleepFor(absl::Milliseconds(500));
  ranks.Kill(1);
  EXPECT_EQ(ranks.Wait(0), 0);
  EXPECT_EQ(ranks.Wait(2), 0);
}

TEST(ShmFailure, BadOptionsAreNamed) {
  const auto message = [](ShmCommunicatorOptions options) {
    const auto made = MakeShmCommunicator(options);
    EXPECT_TRUE(absl::IsInvalidArgument(made.status()));
    return std::string(made.status().message());
  };
  ShmCommunicatorOptions good = Options("g", 0, 2);
  ShmCommunicatorOptions bad = good;
  bad.group_name = "../x";
  EXPECT_EQ(message(bad).find("group_name"), 0u);
  bad = good;
  bad.group_name = std::string(65, 'a');
  EXPECT_EQ(message(bad).find("group_name"), 0u);
  bad = good;
  bad.rank = 2;
  EXPECT_EQ(message(bad).find("rank"), 0u);
  bad = good;
  bad.world_size = 0;
  EXPECT_EQ(message(bad).find("world_size"), 0u);
  bad = good;
  bad.buffer_bytes = 100;
  EXPECT_EQ(message(bad).find("buffer_bytes"), 0u);
}

}  // namespace
}  // namespace somnus
