// The wall clock jumps while a group forms, as when somebody corrects it: no deadline may end by that.

#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>

#include "absl/time/clock.h"
#include "tests/comm/rank_processes.h"
#include "worker/comm/communicator.h"

namespace {

std::atomic<int64_t> g_jump_seconds{0};

}  // namespace

// Takes the place of libc's in this program.
extern "C" int clock_gettime(clockid_t id, struct timespec* time) noexcept {
  const int result = static_cast<int>(syscall(SYS_clock_gettime, id, time));
  if (result == 0 && id == CLOCK_REALTIME) time->tv_sec += g_jump_seconds.load();
  return result;
}

namespace somnus {
namespace {

TEST(WallClockTest, AJumpDoesNotEndTheWaitForARank) {
  const absl::Time before = absl::Now();
  g_jump_seconds = 3600;
  ASSERT_GT(absl::Now() - before, absl::Minutes(59));  // the clock of this test is the one that is read
  g_jump_seconds = 0;

  const std::string group = UniqueGroupName();
  RankProcesses ranks(2, [&](int rank) {
    ShmCommunicatorOptions options;
    options.group_name = group;
    options.rank = rank;
    options.world_size = 2;
    std::thread jump([] {
      absl::SleepFor(absl::Milliseconds(100));
      g_jump_seconds = 3600;
    });
    // Longer than rank 0 sleeps before it looks at its clock again.
    if (rank == 1) absl::SleepFor(absl::Milliseconds(1500));
    const auto comm = MakeShmCommunicator(options);
    jump.join();
    if (!comm.ok()) return 1;
    return (*comm)->Barrier().ok() ? 0 : 2;
  });
  EXPECT_TRUE(ranks.AllGood());
}

}  // namespace
}  // namespace somnus
