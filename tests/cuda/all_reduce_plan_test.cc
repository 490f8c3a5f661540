// How collectives over peer memory are cut.

#include "kernels/cuda/peer/all_reduce_plan.h"

#include <gtest/gtest.h>

namespace somnus {
namespace {

TEST(AllReducePlanTest, PlansAreLegalForAnySize) {
  for (int world_size = 2; world_size <= 8; ++world_size) {
    for (int64_t bytes = 1; bytes <= 8 << 20; bytes += 1 + bytes / 3) {
      for (const int64_t one_shot_bytes :
           {int64_t{0}, OneShotBytes(world_size, PeerLink::kNvLink), INT64_MAX}) {
        const PeerPlan plan = PlanPeerReduce(bytes, world_size, one_shot_bytes);
        EXPECT_EQ(plan.two_shot, bytes > one_shot_bytes);
        EXPECT_GE(plan.blocks, 1);
        EXPECT_LE(plan.blocks, kMaxPeerBlocks);
        EXPECT_GE(plan.threads, 64);  // every rank's stamp has a thread, and every tail element of block 0
        EXPECT_LE(plan.threads, kMaxPeerThreads);
        EXPECT_EQ(plan.threads % 32, 0);
        // No block without work, unless there is a single block.
        const int64_t vectors = (bytes + 15) / 16;
        const int64_t shared = plan.two_shot ? (vectors + world_size - 1) / world_size : vectors;
        EXPECT_LT(int64_t{plan.blocks - 1} * plan.threads, shared);
      }
    }
  }
}

TEST(AllReducePlanTest, TwoRanksHaveNothingToGainFromTwoShots) {
  EXPECT_FALSE(PlanPeerReduce(int64_t{1} << 30, 2, OneShotBytes(2, PeerLink::kNvLink)).two_shot);
  EXPECT_FALSE(PlanPeerReduce(512 << 10, 4, OneShotBytes(4, PeerLink::kNvLink)).two_shot);
  EXPECT_TRUE(PlanPeerReduce((512 << 10) + 1, 4, OneShotBytes(4, PeerLink::kNvLink)).two_shot);
  EXPECT_TRUE(PlanPeerReduce((256 << 10) + 1, 8, OneShotBytes(8, PeerLink::kNvLink)).two_shot);
}

// A slower link gains more from fewer bytes.
TEST(AllReducePlanTest, PcieGoesTwoShotEarlier) {
  EXPECT_FALSE(PlanPeerReduce(int64_t{1} << 30, 2, OneShotBytes(2, PeerLink::kPcie)).two_shot);
  for (int world_size = 3; world_size <= kMaxPeers; ++world_size) {
    EXPECT_LT(OneShotBytes(world_size, PeerLink::kPcie), OneShotBytes(world_size, PeerLink::kNvLink));
    EXPECT_GE(OneShotBytes(world_size, PeerLink::kPcie), 16 << 10);
  }
}

TEST(AllReducePlanTest, NormsAreFusedAsLongAsOneShotIsBest) {
  EXPECT_EQ(PlanPeerNorm(1, 8192, OneShotBytes(8, PeerLink::kNvLink)).blocks, 1);
  EXPECT_EQ(PlanPeerNorm(20, 8192, OneShotBytes(8, PeerLink::kNvLink)).blocks, 20);
  EXPECT_EQ(PlanPeerNorm(32, 8192, OneShotBytes(8, PeerLink::kNvLink)).blocks, 32);
  EXPECT_EQ(PlanPeerNorm(33, 8192, OneShotBytes(8, PeerLink::kNvLink)).blocks, 0);  // 264 KiB
  EXPECT_EQ(PlanPeerNorm(128, 8192, OneShotBytes(2, PeerLink::kNvLink)).blocks, kMaxPeerBlocks);
  EXPECT_EQ(PlanPeerNorm(129, 8192, OneShotBytes(2, PeerLink::kNvLink)).blocks,
            0);  // beyond 1 MiB the norm is not done twice
  EXPECT_EQ(PlanPeerNorm(4, 64, OneShotBytes(2, PeerLink::kNvLink)).threads, 64);
  EXPECT_EQ(PlanPeerNorm(4, 16384, OneShotBytes(2, PeerLink::kNvLink)).threads, kMaxPeerThreads);
}

}  // namespace
}  // namespace somnus
