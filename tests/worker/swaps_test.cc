// Blocks of the KV cache that steps of one rank swap with host memory.

#include <functional>

#include "proto/limits.h"
#include "tests/worker/region_rank.h"

namespace somnus {
namespace {

// A step that swaps pairs of device blocks and host blocks; the first of a pair is the source.
v1::StepRequest SwapStep(int64_t id, const Pairs& outs, const Pairs& ins, int64_t epoch = 1) {
  v1::StepRequest step = EmptyStep(id, epoch);
  for (const auto& [device, host] : outs) {
    v1::BlockCopy* swap = step.add_swap_outs();
    swap->set_src(device);
    swap->set_dst(host);
  }
  for (const auto& [host, device] : ins) {
    v1::BlockCopy* swap = step.add_swap_ins();
    swap->set_src(host);
    swap->set_dst(device);
  }
  return step;
}

v1::StepReply Swap(Rank& rank, int64_t id, const Pairs& outs, const Pairs& ins = {}, int64_t epoch = 1) {
  v1::StepReply reply = RunStep(rank.worker(), SwapStep(id, outs, ins, epoch));
  EXPECT_EQ(reply.error_code(), 0) << reply.error_message();
  return reply;
}

TEST(SwapsTest, ABlockComesBackAsItWas) {
  Rank rank;
  for (const int32_t id : {1, 2}) rank.FillBlock(id);
  EXPECT_TRUE(Swap(rank, 1, {{1, 2}, {2, 0}}).slot_errors().empty());
  EXPECT_EQ(rank.HostTierBytes(), kHostBlocks * kBlockBytes) << "a whole piece";
  EXPECT_EQ(rank.driver().live_bytes(), kAllBytes + kHostBlocks * kBlockBytes);
  for (const int32_t id : {1, 2}) rank.SpoilBlock(id);
  Swap(rank, 2, {}, {{2, 1}});
  EXPECT_TRUE(rank.HasBlock(1));
  EXPECT_FALSE(rank.HasBlock(2));
  Swap(rank, 3, {}, {{0, 2}});
  EXPECT_TRUE(rank.HasBlock(2));
  EXPECT_EQ(rank.HostTierBytes(), kHostBlocks * kBlockBytes) << "for the next ones";
}

// The step waits for these copies alone; on a GPU the other blocks are copied beside the step.
TEST(SwapsTest, BlocksThatTheStepGetsAreCopiedFirst) {
  using Blocks = std::vector<std::vector<int32_t>>;
  const std::vector<std::function<void(v1::StepRequest*)>> gives = {
      [](v1::StepRequest* step) { step->add_new_sequences()->add_block_ids(2); },
      [](v1::StepRequest* step) { step->add_sequences()->add_new_block_ids(2); },
      [](v1::StepRequest* step) { step->add_forks()->add_block_ids(2); },
      [](v1::StepRequest* step) { step->add_branches()->add_block_ids(2); },
      [](v1::StepRequest* step) { step->add_copies()->set_dst(2); },
      [](v1::StepRequest* step) { step->add_copies()->set_src(2); }};
  Rank rank;
  int64_t id = 0;
  for (const auto& give : gives) {
    v1::StepRequest step = SwapStep(++id, {{1, 2}, {2, 0}, {3, 1}}, {});
    give(&step);
    rank.control().swaps.clear();
    EXPECT_EQ(RunStep(rank.worker(), step).error_code(), 0);
    EXPECT_EQ(rank.control().swaps, (Blocks{{2}, {1, 3}})) << step.ShortDebugString();
  }
  rank.control().swaps.clear();
  Swap(rank, ++id, {{1, 2}, {2, 0}});
  EXPECT_EQ(rank.control().swaps, (Blocks{{1, 2}}));
}

TEST(SwapsTest, WithoutHostMemoryTheStepSaysSoAndIsDone) {
  Rank rank;
  rank.FillBlock(1);
  rank.driver().SetCapacity(kAllBytes);
  const v1::StepReply reply = Swap(rank, 1, {{1, 0}});
  ASSERT_EQ(reply.slot_errors_size(), 1);
  EXPECT_EQ(reply.slot_errors(0).slot(), kSwapsSlot);
  EXPECT_EQ(reply.slot_errors(0).code(), static_cast<int>(absl::StatusCode::kResourceExhausted));
  EXPECT_EQ(rank.driver().live_bytes(), kAllBytes);
  EXPECT_TRUE(rank.HasBlock(1));
  rank.driver().SetCapacity(2 * kAllBytes);
  EXPECT_TRUE(Swap(rank, 2, {{1, 0}}).slot_errors().empty()) << "it may try again";
}

TEST(SwapsTest, AStepThatTheTierCannotDoFails) {
  for (const v1::StepRequest& step : {SwapStep(1, {}, {{0, 1}}), SwapStep(1, {{1, kHostBlocks}}, {}),
                                      SwapStep(1, {{1, -1}}, {}), SwapStep(1, {{1, 0}}, {{0, 1}})}) {
    Rank rank;
    EXPECT_NE(RunStep(rank.worker(), step).error_code(), 0) << step.DebugString();
  }
}

// Sequences that share a block may come back in different steps.
TEST(SwapsTest, ABlockMayComeBackMoreThanOnce) {
  Rank rank;
  rank.FillBlock(1);
  Swap(rank, 1, {{1, 0}});
  for (const int64_t step : {2, 3}) {
    rank.SpoilBlock(1);
    Swap(rank, step, {}, {{0, 1}});
    EXPECT_TRUE(rank.HasBlock(1)) << step;
  }
}

TEST(SwapsTest, WhatIsSwappedOutOutlivesASleepBesideWhatTheSleepKeeps) {
  Rank rank;
  for (const int32_t id : {1, 2}) rank.FillBlock(id);
  Swap(rank, 1, {{1, 0}});
  const Pairs kept = {{2, 1}};
  ASSERT_EQ(rank.Run(Keeping(TransitionOf(1), kept, {0})), absl::OkStatus());
  EXPECT_EQ(rank.HostTierBytes(), kHostBlocks * kBlockBytes);
  ASSERT_EQ(rank.Run(Keeping(TransitionOf(0), kept, {0})), absl::OkStatus());
  EXPECT_EQ(rank.HostTierBytes(), kHostBlocks * kBlockBytes);
  EXPECT_FALSE(rank.HasBlock(1));
  EXPECT_TRUE(rank.HasBlock(2));
  Swap(rank, 2, {}, {{0, 1}});
  EXPECT_TRUE(rank.HasBlock(1));
  ASSERT_EQ(rank.Run(TransitionOf(1)), absl::OkStatus());
  ASSERT_EQ(rank.Run(TransitionOf(0)), absl::OkStatus());
  EXPECT_EQ(rank.HostTierBytes(), 0) << "nothing is swapped out any more";
}

TEST(SwapsTest, ItOutlivesASleepThatKeepsNothingElse) {
  Rank rank;
  rank.FillBlock(1);
  Swap(rank, 1, {{1, 0}});
  ASSERT_EQ(rank.Run(Keeping(TransitionOf(1), {}, {0})), absl::OkStatus());
  EXPECT_EQ(rank.HostTierBytes(), kHostBlocks * kBlockBytes);
  ASSERT_EQ(rank.Run(Keeping(TransitionOf(0), {}, {0})), absl::OkStatus());
  Swap(rank, 2, {}, {{0, 1}});
  EXPECT_TRUE(rank.HasBlock(1));
}

// The sequences of the blocks have ended, before and during the sleep.
TEST(SwapsTest, WhatIsNotWantedAnyMoreTakesNoHostMemoryAfterASleep) {
  Rank rank;
  Swap(rank, 1, {{1, 0}, {2, 1}});
  EXPECT_NE(rank.Run(Keeping(TransitionOf(1), {}, {2})), absl::OkStatus()) << "nothing is there";
  ASSERT_EQ(rank.Run(Keeping(TransitionOf(1), {}, {1})), absl::OkStatus());
  EXPECT_EQ(rank.HostTierBytes(), kHostBlocks * kBlockBytes);
  ASSERT_EQ(rank.Run(TransitionOf(0)), absl::OkStatus());
  EXPECT_EQ(rank.HostTierBytes(), 0);
  EXPECT_EQ(rank.driver().live_bytes(), kAllBytes);
  EXPECT_NE(RunStep(rank.worker(), SwapStep(2, {}, {{1, 1}})).error_code(), 0);
}

TEST(SwapsTest, AReplySaysHowMuchHostMemoryTheTierHas) {
  Rank rank;
  EXPECT_EQ(Swap(rank, 1, {}).kv_host_bytes(), 0);
  EXPECT_EQ(Swap(rank, 2, {{1, 0}}).kv_host_bytes(), kHostBlocks * kBlockBytes);
  EXPECT_EQ(Swap(rank, 3, {}, {{0, 1}}).kv_host_bytes(), kHostBlocks * kBlockBytes);
}

TEST(SwapsTest, ASleepThatKeptLessGivesItsSmallPieceUpForAWholeOne) {
  Rank rank(v1::BACKUP_POLICY_RETAIN);
  for (const int32_t id : {1, 2}) rank.FillBlock(id);
  ASSERT_EQ(rank.Run(Keeping(TransitionOf(1), {{1, 0}})), absl::OkStatus());
  ASSERT_EQ(rank.Run(Keeping(TransitionOf(0), {{1, 0}})), absl::OkStatus());
  EXPECT_EQ(rank.HostTierBytes(), kBlockBytes) << "it is retained";
  rank.FillBlock(2);  // which was not kept
  Swap(rank, 1, {{1, 0}, {2, 1}});
  EXPECT_EQ(rank.HostTierBytes(), kHostBlocks * kBlockBytes);
  for (const int32_t id : {1, 2}) rank.SpoilBlock(id);
  Swap(rank, 2, {}, {{0, 1}, {1, 2}});
  EXPECT_TRUE(rank.HasBlock(1) && rank.HasBlock(2));
}

TEST(SwapsTest, ADeeperSleepAndAFenceForgetWhatIsSwappedOut) {
  Rank rank;
  Swap(rank, 1, {{1, 0}});
  ASSERT_EQ(rank.Run(TransitionOf(2)), absl::OkStatus());
  EXPECT_EQ(rank.HostTierBytes(), 0);
  ASSERT_EQ(rank.Run(TransitionOf(0)), absl::OkStatus());
  Swap(rank, 2, {{1, 0}});
  ASSERT_TRUE(BeginEpoch(rank.worker(), 2).ok());
  EXPECT_EQ(rank.HostTierBytes(), 0);
  ASSERT_EQ(rank.worker().JoinGroup([] {
    v1::JoinGroupRequest join = JoinRequest();
    join.set_group_epoch(2);
    return join;
  }()),
            absl::OkStatus());
  EXPECT_NE(RunStep(rank.worker(), SwapStep(1, {}, {{0, 1}}, 2)).error_code(), 0);
}

}  // namespace
}  // namespace somnus
