// KV events of an engine: a reader who replays the events knows which blocks are cached, through everything
// that empties the cache.

#include <gtest/gtest.h>

#include <optional>

#include "coordinator/engine/kv_event_log.h"
#include "tests/block_manager/replayed_cache.h"
#include "tests/engine/engine_test_util.h"

namespace somnus {
namespace {

class EngineKvEventsTest : public ::testing::Test {
 protected:
  void Start(EngineOptions options) {
    log_ = std::make_shared<KvEventLog>(
        KvEventLogOptions{.max_events = 1 << 16, .block_size = options.scheduler.blocks.block_size});
    options.kv_events = log_;
    executor_.emplace(SmallWorker(options));
    executor_->SetRecovery(FakeExecutor::Recovery::kSucceeds);
    engine_.emplace(options, &*executor_, nullptr);
    reader_ = log_->Follow(1, [] {});  // from the first batch on
    replayed_.emplace(options.scheduler.blocks.block_size);
  }
  void Compute(int32_t num_tokens, int32_t first = 1) {
    const Ticket ticket = MakeTicket(std::to_string(++num_requests_), num_tokens, 4, first);
    EXPECT_TRUE(engine_->Submit(ticket.request).ok());
    EXPECT_TRUE(ticket.sink->Wait());
    EXPECT_EQ(ticket.sink->tokens(), Reference(ticket));
  }
  // Reads all events so far. Returns how many blocks are cached then, as the engine also says.
  size_t NumCached() {
    num_cleared_ = 0;
    while (const auto batch = reader_->Next()) {
      EXPECT_FALSE(batch->is_snapshot) << "nothing was missed";
      for (const BlockEvent& event : batch->events)
        num_cleared_ += event.kind == BlockEvent::Kind::kCleared ? 1 : 0;
      replayed_->Apply(batch->events);
    }
    EXPECT_EQ(static_cast<int64_t>(replayed_->contents().size()),
              engine_->Stats().cached_blocks.num_cached());
    return replayed_->contents().size();
  }
  int64_t NumLost(CacheLoss cause) { return engine_->Stats().cached_blocks.num_lost(cause); }

  std::shared_ptr<KvEventLog> log_;
  std::optional<FakeExecutor> executor_;
  std::optional<EngineLoop> engine_;
  std::unique_ptr<KvEventReader> reader_;
  std::optional<ReplayedCache> replayed_;
  int num_requests_ = 0;
  int num_cleared_ = 0;  // events of the last NumCached
};

TEST_F(EngineKvEventsTest, AClientThatHasItsAnswerFindsItsBlocksInTheEvents) {
  Start(SmallEngine());
  EXPECT_EQ(NumCached(), 0u);
  EXPECT_EQ(num_cleared_, 1) << "a new engine says that nothing is cached";
  Compute(20);
  EXPECT_GE(NumCached(), 5u);
  EXPECT_EQ(replayed_->contents().begin()->second.tokens, (std::vector<int32_t>{1, 2, 3, 4}));
  const size_t cached = NumCached();
  Compute(20);
  EXPECT_EQ(NumCached(), cached) << "it was all there";
}

TEST_F(EngineKvEventsTest, EvictionsAreEvents) {
  Start(SmallEngine());  // 63 blocks of 4 tokens
  for (int32_t i = 0; i < 10; ++i) {
    Compute(60, 1 + 60 * i);
    NumCached();
  }
  EXPECT_GT(NumLost(CacheLoss::kEvicted), 50);
  EXPECT_LE(NumCached(), 63u);
}

TEST_F(EngineKvEventsTest, WhateverEmptiesTheCacheIsAnEventAndHasACause) {
  Start(SmallEngine());
  const auto expect_cleared = [&](CacheLoss cause) {
    const char* const name = kCacheLosses[static_cast<size_t>(cause)];
    EXPECT_EQ(NumCached(), 0u) << name;
    EXPECT_EQ(num_cleared_, 1) << name;
    EXPECT_GE(NumLost(cause), 5) << name;
    Compute(20);
    EXPECT_GE(NumCached(), 5u) << name;
  };
  Compute(20);
  NumCached();
  ASSERT_TRUE(engine_->ResetPrefixCache(/*preempt_running=*/false).ok());
  expect_cleared(CacheLoss::kReset);
  for (const int level : {1, 2}) {
    ASSERT_TRUE(engine_->Sleep({.level = level}).ok());
    EXPECT_EQ(NumCached(), 0u);
    EXPECT_EQ(num_cleared_, 1);
    ASSERT_TRUE(engine_->WakeUp({}).ok());
    NumCached();
    EXPECT_EQ(num_cleared_, 0) << "waking up changes nothing";
    Compute(20);
    EXPECT_GE(NumCached(), 5u);
  }
  EXPECT_GE(NumLost(CacheLoss::kSleep), 10);
  ASSERT_TRUE(engine_->Pause({.clear_cache = true}).ok());
  ASSERT_TRUE(engine_->Resume().ok());
  expect_cleared(CacheLoss::kPause);
  ASSERT_TRUE(engine_->ReloadWeights({}).ok());
  expect_cleared(CacheLoss::kWeights);
}

TEST_F(EngineKvEventsTest, ALossOfTheGroupIsAnEvent) {
  Start(SmallEngine());
  Compute(20);
  NumCached();
  executor_->Lose(absl::UnavailableError("rank 0 was killed"));
  while (engine_->Stats().num_recoveries == 0) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_EQ(NumCached(), 0u);
  EXPECT_EQ(num_cleared_, 1);
  EXPECT_GE(NumLost(CacheLoss::kFailure), 5);
}

TEST_F(EngineKvEventsTest, ASmallerCacheLosesBlocks) {
  Start(SmallEngine());
  for (int32_t i = 0; i < 5; ++i) Compute(48, 1 + 60 * i);  // 60 blocks of 63
  EXPECT_EQ(NumCached(), 60u);
  ASSERT_TRUE(engine_->ResizeKvCache(50).ok());  // one sequence of 200 tokens
  EXPECT_LE(NumCached(), 50u);
  EXPECT_EQ(num_cleared_, 0);
  EXPECT_GE(NumLost(CacheLoss::kShrunk), 10);
}

TEST_F(EngineKvEventsTest, WhatASleepKeepsStaysStored) {
  EngineOptions options = SmallEngine();
  options.keep_kv_on_sleep = true;
  options.scheduler.blocks.num_host_blocks = 3;
  Start(options);
  Compute(20);
  ASSERT_GE(NumCached(), 5u);
  ASSERT_TRUE(engine_->Sleep({.level = 1}).ok());
  EXPECT_EQ(NumCached(), 3u);
  EXPECT_EQ(num_cleared_, 0);
  ASSERT_TRUE(engine_->WakeUp({}).ok());
  EXPECT_EQ(NumCached(), 3u);
}

TEST_F(EngineKvEventsTest, WithoutALogNothingIsRecorded) {
  const EngineOptions options = SmallEngine();
  executor_.emplace(SmallWorker(options));
  engine_.emplace(options, &*executor_, nullptr);
  Compute(20);
  EXPECT_GE(engine_->Stats().cached_blocks.stored, 5) << "counters are there";
}

}  // namespace
}  // namespace somnus
