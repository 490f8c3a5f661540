// Pinned prefixes of an engine: which prefixes may be pinned, and the fate of pins in every state.

#include <gtest/gtest.h>

#include <optional>

#include "absl/strings/match.h"
#include "tests/engine/engine_test_util.h"

namespace somnus {
namespace {

PrefixRequest MakePin(const std::string& id, int32_t num_tokens, int32_t first = 1) {
  return {.id = id, .prompt = MakeTicket("", num_tokens, 0, first).request.prompt};
}

class EnginePrefixesTest : public ::testing::Test {
 protected:
  // 63 blocks of 4 tokens, of which a sequence of 100 tokens takes 25.
  static EngineOptions Options() {
    EngineOptions options = SmallEngine();
    options.scheduler.max_model_len = 100;
    return options;
  }
  void Start(const EngineOptions& options) {
    executor_.emplace(SmallWorker(options));
    engine_.emplace(options, &*executor_, nullptr);
  }
  PinnedPrefixes& pins() { return engine_->pinned_prefixes(); }
  // How many tokens of a prompt of that many the cache had.
  int32_t Compute(int32_t num_tokens, int32_t first = 1) {
    const Ticket ticket = MakeTicket(std::to_string(++num_requests_), num_tokens, 4, first);
    EXPECT_TRUE(engine_->Submit(ticket.request).ok());
    EXPECT_TRUE(ticket.sink->Wait());
    EXPECT_EQ(ticket.sink->tokens(), Reference(ticket));
    return ticket.sink->num_cached_tokens();
  }
  void Flood() {
    for (int32_t i = 1; i <= 10; ++i) Compute(90, 90 * i + static_cast<int32_t>(i % 3));
  }
  // The loop's work up to now is published.
  void Barrier() { EXPECT_TRUE(engine_->Resume().ok()); }
  int32_t NumHeld(size_t index = 0) {
    Barrier();
    return pins().List()[index].num_held;
  }

  std::optional<FakeExecutor> executor_;
  std::optional<EngineLoop> engine_;
  int num_requests_ = 0;
};

TEST_F(EnginePrefixesTest, APinStaysUnderPressureUntilItIsUnpinned) {
  Start(Options());
  const absl::StatusOr<PinnedPrefix> pinned = pins().Pin(MakePin("a", 22));
  ASSERT_TRUE(pinned.ok()) << pinned.status();
  EXPECT_EQ(pinned->id, "a");
  EXPECT_EQ(pinned->num_tokens, 20);
  EXPECT_EQ(pinned->num_blocks, 5);
  EXPECT_EQ(pinned->num_held, 0);
  EXPECT_EQ(Compute(22), 0);
  EXPECT_EQ(pins().List()[0].num_held, 5) << "whoever has the last output sees it";
  Flood();
  EXPECT_EQ(Compute(22), 20);
  EXPECT_EQ(engine_->Stats().pinned_blocks, 5);
  EXPECT_EQ(engine_->Stats().used_blocks, 5);
  ASSERT_TRUE(pins().Unpin("a").ok());
  EXPECT_TRUE(absl::IsNotFound(pins().Unpin("a")));
  EXPECT_TRUE(pins().List().empty());
  Flood();
  EXPECT_EQ(Compute(22), 0);
  EXPECT_EQ(engine_->Stats().pinned_blocks, 0);
}

TEST_F(EnginePrefixesTest, TheSamePromptIsPinnedOnceAndEndsWithItsLastCaller) {
  Start(Options());
  ASSERT_TRUE(pins().Pin(MakePin("a", 20)).ok());
  const absl::StatusOr<PinnedPrefix> again = pins().Pin(MakePin("b", 23));
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again->id, "a") << "its full blocks are the same";
  PrefixRequest salted = MakePin("c", 20);
  salted.cache_salt = "s";
  EXPECT_EQ(pins().Pin(salted)->id, "c");
  EXPECT_EQ(pins().List().size(), 2u);
  pins().Withdraw("a");
  EXPECT_EQ(pins().List().size(), 2u);
  pins().Withdraw("a");
  EXPECT_EQ(pins().List().size(), 1u);
  pins().Withdraw("a");
  ASSERT_TRUE(pins().Pin(MakePin("a", 20)).ok()) << "the id is free again";
  Compute(20);
  EXPECT_EQ(NumHeld(1), 5);
}

TEST_F(EnginePrefixesTest, PinsAreBounded) {
  EngineOptions options = Options();
  options.pins = {.max_share = 0.25, .max_prefixes = 3};  // 15 blocks
  Start(options);
  EXPECT_TRUE(absl::IsInvalidArgument(pins().Pin(MakePin("short", 3)).status()));
  const absl::Status never = pins().Pin(MakePin("never", 64)).status();
  EXPECT_TRUE(absl::IsInvalidArgument(never)) << never;
  ASSERT_TRUE(pins().Pin(MakePin("a", 40)).ok());
  const absl::Status full = pins().Pin(MakePin("b", 24, 500)).status();
  EXPECT_TRUE(absl::IsResourceExhausted(full)) << full;
  EXPECT_TRUE(absl::StrContains(full.message(), "6 blocks cannot be pinned: 10 are, and of the 63"))
      << full.message();
  EXPECT_TRUE(absl::StrContains(full.message(), " 15 may be"));
  ASSERT_TRUE(pins().Pin(MakePin("b", 8, 500)).ok());
  ASSERT_TRUE(pins().Pin(MakePin("c", 8, 600)).ok());
  const absl::Status many = pins().Pin(MakePin("d", 4, 700)).status();
  EXPECT_TRUE(absl::IsResourceExhausted(many)) << many;
  ASSERT_TRUE(pins().Unpin("b").ok());
  EXPECT_TRUE(pins().Pin(MakePin("d", 12, 700)).ok());
}

TEST_F(EnginePrefixesTest, OneLongSequenceMustHaveRoomBesideThem) {
  EngineOptions options = Options();
  options.pins.max_share = 1;
  options.scheduler.max_model_len = 240;  // 60 of 63 blocks
  Start(options);
  EXPECT_TRUE(absl::IsInvalidArgument(pins().Pin(MakePin("a", 16)).status()));
  EXPECT_TRUE(pins().Pin(MakePin("a", 12)).ok());
}

// Where all layers have a window, the cache may be smaller than max_model_len.
TEST_F(EnginePrefixesTest, ALongSequenceInAWindowNeedsNoRoomForAllOfItsTokens) {
  EngineOptions options = Options();
  options.pins.max_share = 1;
  options.scheduler.max_model_len = 1000;
  options.scheduler.max_num_batched_tokens = 32;
  options.scheduler.blocks.attention_reach = 16;  // 14 blocks at once
  Start(options);
  EXPECT_TRUE(absl::IsInvalidArgument(pins().Pin(MakePin("a", 200)).status()));
  EXPECT_TRUE(pins().Pin(MakePin("a", 196)).ok());
}

TEST_F(EnginePrefixesTest, WithoutAPrefixCacheNothingCanBePinned) {
  EngineOptions options = Options();
  options.scheduler.blocks.enable_prefix_caching = false;
  Start(options);
  EXPECT_TRUE(absl::IsInvalidArgument(pins().Pin(MakePin("a", 20)).status()));
}

TEST_F(EnginePrefixesTest, EverythingThatEmptiesTheCacheLeavesThePinAndARequestFillsIt) {
  Start(Options());
  ASSERT_TRUE(pins().Pin(MakePin("a", 20)).ok());
  const auto expect_lost_and_found = [&](const char* what) {
    EXPECT_EQ(NumHeld(), 0) << what;
    EXPECT_EQ(pins().List()[0].num_blocks, 5) << what;
    EXPECT_EQ(Compute(20), 0) << what;
    EXPECT_EQ(NumHeld(), 5) << what;
  };
  Compute(20);
  ASSERT_TRUE(engine_->ResetPrefixCache(/*preempt_running=*/false).ok());
  expect_lost_and_found("a reset");
  for (const int level : {1, 2}) {
    ASSERT_TRUE(engine_->Sleep({.level = level}).ok());
    EXPECT_EQ(NumHeld(), 0);
    ASSERT_TRUE(engine_->WakeUp({}).ok());
    expect_lost_and_found("a sleep");
  }
  executor_->SetRecovery(FakeExecutor::Recovery::kSucceeds);
  executor_->Lose(absl::UnavailableError("rank 0 was killed"));
  while (engine_->Stats().num_recoveries == 0) absl::SleepFor(absl::Milliseconds(1));
  expect_lost_and_found("a loss of the workers");
  ASSERT_TRUE(engine_->ReloadWeights({}).ok());
  EXPECT_EQ(NumHeld(), 0) << "new weights";
  EXPECT_EQ(engine_->Stats().pin_releases.forgotten, 5);
}

TEST_F(EnginePrefixesTest, ASleepThatKeepsTheCacheKeepsThePin) {
  EngineOptions options = Options();
  options.keep_kv_on_sleep = true;
  options.keeps_cached_blocks = false;
  options.scheduler.blocks.num_host_blocks = 8;
  Start(options);
  ASSERT_TRUE(pins().Pin(MakePin("a", 22)).ok());
  Compute(22);
  ASSERT_TRUE(engine_->Sleep({.level = 1}).ok());
  EXPECT_EQ(engine_->Stats().used_host_blocks, 5);
  EXPECT_EQ(NumHeld(), 5);
  ASSERT_TRUE(engine_->WakeUp({}).ok());
  EXPECT_EQ(Compute(22), 20);
}

TEST_F(EnginePrefixesTest, PinsCanBeChangedWhileTheEngineSleeps) {
  EngineOptions options = Options();
  options.keep_kv_on_sleep = true;
  options.scheduler.blocks.num_host_blocks = 8;
  Start(options);
  ASSERT_TRUE(pins().Pin(MakePin("a", 22)).ok());
  Compute(22);
  ASSERT_TRUE(engine_->Sleep({.level = 1}).ok());
  ASSERT_TRUE(pins().Pin(MakePin("b", 12, 500)).ok());
  ASSERT_TRUE(pins().Unpin("a").ok());
  Barrier();
  EXPECT_EQ(engine_->Stats().pinned_blocks, 0);
  ASSERT_TRUE(engine_->WakeUp({}).ok());
  EXPECT_EQ(Compute(22), 20) << "what was kept is cached";
  EXPECT_EQ(Compute(12, 500), 0);
  EXPECT_EQ(NumHeld(), 3);
}

TEST_F(EnginePrefixesTest, ASmallerCacheLosesThePinsBeyondItsEnd) {
  EngineOptions options = Options();
  Start(options);
  Compute(90, 500);  // blocks 1 to 24, which stay cached
  ASSERT_TRUE(pins().Pin(MakePin("a", 60)).ok());
  Compute(60);  // blocks 25 to 39
  EXPECT_EQ(NumHeld(), 15);
  const absl::StatusOr<int32_t> blocks = engine_->ResizeKvCache(30);
  ASSERT_TRUE(blocks.ok()) << blocks.status();
  EXPECT_EQ(*blocks, 30);
  EXPECT_LT(NumHeld(), 15);
  EXPECT_GE(engine_->Stats().pin_releases.shrunk, 1);
  ASSERT_TRUE(engine_->ResizeKvCache(63).ok());
  Compute(60);
  EXPECT_EQ(NumHeld(), 15);
}

}  // namespace
}  // namespace somnus
