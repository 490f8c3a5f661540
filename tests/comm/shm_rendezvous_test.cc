// Groups in shared memory that cannot form: an error that names the missing part, never a hang.

#include <gtest/gtest.h>

#include "absl/time/clock.h"
#include "tests/comm/rank_processes.h"
#include "tests/fakes/unique_name.h"
#include "worker/comm/communicator.h"

namespace somnus {
namespace {

GroupOptions Options(const std::string& group, int rank, int world_size) {
  GroupOptions options;
  options.group_name = group;
  options.rank = rank;
  options.world_size = world_size;
  options.collective_timeout = absl::Seconds(60);
  return options;
}

TEST(ShmRendezvous, MissingRankIsNamed) {
  GroupOptions options = Options(UniqueName(), 0, 3);
  options.connect_timeout = absl::Milliseconds(300);
  const auto host = MakeShmCommunicator(options);
  EXPECT_TRUE(absl::IsDeadlineExceeded(host.status()));
  EXPECT_NE(host.status().message().find("rank 1, 2"), std::string::npos) << host.status();
  options.rank = 2;
  const auto other = MakeShmCommunicator(options);
  EXPECT_TRUE(absl::IsDeadlineExceeded(other.status()));
  EXPECT_NE(other.status().message().find("rank 0"), std::string::npos) << other.status();
}

TEST(ShmRendezvous, AGroupThatIsNotWantedAnyLongerEndsTheWait) {
  for (const int rank : {0, 1}) {
    GroupOptions options = Options(UniqueName(), rank, 2);
    int asked = 0;
    options.cancelled = [&] { return ++asked >= 3; };
    const auto comm = MakeShmCommunicator(options);
    EXPECT_TRUE(absl::IsAborted(comm.status())) << comm.status();
  }
}

TEST(ShmRendezvous, RankThatDiesWhileTheGroupForms) {
  const std::string group = UniqueName();
  RankProcesses ranks(3, [&](int r) {
    if (r == 2) {
      absl::SleepFor(absl::Seconds(3));  // arrives late, at a group that has given up or lacks rank 1
      GroupOptions options = Options(group, r, 3);
      options.connect_timeout = absl::Seconds(1);
      return MakeShmCommunicator(options).ok() ? 1 : 0;
    }
    GroupOptions options = Options(group, r, 3);
    options.connect_timeout = absl::Seconds(20);
    return MakeShmCommunicator(options).ok() ? 1 : 0;
  });
  absl::SleepFor(absl::Milliseconds(500));
  ranks.Kill(1);
  EXPECT_EQ(ranks.Wait(0), 0);
  EXPECT_EQ(ranks.Wait(2), 0);
}

TEST(ShmRendezvous, BadOptionsAreNamed) {
  const auto message = [](GroupOptions options) {
    const auto made = MakeShmCommunicator(options);
    EXPECT_TRUE(absl::IsInvalidArgument(made.status()));
    return std::string(made.status().message());
  };
  GroupOptions good = Options("g", 0, 2);
  GroupOptions bad = good;
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
