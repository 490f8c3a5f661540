// The workers of an earlier coordinator that go on, at whichever moment a worker registers.

#include "coordinator/group/left_workers.h"

#include <gtest/gtest.h>

#include <optional>

#include "absl/time/time.h"

namespace somnus {
namespace {

constexpr ProcessId kFirst{.pid = 100, .start_time = 7};
constexpr ProcessId kSecond{.pid = 200, .start_time = 8};

class LeftWorkersTest : public testing::Test {
 protected:
  LeftWorkersTest() { workers_.Expect({{0, kFirst}, {1, kSecond}}); }
  // The rank of a process that registers, where the process is known.
  std::optional<int> Register(const ProcessId& process, v1::RegisterAction action) {
    std::optional<int> known;
    workers_.Decide(process.pid, [&](int rank) {
      known = rank;
      return Adoption{action, ""};
    });
    return known;
  }
  std::optional<int> Adopt(const ProcessId& process) { return Register(process, v1::REGISTER_ACTION_ADOPT); }

  LeftWorkers workers_;
};

// A fast worker registers between the listener's opening and the wait for workers that were left.
TEST_F(LeftWorkersTest, WhoRegistersBeforeTheWaitGoesOn) {
  EXPECT_EQ(Adopt(kSecond), 1);
  EXPECT_EQ(Adopt(kFirst), 0);
  const LeftWorkers::Outcome outcome = workers_.Await(absl::InfiniteDuration());
  EXPECT_EQ(outcome.adopted, (ProcessesByRank{{0, kFirst}, {1, kSecond}}));
  EXPECT_TRUE(outcome.others.empty());
  EXPECT_EQ(workers_.num_adopted(), 2);
}

TEST_F(LeftWorkersTest, WhoIsRefusedEnds) {
  EXPECT_EQ(Register(kFirst, v1::REGISTER_ACTION_LEAVE), 0);
  EXPECT_EQ(Adopt(kSecond), 1);
  const LeftWorkers::Outcome outcome = workers_.Await(absl::InfiniteDuration());
  EXPECT_EQ(outcome.adopted, (ProcessesByRank{{1, kSecond}}));
  EXPECT_EQ(outcome.others, std::vector<ProcessId>{kFirst});
  EXPECT_EQ(Adopt(kFirst), std::nullopt);
  EXPECT_EQ(Adopt(kSecond), 1) << "it registers again";
}

TEST_F(LeftWorkersTest, WhoComesTooLateEnds) {
  const LeftWorkers::Outcome outcome = workers_.Await(absl::ZeroDuration());
  EXPECT_TRUE(outcome.adopted.empty());
  EXPECT_EQ(outcome.others, (std::vector<ProcessId>{kFirst, kSecond}));
  EXPECT_EQ(Adopt(kFirst), std::nullopt);
  EXPECT_EQ(workers_.num_adopted(), 0);
}

TEST_F(LeftWorkersTest, WhereNobodyWasLeftNothingIsWaitedFor) {
  workers_.Expect({});
  EXPECT_TRUE(workers_.Await(absl::InfiniteDuration()).adopted.empty());
  EXPECT_EQ(Adopt(kFirst), std::nullopt);
  EXPECT_EQ(workers_.num_adopted(), 0);
}

}  // namespace
}  // namespace somnus
