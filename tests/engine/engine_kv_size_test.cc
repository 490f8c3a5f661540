// The size of the KV cache, while requests run, in a sleep, and when the group is lost: exactly the tokens of
// an undisturbed run, and the fake worker refuses every block that has no memory.

#include <gtest/gtest.h>

#include <optional>
#include <random>
#include <thread>

#include "tests/engine/engine_test_util.h"

namespace somnus {
namespace {

using Calls = std::vector<std::string>;

constexpr int32_t kMaxBlocks = 199, kLongest = 10;

EngineOptions Elastic(bool async_scheduling = true) {
  EngineOptions options = SmallEngine(async_scheduling);
  options.scheduler.max_model_len = 40;
  options.scheduler.blocks.num_blocks = kMaxBlocks + 1;
  return options;
}

class EngineKvSizeTest : public ::testing::Test {
 protected:
  void Start(const EngineOptions& options = Elastic()) {
    engine_.reset();  // before the engine's executor
    executor_.emplace(SmallWorker(options));
    executor_->SetRecovery(FakeExecutor::Recovery::kSucceeds);
    engine_.emplace(options, &*executor_, nullptr);
  }
  void ExpectTokens(const Ticket& ticket) {
    ASSERT_TRUE(ticket.sink->Wait());
    EXPECT_EQ(ticket.sink->reason(), FinishReason::kLength) << ticket.sink->error();
    EXPECT_EQ(ticket.sink->tokens(), Reference(ticket));
  }
  void ExpectServes(const std::string& id) {
    Ticket ticket = MakeTicket(id, 9, 20);
    ASSERT_TRUE(engine_->Submit(ticket.request).ok());
    ExpectTokens(ticket);
  }

  std::optional<FakeExecutor> executor_;
  std::optional<EngineLoop> engine_;
};

TEST_F(EngineKvSizeTest, AnIdleCacheShrinksAndGrows) {
  Start();
  EXPECT_EQ(engine_->Stats().mapped_blocks, kMaxBlocks);
  EXPECT_EQ(engine_->Stats().longest_blocks, kLongest);
  ExpectServes("a");
  EXPECT_EQ(engine_->ResizeKvCache(20).value(), 20);
  EngineStats stats = engine_->Stats();
  EXPECT_EQ(stats.mapped_blocks, 20);
  EXPECT_EQ(stats.max_blocks, kMaxBlocks);
  EXPECT_EQ(stats.total_blocks, 20);
  EXPECT_EQ(stats.free_blocks, 20);
  EXPECT_EQ(stats.resident_bytes.at("kv_cache"), 210);
  EXPECT_EQ(stats.num_cache_shrinks, 1);
  EXPECT_EQ(stats.num_cache_grows, 0);
  EXPECT_EQ(stats.state, EngineState::kAwake);
  ExpectServes("b");
  EXPECT_EQ(engine_->ResizeKvCache(1 << 30).value(), kMaxBlocks);
  EXPECT_EQ(engine_->ResizeKvCache(kMaxBlocks).value(), kMaxBlocks);
  EXPECT_EQ(engine_->Stats().num_cache_grows, 1) << "the second call has changed nothing";
  ExpectServes("c");
  EXPECT_EQ(executor_->lifecycle_calls(), (Calls{"resize 200 to 21", "resize 21 to 200"}));
}

TEST_F(EngineKvSizeTest, OneSequenceAlwaysFits) {
  Start();
  EXPECT_EQ(engine_->ResizeKvCache(0).value(), kLongest);
  EXPECT_EQ(engine_->ResizeKvCache(-1000).value(), kLongest);
  std::vector<Ticket> tickets;
  for (int i = 0; i < 5; ++i) {
    tickets.push_back(MakeTicket(std::to_string(i), 10 + i, 25, 10 * i));
    ASSERT_TRUE(engine_->Submit(tickets[i].request).ok());
  }
  for (const Ticket& ticket : tickets) ExpectTokens(ticket);
  EXPECT_EQ(engine_->Stats().used_blocks, 0);
}

// Where every layer has a window, the blocks behind the window are free, and a cache of the remaining blocks
// is enough.
TEST_F(EngineKvSizeTest, AWindowNeedsNoRoomForAWholeSequence) {
  EngineOptions options = Elastic();
  options.scheduler.max_model_len = 200;
  options.scheduler.blocks.attention_reach = 8;
  Start(options);
  constexpr int32_t kAtOnce = WindowBlocks(8, /*step_tokens=*/16, /*block_size=*/4);
  EXPECT_EQ(engine_->Stats().longest_blocks, kAtOnce);
  EXPECT_EQ(engine_->ResizeKvCache(0).value(), kAtOnce);
  Ticket longest = MakeTicket("longest", 120, 80);
  ASSERT_TRUE(engine_->Submit(longest.request).ok());
  ExpectTokens(longest);
  EXPECT_EQ(engine_->Stats().used_blocks, 0);
}

// Blocks that are used stay, nobody is preempted, and the rest goes once free.
TEST_F(EngineKvSizeTest, ShrinkingStopsAtWhatIsUsed) {
  for (const bool async_scheduling : {false, true}) {
    Start(Elastic(async_scheduling));
    Ticket low = MakeTicket("low", 30, 1), high = MakeTicket("high", 8, 30);
    executor_->SetStepTime(absl::Milliseconds(5));
    ASSERT_TRUE(engine_->Submit(low.request).ok());
    ASSERT_TRUE(engine_->Submit(high.request).ok());
    ExpectTokens(low);
    ASSERT_TRUE(high.sink->WaitForTokens(2));
    const int32_t mapped = engine_->ResizeKvCache(0).value();
    EXPECT_GE(mapped, kLongest);
    EXPECT_LT(mapped, 30);
    ExpectTokens(high);
    EXPECT_EQ(engine_->Stats().num_preemptions, 0);
    EXPECT_EQ(engine_->ResizeKvCache(0).value(), kLongest);
    EXPECT_EQ(engine_->Stats().total_blocks, kLongest);
    ExpectServes("last");
  }
}

TEST_F(EngineKvSizeTest, GrowthThatFindsNoMemoryChangesNothing) {
  Start();
  ASSERT_TRUE(engine_->ResizeKvCache(30).ok());
  executor_->FailNextLifecycleCall(absl::ResourceExhaustedError("7 bytes missing"));
  EXPECT_EQ(engine_->ResizeKvCache(60).status(), absl::ResourceExhaustedError("7 bytes missing"));
  EXPECT_EQ(engine_->Stats().mapped_blocks, 30);
  EXPECT_EQ(engine_->Stats().total_blocks, 30);
  ExpectServes("a");
  EXPECT_EQ(engine_->ResizeKvCache(60).value(), 60);
}

TEST_F(EngineKvSizeTest, ACacheThatSleepsWakesUpInItsSize) {
  Start();
  ASSERT_TRUE(engine_->Sleep({.level = 1}).ok());
  EXPECT_EQ(engine_->ResizeKvCache(15).value(), 15);
  EXPECT_EQ(engine_->state(), EngineState::kAsleep);
  EXPECT_EQ(engine_->Stats().resident_bytes.at("kv_cache"), 0);
  Ticket ticket = MakeTicket("a", 9, 20);
  ASSERT_TRUE(engine_->Submit(ticket.request).ok());
  ASSERT_TRUE(engine_->WakeUp({}).ok());
  ExpectTokens(ticket);
  EXPECT_EQ(engine_->Stats().total_blocks, 15);
}

TEST_F(EngineKvSizeTest, BlocksThatOutliveASleepKeepTheirMemory) {
  EngineOptions options = Elastic();
  options.keep_kv_on_sleep = true;
  options.scheduler.blocks.num_host_blocks = 64;
  Start(options);
  executor_->SetStepTime(absl::Milliseconds(5));
  std::vector<Ticket> tickets;
  for (int i = 0; i < 3; ++i) {
    tickets.push_back(MakeTicket(std::to_string(i), 20, 15, 10 * i));
    ASSERT_TRUE(engine_->Submit(tickets[i].request).ok());
  }
  for (const Ticket& ticket : tickets) ASSERT_TRUE(ticket.sink->WaitForTokens(2));
  ASSERT_TRUE(engine_->Sleep({.level = 1}).ok());
  EXPECT_GT(engine_->ResizeKvCache(0).value(), kLongest);
  ASSERT_TRUE(engine_->WakeUp({}).ok());
  for (const Ticket& ticket : tickets) ExpectTokens(ticket);
  EXPECT_EQ(engine_->ResizeKvCache(0).value(), kLongest);
}

// Whether the ranks have resized is not known: the recovery brings all ranks to the smaller size, and the
// command begins again.
TEST_F(EngineKvSizeTest, ALossInBetweenLeavesAllRanksWithOneSize) {
  for (const int32_t wanted : {20, 80}) {
    Start();
    ASSERT_TRUE(engine_->ResizeKvCache(50).ok());
    executor_->HoldLifecycle(true);
    absl::StatusOr<int32_t> resized = -1;
    std::thread caller([&] { resized = engine_->ResizeKvCache(wanted); });
    while (executor_->lifecycle_calls().size() < 2) absl::SleepFor(absl::Milliseconds(1));
    executor_->Lose(absl::UnavailableError("rank 1 was killed"));
    while (executor_->lifecycle_calls().size() < (wanted == 80 ? 3u : 2u) || !executor_->Health().ok())
      absl::SleepFor(absl::Milliseconds(1));
    EXPECT_EQ(executor_->recovered().num_mapped_blocks, std::min(wanted, 50) + 1);
    executor_->HoldLifecycle(false);
    caller.join();
    EXPECT_EQ(resized.value(), wanted);
    ExpectServes("a");
  }
}

TEST_F(EngineKvSizeTest, WorkersThatWereAdoptedKeepTheirSize) {
  EngineOptions options = Elastic();
  options.num_mapped_blocks = 31;
  Start(options);
  EXPECT_EQ(engine_->Stats().mapped_blocks, 30);
  EXPECT_EQ(engine_->Stats().total_blocks, 30);
  EXPECT_EQ(engine_->ResizeKvCache(40).value(), 40);
  EXPECT_EQ(executor_->lifecycle_calls(), Calls{"resize 31 to 41"});
}

TEST_F(EngineKvSizeTest, RandomSizesUnderLoadChangeNoToken) {
  for (const int seed : {1, 2, 3, 4}) {
    Start(Elastic(seed % 2 == 0));
    executor_->SetStepTime(absl::Microseconds(200));
    std::mt19937 random(seed);
    std::vector<Ticket> tickets;
    for (int i = 0; i < 40; ++i) {
      const int32_t prompt = 1 + static_cast<int32_t>(random() % 30);
      tickets.push_back(
          MakeTicket(std::to_string(i), prompt, 1 + static_cast<int32_t>(random() % (39 - prompt)), i % 3));
    }
    std::thread submitter([&] {
      for (const Ticket& ticket : tickets) {
        while (!engine_->Submit(ticket.request).ok()) absl::SleepFor(absl::Milliseconds(1));
      }
    });
    for (int i = 0; i < 40; ++i) {
      if (i % 10 == 5) executor_->FailNextLifecycleCall(absl::ResourceExhaustedError("made to fail"));
      if (i % 13 == 7) {
        (void)engine_->Sleep({.level = 1});  // may be the call that fails
        while (!engine_->WakeUp({}).ok()) absl::SleepFor(absl::Milliseconds(1));
      }
      const int32_t wanted = static_cast<int32_t>(random() % 60);
      const absl::StatusOr<int32_t> mapped = engine_->ResizeKvCache(wanted);
      EXPECT_GE(mapped.value_or(kMaxBlocks), std::max(wanted, kLongest));
    }
    submitter.join();
    for (const Ticket& ticket : tickets) ExpectTokens(ticket);
    EXPECT_EQ(engine_->state(), EngineState::kAwake);
  }
}

}  // namespace
}  // namespace somnus
