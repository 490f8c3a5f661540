// How rows are cut into thread blocks: every element exactly once, for any width; norms by the width alone.

#include "kernels/cuda/rows_plan.h"

#include <gtest/gtest.h>

namespace somnus {
namespace {

TEST(RowsPlanTest, ElementPlansCoverARowOnceAndWasteLessThanAWarpAPiece) {
  for (const int unroll : {1, 2, 4}) {
    for (const int64_t rows : {1, 7, 132, 5000}) {
      for (int64_t vectors = 1; vectors < 3000; vectors += vectors < 80 ? 1 : 71) {
        const ElementPlan plan = PlanElements(rows, vectors, unroll, 132);
        ASSERT_EQ(plan.threads % kWarpThreads, 0);
        ASSERT_GT(plan.threads, 0);
        ASSERT_LE(plan.threads, 256);
        const int64_t slots = plan.pieces * plan.threads * unroll;
        ASSERT_GE(slots, vectors);
        ASSERT_LT(slots - vectors, (plan.pieces + 1) * kWarpThreads * unroll) << vectors;
      }
    }
  }
}

TEST(RowsPlanTest, OneRowReachesSeveralMultiprocessors) {
  EXPECT_EQ(PlanElements(1, 1536, 2, 132).pieces, 12);
  EXPECT_EQ(PlanElements(4096, 1536, 2, 132).pieces, 3);
  EXPECT_EQ(PlanElements(4096, 1536, 2, 132).threads, 256);
}

TEST(RowsPlanTest, NormPlansHoldTheRow) {
  for (int64_t cols = 4; cols <= 40000; cols += 4) {
    const NormPlan plan = PlanNorm(cols, true);
    ASSERT_EQ(plan.threads % kWarpThreads, 0);
    ASSERT_LE(plan.threads, kNormThreads);
    if (plan.per_thread != 0) {
      ASSERT_GE(int64_t{plan.threads} * plan.per_thread * 4, cols);
    }
    ASSERT_EQ(plan.per_thread == 0, cols > kNormThreads * 8 * 4) << cols;
  }
  for (const int64_t cols : {1, 3, 31, 33, 511, 513, 100000}) {
    const NormPlan plan = PlanNorm(cols, false);
    ASSERT_EQ(plan.per_thread, 0);
    ASSERT_EQ(plan.threads % kWarpThreads, 0);
    ASSERT_GE(plan.threads, std::min(cols, kNormThreads));
  }
}

TEST(RowsPlanTest, HeadPlansGiveEachHeadAGroupWithinAWarp) {
  for (const int64_t bytes : {2, 4}) {
    for (int64_t head_dim = 1; head_dim <= 1100; ++head_dim) {
      for (const int64_t heads : {1, 3, 15, 48, 100}) {
        const HeadPlan plan = PlanHeads(heads, head_dim, bytes, true);
        ASSERT_EQ(kWarpThreads % plan.lanes, 0);
        ASSERT_EQ(plan.threads % kWarpThreads, 0);
        ASSERT_GE(plan.threads * plan.blocks_per_token, heads * plan.lanes);
        ASSERT_LT(plan.threads * (plan.blocks_per_token - 1), heads * plan.lanes);
        const int64_t width = 16 / bytes;
        const bool vectors = head_dim % (2 * width) == 0 && head_dim / 2 / width <= kWarpThreads;
        ASSERT_EQ(plan.width, vectors ? width : 0) << head_dim;
        if (vectors) {
          ASSERT_GE(plan.lanes * width, head_dim / 2);
        }
        ASSERT_EQ(PlanHeads(heads, head_dim, bytes, false).width, 0);
      }
    }
  }
}

TEST(RowsPlanTest, CopyPlansCoverTheBlock) {
  for (const int64_t bytes : {1, 15, 16, 48, 4096, 65536, 65552, 100001}) {
    for (const bool aligned : {false, true}) {
      const CopyPlan plan = PlanCopy(bytes, aligned);
      ASSERT_EQ(plan.word * plan.words, bytes);
      ASSERT_EQ(plan.word, aligned && bytes % 16 == 0 ? 16 : 1);
      ASSERT_GE(plan.pieces * plan.threads * kCopyUnroll, plan.words);
      ASSERT_LT((plan.pieces - 1) * plan.threads * kCopyUnroll, plan.words);
    }
  }
}

TEST(RowsPlanTest, VectorsNeedAlignedRowsAndWholeWidths) {
  alignas(64) static float memory[64];
  const auto view = [&](int64_t offset, int64_t rows, int64_t cols, int64_t stride) {
    return TensorView{memory + offset, DataType::kF32, rows, cols, stride};
  };
  EXPECT_TRUE(TakesVectors(4, 8, {view(0, 2, 8, 12)}));
  EXPECT_FALSE(TakesVectors(4, 8, {view(1, 2, 8, 12)}));
  EXPECT_FALSE(TakesVectors(4, 8, {view(0, 2, 8, 11)}));
  EXPECT_TRUE(TakesVectors(4, 8, {view(0, 1, 8, 11)}));
  EXPECT_FALSE(TakesVectors(4, 6, {view(0, 2, 6, 8)}));
  EXPECT_FALSE(TakesVectors(4, 8, {view(0, 2, 8, 12), view(2, 2, 8, 12)}));
  EXPECT_TRUE(TakesVectors(4, 8, {TensorView{}}));
}

}  // namespace
}  // namespace somnus
