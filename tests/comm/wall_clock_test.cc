// The wall clock jumps while a group forms, as when somebody corrects the clock: no deadline may end by the
// jump.

#include <gtest/gtest.h>

#include <thread>

#include "absl/time/clock.h"
#include "tests/comm/rank_processes.h"
#include "tests/comm/tcp_group.h"
#include "tests/fakes/jumping_clock.h"
#include "tests/fakes/unique_name.h"
#include "worker/comm/communicator.h"

namespace somnus {
namespace {

TEST(WallClockTest, TheClockOfThisTestIsTheOneThatIsRead) {
  const absl::Time before = absl::Now();
  g_wall_clock_seconds = 3600;
  EXPECT_GT(absl::Now() - before, absl::Minutes(59));
  g_wall_clock_seconds = 0;
}

TEST(WallClockTest, AJumpDoesNotEndTheWaitForARank) {
  const std::string group = UniqueName();
  RankProcesses ranks(2, [&](int rank) {
    GroupOptions options{.group_name = group, .rank = rank, .world_size = 2};
    std::thread jump([] {
      absl::SleepFor(absl::Milliseconds(100));
      g_wall_clock_seconds = 3600;
    });
    // Longer than rank 0 sleeps between two looks at the clock.
    if (rank == 1) absl::SleepFor(absl::Milliseconds(1500));
    const auto comm = MakeShmCommunicator(options);
    jump.join();
    if (!comm.ok()) return 1;
    return (*comm)->Barrier().ok() ? 0 : 2;
  });
  EXPECT_TRUE(ranks.AllGood());
}

TEST(WallClockTest, AJumpDoesNotEndTheWaitForARankOnAnotherHost) {
  TcpGroup group(2);
  RankProcesses ranks(2, [&](int rank) {
    std::thread jump([] {
      absl::SleepFor(absl::Milliseconds(100));
      g_wall_clock_seconds = 3600;
    });
    if (rank == 1) absl::SleepFor(absl::Milliseconds(500));
    const auto comm = group.Join(rank);
    jump.join();
    if (!comm.ok()) return 1;
    if (rank == 1) absl::SleepFor(absl::Milliseconds(500));
    return (*comm)->Barrier().ok() ? 0 : 2;
  });
  EXPECT_TRUE(ranks.AllGood());
}

}  // namespace
}  // namespace somnus
