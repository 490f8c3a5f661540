// Two ranks of a real (tiny) model: one rank is lost, a newcomer takes the place, and the tokens are the same
// as in an undisturbed run.

#include <gtest/gtest.h>

#include <thread>

#include "absl/time/clock.h"
#include "tests/worker/rejoin_group.h"

namespace somnus {
namespace {

constexpr int kTokens = 20;  // more than a block holds

class RejoinTest : public testing::Test {
 protected:
  RejoinTest() : group_({.new_worker = [this] { return NewWorker(); }}) {
    const absl::Status formed = group_.Form();
    EXPECT_TRUE(formed.ok()) << formed;
    absl::StatusOr<std::vector<int32_t>> tokens = group_.Generate(kTokens);
    EXPECT_TRUE(tokens.ok()) << tokens.status();
    if (tokens.ok()) undisturbed_ = *std::move(tokens);
  }

  std::unique_ptr<Worker> NewWorker() {
    WorkerParts parts = RealWorkerParts();
    parts.open_checkpoint = [this, open = parts.open_checkpoint](const std::string& path, LoadFormat format) {
      ++opens_;
      return open(path, format);
    };
    return std::make_unique<Worker>(WorkerOptions{.num_threads = 1}, parts);
  }
  void ExpectSameTokens() {
    const absl::StatusOr<std::vector<int32_t>> tokens = group_.Generate(kTokens);
    ASSERT_TRUE(tokens.ok()) << tokens.status();
    EXPECT_EQ(*tokens, undisturbed_);
  }

  std::atomic<int> opens_{0};
  RejoinGroup group_;
  std::vector<int32_t> undisturbed_;
};

TEST_F(RejoinTest, ASequenceWhoseBlocksAreKeptGoesOnAfterEverySleep) {
  const absl::StatusOr<std::vector<int32_t>> tokens = group_.GenerateOverSleeps(kTokens);
  ASSERT_TRUE(tokens.ok()) << tokens.status();
  EXPECT_EQ(*tokens, undisturbed_);
  ExpectSameTokens();
}

TEST_F(RejoinTest, AfterAFailedStepTheTokensAreTheSame) {
  for (int i = 0; i < 3; ++i) {
    // Rank 1 does not come to a step; rank 0 waits for rank 1 until the abort.
    std::thread fence([&] {
      while (!group_.worker(0).step_in_progress()) absl::SleepFor(absl::Milliseconds(1));
      group_.worker(0).Abort("rank 1 is lost");
    });
    EXPECT_FALSE(group_.Generate(kTokens, /*absent=*/1).ok());
    fence.join();
    const absl::Status recovered = group_.Recover(0);
    ASSERT_TRUE(recovered.ok()) << recovered;
    ExpectSameTokens();
  }
  EXPECT_EQ(opens_, 2) << "survivors read their weights once";
}

TEST_F(RejoinTest, ANewcomerTakesEitherRanksPlaceWhileAwake) {
  for (const int rank : {1, 0}) {
    group_.Lose(rank);
    const absl::Status recovered = group_.Recover(0);
    ASSERT_TRUE(recovered.ok()) << recovered;
    ExpectSameTokens();
  }
  EXPECT_EQ(opens_, 4);
}

TEST_F(RejoinTest, ANewcomerTakesTheLostRanksPlaceWhileAsleep) {
  for (const int level : {1, 2}) {
    ASSERT_TRUE(group_.Sleep(level).ok());
    group_.Lose(1);
    const absl::Status recovered = group_.Recover(level);
    ASSERT_TRUE(recovered.ok()) << recovered;
    for (int rank = 0; rank < 2; ++rank) {
      EXPECT_EQ(group_.worker(rank).GetStatus().state(), "asleep");
      EXPECT_EQ(group_.worker(rank).GetStatus().sleep_level(), level);
    }
    const auto newcomer = group_.worker(1).GetStatus();
    for (const auto& [tag, bytes] : newcomer.bytes_by_tag())
      EXPECT_EQ(bytes, 0) << tag << ": a newcomer takes nothing of what sleeps";
    ASSERT_TRUE(group_.WakeUp().ok());
    ExpectSameTokens();
  }
}

}  // namespace
}  // namespace somnus
