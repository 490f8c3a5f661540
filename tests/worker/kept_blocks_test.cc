// Blocks of the KV cache that outlive a sleep of one rank.

#include "tests/worker/region_rank.h"

namespace somnus {
namespace {

TEST(KeptBlocksTest, BlocksThatAreKeptAreThereAgainAfterTheWakeUp) {
  Rank rank;
  const Pairs kept = {{3, 0}, {1, 2}};
  for (const int32_t id : {1, 2, 3}) rank.FillBlock(id);
  for (int i = 0; i < 2; ++i) {
    auto slept = RunTransition(rank.worker(), Keeping(TransitionOf(1), kept));
    ASSERT_TRUE(slept.ok()) << slept.status();
    EXPECT_EQ(slept->tags().at("kv_cache").backed_up_bytes(), 2 * kBlockBytes);
    EXPECT_EQ(slept->tags().at("kv_cache").discarded_bytes(), kRegionBytes - 2 * kBlockBytes);
    EXPECT_EQ(slept->tags().at("kv_cache").freed_bytes(), kRegionBytes);
    EXPECT_EQ(rank.driver().live_bytes(), kHostBlocks * kBlockBytes)
        << "the host tier's, which is of the host";
    EXPECT_EQ(slept->tags().at("kv_cache").host_bytes(), kHostBlocks * kBlockBytes);
    auto woken = RunTransition(rank.worker(), Keeping(TransitionOf(0), kept));
    ASSERT_TRUE(woken.ok()) << woken.status();
    EXPECT_EQ(woken->tags().at("kv_cache").backed_up_bytes(), 0);
    EXPECT_EQ(woken->tags().at("kv_cache").host_bytes(), 0) << "it is given back";
    EXPECT_TRUE(rank.HasBlock(1) && rank.HasBlock(3));
    EXPECT_FALSE(rank.HasBlock(2)) << "it was not kept";
  }
}

TEST(KeptBlocksTest, TheHostTierTakesMemoryForTheBlocksThatAreKeptAndNoMore) {
  Rank rank;
  for (const Pairs& kept : {Pairs{{3, 0}}, Pairs{{3, 0}, {1, 1}}, Pairs{}}) {
    const auto slept = RunTransition(rank.worker(), Keeping(TransitionOf(1), kept));
    ASSERT_TRUE(slept.ok()) << slept.status();
    const int64_t bytes = static_cast<int64_t>(kept.size()) * kBlockBytes;
    EXPECT_EQ(slept->tags().at("kv_cache").host_bytes(), bytes);
    EXPECT_EQ(rank.worker().GetStatus().host_bytes_by_tag().at("kv_cache"), bytes);
    EXPECT_EQ(rank.driver().live_bytes(), bytes);
    ASSERT_EQ(rank.Run(Keeping(TransitionOf(0), kept)), absl::OkStatus());
  }
}

TEST(KeptBlocksTest, KeptBlocksComeBackWithTheCacheAlone) {
  Rank rank;
  rank.FillBlock(1);
  ASSERT_EQ(rank.Run(TransitionOf(1, {"weights"})), absl::OkStatus());
  ASSERT_EQ(rank.Run(Keeping(TransitionOf(1, {"kv_cache"}), {{1, 0}})), absl::OkStatus());
  ASSERT_EQ(rank.Run(TransitionOf(0, {"weights"})), absl::OkStatus());
  ASSERT_EQ(rank.Run(Keeping(TransitionOf(0, {"kv_cache"}), {{1, 0}})), absl::OkStatus());
  EXPECT_TRUE(rank.HasBlock(1));
  EXPECT_EQ(rank.state().name, "awake");
}

TEST(KeptBlocksTest, OtherBlocksThanThoseThatAreHeldAreRefused) {
  Rank rank;
  const Rank::State awake = rank.state();
  EXPECT_TRUE(absl::IsInvalidArgument(rank.Run(Keeping(TransitionOf(1, {"weights"}), {{1, 0}}))));
  EXPECT_TRUE(absl::IsFailedPrecondition(rank.Run(Keeping(TransitionOf(2), {{1, 0}}))));
  EXPECT_TRUE(absl::IsResourceExhausted(rank.Run(Keeping(TransitionOf(1), {{1, kHostBlocks}}))));
  EXPECT_TRUE(absl::IsResourceExhausted(rank.Run(Keeping(TransitionOf(1), {{1, -1}}))));
  EXPECT_TRUE(absl::IsInvalidArgument(rank.Run(Keeping(TransitionOf(1), {{1, 0}, {2, 0}}))));
  EXPECT_EQ(rank.state(), awake);
  rank.FillBlock(1);
  ASSERT_EQ(rank.Run(Keeping(TransitionOf(1), {{1, 0}})), absl::OkStatus());
  const Rank::State asleep = rank.state();
  for (const Pairs& wrong : {Pairs{{2, 0}}, Pairs{{1, 1}}, Pairs{{1, 0}, {2, 1}}})
    EXPECT_TRUE(absl::IsFailedPrecondition(rank.Run(Keeping(TransitionOf(0), wrong))));
  EXPECT_EQ(rank.state(), asleep);
  ASSERT_EQ(rank.Run(TransitionOf(0)), absl::OkStatus()) << "nobody wants them any more";
  EXPECT_EQ(rank.state(), awake);
  EXPECT_TRUE(absl::IsInvalidArgument(rank.Run(Keeping(TransitionOf(0), {{1, 0}})))) << "it is awake";
}

TEST(KeptBlocksTest, ADeeperSleepGivesTheHostTiersMemoryUp) {
  Rank rank;
  ASSERT_EQ(rank.Prepare(Keeping(TransitionOf(1), {{1, 0}}), 1), absl::OkStatus());
  ASSERT_EQ(rank.Commit(1), absl::OkStatus());
  EXPECT_GT(rank.driver().live_bytes(), 0);
  ASSERT_EQ(rank.Prepare(TransitionOf(2), 2), absl::OkStatus());
  EXPECT_EQ(rank.Abort(2), absl::OkStatus());
  EXPECT_GT(rank.driver().live_bytes(), 0) << "it has not happened";
  ASSERT_EQ(rank.Run(TransitionOf(2)), absl::OkStatus());
  EXPECT_EQ(rank.driver().live_bytes(), 0);
  EXPECT_TRUE(absl::IsFailedPrecondition(rank.Run(Keeping(TransitionOf(0), {{1, 0}}))));
  EXPECT_EQ(rank.Run(TransitionOf(0)), absl::OkStatus());
}

TEST(KeptBlocksTest, Level2OfTheCacheAloneGivesTheHostTiersMemoryUpWhileItSleeps) {
  Rank rank;
  const Pairs kept = {{1, 0}, {2, 1}};
  ASSERT_EQ(rank.Prepare(Keeping(TransitionOf(1), kept), 1), absl::OkStatus());
  ASSERT_EQ(rank.Commit(1), absl::OkStatus());
  const Rank::State asleep = rank.state();
  ASSERT_EQ(rank.Prepare(TransitionOf(1, {"kv_cache"}), 2), absl::OkStatus()) << "it sleeps already";
  ASSERT_EQ(rank.Commit(2), absl::OkStatus());
  EXPECT_EQ(rank.HostTierBytes(), 2 * kBlockBytes);
  ASSERT_EQ(rank.Prepare(TransitionOf(2, {"kv_cache"}), 3), absl::OkStatus());
  EXPECT_EQ(rank.Abort(3), absl::OkStatus());
  EXPECT_EQ(rank.state(), asleep);
  EXPECT_EQ(rank.HostTierBytes(), 2 * kBlockBytes) << "it has not happened";
  const auto dropped = RunTransition(rank.worker(), TransitionOf(2, {"kv_cache"}));
  ASSERT_TRUE(dropped.ok()) << dropped.status();
  EXPECT_EQ(dropped->tags().at("kv_cache").host_bytes(), 0);
  EXPECT_EQ(rank.HostTierBytes(), 0);
  EXPECT_EQ(rank.driver().live_bytes(), 0);
  EXPECT_EQ(rank.state().sleep_level, 1) << "the weights have their backup";
  EXPECT_TRUE(absl::IsFailedPrecondition(rank.Run(Keeping(TransitionOf(0), kept))));
  ASSERT_EQ(rank.Run(TransitionOf(0)), absl::OkStatus());
  EXPECT_TRUE(rank.HasWeights());
}

TEST(KeptBlocksTest, AHostWithoutMemoryForKeptBlocksLeavesEverythingAwake) {
  Rank rank;
  rank.FillBlock(1);
  const Rank::State awake = rank.state();
  rank.driver().SetCapacity(kAllBytes);
  const absl::Status status = rank.Run(Keeping(TransitionOf(1), {{1, 0}}));
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_NE(status.message().find("KV blocks that are kept"), absl::string_view::npos) << status;
  EXPECT_EQ(rank.state(), awake);
  EXPECT_TRUE(rank.HasBlock(1));
  EXPECT_EQ(rank.Run(TransitionOf(1)), absl::OkStatus()) << "without them it can sleep";
}

TEST(KeptBlocksTest, AnAbortForgetsWhatASleepHasCopiedAndKeepsWhatAWakeUpNeeds) {
  Rank rank;
  const Pairs kept = {{1, 0}, {2, 1}};
  for (const int32_t id : {1, 2}) rank.FillBlock(id);
  const Rank::State awake = rank.state();
  ASSERT_EQ(rank.Prepare(Keeping(TransitionOf(1), kept), 1), absl::OkStatus());
  EXPECT_EQ(rank.Abort(1), absl::OkStatus());
  EXPECT_EQ(rank.state(), awake);
  ASSERT_EQ(rank.Run(Keeping(TransitionOf(1), kept)), absl::OkStatus());
  const Rank::State asleep = rank.state();
  ASSERT_EQ(rank.Prepare(Keeping(TransitionOf(0), kept), 5000), absl::OkStatus());
  EXPECT_EQ(rank.Abort(5000), absl::OkStatus());
  EXPECT_EQ(rank.state(), asleep);
  ASSERT_EQ(rank.Prepare(Keeping(TransitionOf(0), kept), 5001), absl::OkStatus());
  ASSERT_EQ(rank.Commit(5001), absl::OkStatus());
  EXPECT_TRUE(rank.HasBlock(1) && rank.HasBlock(2));
}

TEST(KeptBlocksTest, AFenceForgetsWhatASleepHasPrepared) {
  Rank rank;
  const Pairs kept = {{1, 0}, {2, 1}};
  for (const int32_t id : {1, 2}) rank.FillBlock(id);
  const Rank::State awake = rank.state();
  ASSERT_EQ(rank.Prepare(Keeping(TransitionOf(1), kept), 1), absl::OkStatus());
  EXPECT_EQ(rank.HostTierBytes(), 2 * kBlockBytes);
  ASSERT_TRUE(BeginEpoch(rank.worker(), 2).ok());
  EXPECT_EQ(rank.state(), awake);
  EXPECT_EQ(rank.HostTierBytes(), 0);
  EXPECT_TRUE(rank.HasBlock(1) && rank.HasBlock(2));
}

// A Fence of any coordinator forgets the blocks that the old epoch has computed.
TEST(KeptBlocksTest, AFenceForgetsTheBlocksThatAreHeld) {
  Rank rank;
  const Pairs kept = {{1, 0}, {3, 1}};
  ASSERT_EQ(rank.Run(Keeping(TransitionOf(1), kept)), absl::OkStatus());
  EXPECT_EQ(rank.HostTierBytes(), 2 * kBlockBytes);
  ASSERT_EQ(rank.Prepare(Keeping(TransitionOf(0), kept), 5000), absl::OkStatus()) << "a wake-up is under way";
  ASSERT_TRUE(BeginEpoch(rank.worker(), 2).ok());
  EXPECT_EQ(rank.state().name, "asleep");
  EXPECT_EQ(rank.HostTierBytes(), 0);
  EXPECT_EQ(rank.driver().live_bytes(), 0);
  EXPECT_EQ(rank.Resize(2, 2), absl::OkStatus()) << "no block is in the way";
  EXPECT_EQ(rank.Resize(4, 2), absl::OkStatus());
  EXPECT_TRUE(absl::IsFailedPrecondition(rank.Run(Keeping(TransitionOf(0), kept), 2)));
  EXPECT_EQ(rank.Run(TransitionOf(0), 2), absl::OkStatus());
  ASSERT_EQ(rank.Run(Keeping(TransitionOf(1), kept), 2), absl::OkStatus()) << "a later sleep keeps others";
  EXPECT_EQ(rank.HostTierBytes(), 2 * kBlockBytes);
}

TEST(KeptBlocksTest, ACacheThatShrinksKeepsBlocksThatHaveMemoryAndForgetsOthers) {
  Rank rank;
  const Pairs kept = {{1, 0}, {2, 1}};
  for (const int32_t id : {1, 2}) rank.FillBlock(id);
  ASSERT_EQ(rank.Run(Keeping(TransitionOf(1), kept)), absl::OkStatus());
  EXPECT_EQ(rank.Resize(3), absl::OkStatus());
  EXPECT_EQ(rank.HostTierBytes(), 2 * kBlockBytes);
  ASSERT_EQ(rank.Run(Keeping(TransitionOf(0), kept)), absl::OkStatus());
  EXPECT_TRUE(rank.HasBlock(1) && rank.HasBlock(2));
  ASSERT_EQ(rank.Run(Keeping(TransitionOf(1), kept)), absl::OkStatus());
  EXPECT_EQ(rank.Resize(2), absl::OkStatus()) << "the coordinator has forgotten block 2";
  EXPECT_EQ(rank.HostTierBytes(), 0);
  EXPECT_TRUE(absl::IsFailedPrecondition(rank.Run(Keeping(TransitionOf(0), kept))));
  EXPECT_EQ(rank.Run(TransitionOf(0)), absl::OkStatus());
}

}  // namespace
}  // namespace somnus
