// A KV cache that outlives sleeps of level 1: exactly the tokens of an undisturbed run, and nothing is
// computed again; and all events that make the engine forget the cache.

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <thread>

#include "tests/engine/engine_test_util.h"

namespace somnus {
namespace {

using Calls = std::vector<std::string>;

EngineOptions Keeping(bool async_scheduling = true, int32_t num_host_blocks = 64) {
  EngineOptions options = SmallEngine(async_scheduling);
  options.keep_kv_on_sleep = true;
  options.scheduler.blocks.num_host_blocks = num_host_blocks;
  return options;
}

// Each token but the last is computed.
int64_t TokensOf(const Ticket& ticket) {
  return static_cast<int64_t>(ticket.request.prompt.size()) + ticket.request.max_tokens - 1;
}

// An engine with a request that has delivered some tokens.
class EngineKeepTest : public ::testing::Test {
 protected:
  void Start(const EngineOptions& options = Keeping()) {
    engine_.reset();  // before the executor that the engine uses
    executor_.emplace(SmallWorker(options));
    // The request must not have ended when the engine goes to sleep, however busy the machine is.
    executor_->SetStepTime(absl::Milliseconds(5));
    engine_.emplace(options, &*executor_, nullptr);
    ASSERT_TRUE(engine_->Submit(ticket_.request).ok());
    ASSERT_TRUE(ticket_.sink->WaitForTokens(5));
  }
  void ExpectTokens() {
    executor_->SetStepTime(absl::ZeroDuration());
    ASSERT_TRUE(ticket_.sink->Wait());
    EXPECT_EQ(ticket_.sink->tokens(), Reference(ticket_));
    EXPECT_EQ(ticket_.sink->reason(), FinishReason::kLength);
    EXPECT_EQ(engine_->Stats().used_host_blocks, 0);
    EXPECT_EQ(engine_->Stats().used_blocks, 0);
  }
  // The request goes on to the end, without computing a token twice or with some that are computed again.
  void WakeUpAndEnd(bool recomputes) {
    ASSERT_TRUE(engine_->WakeUp({}).ok());
    ExpectTokens();
    EXPECT_EQ(std::min<int64_t>(Recomputed(), 1), recomputes ? 1 : 0) << Recomputed() << " tokens";
  }
  // The bytes of host memory for the cache, as in the status.
  int64_t HostBytes() {
    const TagBytes bytes = engine_->Stats().host_bytes;
    const auto tier = bytes.find("kv_cache");
    return tier == bytes.end() ? 0 : tier->second;
  }
  // How many tokens were computed twice.
  int64_t Recomputed() { return executor_->num_computed_tokens() - TokensOf(ticket_); }

  Ticket ticket_ = MakeTicket("a", 9, 150);
  std::optional<FakeExecutor> executor_;
  std::optional<EngineLoop> engine_;
};

TEST_F(EngineKeepTest, ARequestGoesOnWhereItWas) {
  for (const bool async_scheduling : {false, true}) {
    ticket_ = MakeTicket("a", 9, 150);
    Start(Keeping(async_scheduling));
    for (int i = 0; i < 3; ++i) {
      ASSERT_TRUE(engine_->Sleep({.level = 1}).ok());
      const EngineStats asleep = engine_->Stats();
      EXPECT_GT(asleep.used_host_blocks, 0);
      EXPECT_EQ(asleep.total_host_blocks, 64);
      EXPECT_EQ(asleep.num_waiting, 1);
      ASSERT_TRUE(engine_->WakeUp({}).ok());
    }
    ExpectTokens();
    EXPECT_EQ(Recomputed(), 0);
    const EngineStats stats = engine_->Stats();
    EXPECT_EQ(stats.num_preemptions, 0);
    EXPECT_GE(stats.kept_blocks, 3 * 3);
    EXPECT_GE(stats.kept_tokens, 3 * 13);
  }
}

TEST_F(EngineKeepTest, WithoutTheOptionTheCacheIsDiscarded) {
  EngineOptions options = Keeping();
  options.keep_kv_on_sleep = false;
  Start(options);
  ASSERT_TRUE(engine_->Sleep({.level = 1}).ok());
  EXPECT_EQ(engine_->Stats().used_host_blocks, 0);
  WakeUpAndEnd(/*recomputes=*/true);
  EXPECT_EQ(executor_->lifecycle_calls(), (Calls{"sleep 1", "wake kv_cache weights workspace"}));
}

TEST_F(EngineKeepTest, ASleepKeepsNoMoreThanItMay) {
  EngineOptions options = Keeping();
  options.kv_block_bytes = 10;
  Start(options);
  const int64_t keepable = engine_->Stats().keepable_bytes;
  EXPECT_GE(keepable, 4 * 10) << "of 9 and 5 tokens";
  ASSERT_TRUE(engine_->Sleep({.level = 1, .max_kept_bytes = 29}).ok());
  EXPECT_EQ(engine_->Stats().used_host_blocks, 2);
  EXPECT_EQ(engine_->Stats().host_bytes.at("kv_cache"), 2 * FakeExecutor::kKvBlockBytes);
  ASSERT_TRUE(engine_->WakeUp({}).ok());
  EXPECT_EQ(engine_->Stats().host_bytes.at("kv_cache"), 0);
  ASSERT_TRUE(engine_->Sleep({.level = 1, .max_kept_bytes = 0}).ok());
  EXPECT_EQ(engine_->Stats().used_host_blocks, 0);
  ASSERT_TRUE(engine_->WakeUp({}).ok());
  ASSERT_TRUE(ticket_.sink->WaitForTokens(ticket_.sink->tokens().size() + 1));
  ASSERT_TRUE(engine_->Sleep({.level = 1, .max_kept_bytes = 10000}).ok());
  EXPECT_GT(engine_->Stats().used_host_blocks, 2);
  ASSERT_TRUE(engine_->WakeUp({}).ok());
  ExpectTokens();
  EXPECT_GT(Recomputed(), 0) << "twice its blocks had no room";
}

TEST_F(EngineKeepTest, OpenRequestsAloneAreKeptWhereCachedBlocksAreNot) {
  EngineOptions options = Keeping();
  options.keeps_cached_blocks = false;
  Start(options);
  ASSERT_TRUE(engine_->Sleep({.level = 1}).ok());
  EXPECT_GT(engine_->Stats().used_host_blocks, 0);
  WakeUpAndEnd(/*recomputes=*/false);
  EXPECT_EQ(engine_->Stats().keepable_bytes, 0);
  ASSERT_TRUE(engine_->Sleep({.level = 1}).ok());
  EXPECT_EQ(engine_->Stats().used_host_blocks, 0);
}

TEST_F(EngineKeepTest, OnlyWeightsThatSleepArePrefetched) {
  Start();
  EXPECT_TRUE(absl::IsFailedPrecondition(engine_->Prefetch()));
  ASSERT_TRUE(engine_->Sleep({.level = 1, .tags = {"kv_cache"}}).ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(engine_->Prefetch()));
  ASSERT_TRUE(engine_->Sleep({.level = 1}).ok());
  EXPECT_TRUE(engine_->Prefetch().ok()) << "the ranks know whether the checkpoint is the backup";
  ASSERT_TRUE(engine_->Sleep({.level = 2}).ok());
  EXPECT_TRUE(engine_->Prefetch().ok());
  EXPECT_EQ(executor_->lifecycle_calls().back(), "prefetch");
  ASSERT_TRUE(engine_->WakeUp({}).ok());
  ExpectTokens();
}

TEST_F(EngineKeepTest, Level2ForgetsIt) {
  Start();
  ASSERT_TRUE(engine_->Sleep({.level = 2}).ok());
  EXPECT_EQ(engine_->Stats().used_host_blocks, 0);
  WakeUpAndEnd(/*recomputes=*/true);
  EXPECT_EQ(executor_->lifecycle_calls(), (Calls{"sleep 2", "wake kv_cache weights workspace"}));
}

TEST_F(EngineKeepTest, ADeeperSleepForgetsWhatTheFirstOneKept) {
  Start();
  ASSERT_TRUE(engine_->Sleep({.level = 1}).ok());
  EXPECT_GT(engine_->Stats().used_host_blocks, 0);
  executor_->FailNextLifecycleCall(absl::ResourceExhaustedError("rank 1: no"));
  EXPECT_FALSE(engine_->Sleep({.level = 2}).ok());
  EXPECT_GT(engine_->Stats().used_host_blocks, 0) << "nothing has changed";
  ASSERT_TRUE(engine_->Sleep({.level = 2}).ok());
  EXPECT_EQ(engine_->Stats().used_host_blocks, 0);
  ASSERT_TRUE(engine_->WakeUp({}).ok());
  EXPECT_EQ(executor_->lifecycle_calls().back(), "wake kv_cache weights workspace");
  ExpectTokens();
  EXPECT_GT(Recomputed(), 0);
}

TEST_F(EngineKeepTest, Level2OfACacheThatSleepsAlreadyForgetsItToo) {
  Start();
  ASSERT_TRUE(engine_->Sleep({.level = 1}).ok());
  EXPECT_GT(HostBytes(), 0);
  executor_->FailNextLifecycleCall(absl::InternalError("rank 1: no"));
  EXPECT_TRUE(absl::IsInternal(engine_->Sleep({.level = 2, .tags = {"kv_cache"}}).status()));
  EXPECT_GT(engine_->Stats().used_host_blocks, 0) << "nothing has changed";
  EXPECT_FALSE(engine_->Sleep({.level = 2, .tags = {"kv_cache"}})->changed());
  EXPECT_EQ(executor_->lifecycle_calls().back(), "sleep 2 kv_cache");
  EXPECT_EQ(engine_->Stats().used_host_blocks, 0);
  EXPECT_EQ(HostBytes(), 0) << "while it sleeps";
  EXPECT_EQ(engine_->Stats().sleep_level, 1) << "the weights have their backup";
  const size_t num_calls = executor_->lifecycle_calls().size();
  EXPECT_FALSE(engine_->Sleep({.level = 2, .tags = {"kv_cache"}})->changed());
  EXPECT_EQ(executor_->lifecycle_calls().size(), num_calls) << "there is nothing more to give up";
  WakeUpAndEnd(/*recomputes=*/true);
}

TEST_F(EngineKeepTest, TagsSleepAndWakeOneByOne) {
  Start();
  ASSERT_TRUE(engine_->Sleep({.level = 1, .tags = {"weights"}}).ok());
  EXPECT_EQ(engine_->Stats().used_host_blocks, 0) << "the cache stays on the device";
  ASSERT_TRUE(engine_->Sleep({.level = 1, .tags = {"kv_cache"}}).ok());
  const int32_t kept = engine_->Stats().used_host_blocks;
  EXPECT_GT(kept, 0);
  ASSERT_TRUE(engine_->WakeUp({"weights"}).ok());
  EXPECT_EQ(engine_->Stats().used_host_blocks, kept);
  ASSERT_TRUE(engine_->WakeUp({"kv_cache"}).ok());
  ExpectTokens();
  EXPECT_EQ(Recomputed(), 0);
  const std::string blocks = " keep " + std::to_string(kept);
  // The workspace goes along with the last of the two.
  EXPECT_EQ(executor_->lifecycle_calls(), (Calls{"sleep 1 weights", "sleep 1" + blocks, "wake weights",
                                                 "wake kv_cache workspace" + blocks}));
}

TEST_F(EngineKeepTest, AFailedSleepLosesNothing) {
  Start();
  executor_->FailNextLifecycleCall(absl::InternalError("rank 1: no"));
  EXPECT_TRUE(absl::IsInternal(engine_->Sleep({.level = 1}).status()));
  ExpectTokens();
  EXPECT_EQ(Recomputed(), 0);
}

TEST_F(EngineKeepTest, AFailedWakeUpCanBeTriedAgain) {
  Start();
  ASSERT_TRUE(engine_->Sleep({.level = 1}).ok());
  const int32_t kept = engine_->Stats().used_host_blocks;
  executor_->FailNextLifecycleCall(absl::ResourceExhaustedError("rank 1: 5 MiB missing"));
  EXPECT_FALSE(engine_->WakeUp({}).ok());
  EXPECT_EQ(engine_->Stats().used_host_blocks, kept);
  WakeUpAndEnd(/*recomputes=*/false);
}

TEST_F(EngineKeepTest, AHostWithoutMemoryForItDoesNotKeepTheEngineFromSleeping) {
  Start();
  executor_->FailNextLifecycleCall(absl::ResourceExhaustedError("rank 1: no host memory"));
  ASSERT_TRUE(engine_->Sleep({.level = 1}).ok());
  EXPECT_EQ(engine_->Stats().used_host_blocks, 0);
  WakeUpAndEnd(/*recomputes=*/true);
  const Calls calls = executor_->lifecycle_calls();
  ASSERT_EQ(calls.size(), 3u);
  EXPECT_EQ(calls[0].rfind("sleep 1 keep", 0), 0u);
  EXPECT_EQ(calls[1], "sleep 1");
}

TEST_F(EngineKeepTest, AResetOfThePrefixCacheReachesWhatIsKept) {
  Start();
  ASSERT_TRUE(engine_->Sleep({.level = 1}).ok());
  ASSERT_TRUE(engine_->ResetPrefixCache(/*preempt_running=*/false).ok());
  EXPECT_GT(engine_->Stats().used_blocks, 0) << "the open request goes on with its own";
  EXPECT_GT(HostBytes(), 0);
  ASSERT_TRUE(engine_->ResetPrefixCache(/*preempt_running=*/true).ok());
  EXPECT_EQ(engine_->Stats().used_blocks, 0);
  EXPECT_EQ(engine_->Stats().used_host_blocks, 0);
  EXPECT_EQ(HostBytes(), 0) << "while it sleeps";
  WakeUpAndEnd(/*recomputes=*/true);
}

// The recovery brings workers that hold nothing, and the reset is done.
TEST_F(EngineKeepTest, ALossOfTheGroupWithinAResetOfThePrefixCache) {
  Start();
  ASSERT_TRUE(engine_->Sleep({.level = 1}).ok());
  executor_->SetRecovery(FakeExecutor::Recovery::kSucceeds);
  const size_t before = executor_->lifecycle_calls().size();
  executor_->HoldLifecycle(true);
  std::thread calling([&] { EXPECT_TRUE(engine_->ResetPrefixCache(/*preempt_running=*/true).ok()); });
  while (executor_->lifecycle_calls().size() == before) std::this_thread::yield();
  executor_->Lose(absl::UnavailableError("rank 1 (pid 5) was killed by signal 9"));
  executor_->HoldLifecycle(false);
  calling.join();
  EXPECT_EQ(engine_->Stats().used_host_blocks, 0);
  EXPECT_EQ(HostBytes(), 0);
  ASSERT_TRUE(engine_->WakeUp({}).ok());
  ExpectTokens();
}

TEST_F(EngineKeepTest, AChangeOfTheWeightsForgetsIt) {
  Start();
  ASSERT_TRUE(engine_->Sleep({.level = 1, .tags = {"kv_cache"}}).ok());
  EXPECT_GT(engine_->Stats().used_host_blocks, 0);
  const auto change = engine_->ReloadWeights({});
  ASSERT_TRUE(change.ok()) << change.status();
  EXPECT_EQ(engine_->Stats().used_host_blocks, 0);
  EXPECT_EQ(engine_->Stats().used_blocks, 0);
  ASSERT_TRUE(engine_->WakeUp({}).ok());
  EXPECT_EQ(executor_->lifecycle_calls().back(), "wake kv_cache");
  ExpectTokens();
  EXPECT_GT(Recomputed(), 0);
}

TEST_F(EngineKeepTest, APauseThatKeepsTheCacheAndThenASleepKeepIt) {
  Start();
  ASSERT_TRUE(engine_->Pause({.clear_cache = false}).ok());
  ASSERT_TRUE(engine_->Sleep({.level = 1}).ok());
  WakeUpAndEnd(/*recomputes=*/false);
}

// In the middle of a sleep, while the engine sleeps, and in the middle of a wake-up.
TEST_F(EngineKeepTest, ALossOfTheGroupForgetsIt) {
  for (const std::string moment : {"falling asleep", "asleep", "waking"}) {
    SCOPED_TRACE(moment);
    ticket_ = MakeTicket("a", 9, 150);
    Start();
    executor_->SetRecovery(FakeExecutor::Recovery::kSucceeds);
    const absl::Status lost = absl::UnavailableError("rank 1 (pid 5) was killed by signal 9");
    const auto lose_within = [&](auto call) {
      const size_t before = executor_->lifecycle_calls().size();
      executor_->HoldLifecycle(true);
      std::thread calling(call);
      while (executor_->lifecycle_calls().size() == before) std::this_thread::yield();
      executor_->Lose(lost);
      executor_->HoldLifecycle(false);
      calling.join();
    };
    if (moment == "falling asleep") {
      lose_within([&] { EXPECT_TRUE(engine_->Sleep({.level = 1}).ok()); });
    } else {
      ASSERT_TRUE(engine_->Sleep({.level = 1}).ok());
    }
    if (moment == "asleep") executor_->Lose(lost);
    if (moment == "waking") {
      lose_within([&] { EXPECT_TRUE(engine_->WakeUp({}).ok()); });
    } else {
      while (engine_->Stats().num_recoveries == 0) std::this_thread::yield();
      ASSERT_TRUE(engine_->WakeUp({}).ok());
    }
    ExpectTokens();
    EXPECT_GT(Recomputed(), 0);
  }
}

}  // namespace
}  // namespace somnus
