// The workspace of ops over logits: arrays do not overlap, are aligned and hold what kernels write.

#include "kernels/cuda/sampling_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace somnus {
namespace {

TEST(SamplingPlanTest, ArraysAreApartAlignedAndLargeEnough) {
  for (const int64_t rows : {1, 3, 512}) {
    for (const int64_t vocab : {1, 2047, 2048, 2049, 50257, 151936, 262144}) {
      const SamplingPlan plan = PlanSampling(rows, vocab);
      EXPECT_GE(plan.chunks * kChunkValues, vocab);
      EXPECT_LT((plan.chunks - 1) * kChunkValues, vocab);
      EXPECT_EQ(plan.groups * kLogitGroup, plan.chunks * kChunkValues);
      std::vector<std::pair<int64_t, int64_t>> arrays = {{plan.best, rows * plan.chunks * 8},
                                                         {plan.total, rows * 8},
                                                         {plan.list, rows * plan.candidates * 8},
                                                         {plan.sum, rows * plan.chunks * 4},
                                                         {plan.larger, rows * plan.chunks * 4},
                                                         {plan.group_max, rows * plan.groups * 4},
                                                         {plan.count, rows * 4},
                                                         {plan.bound, rows * 4}};
      std::sort(arrays.begin(), arrays.end());
      arrays.push_back({plan.bytes, 0});
      for (size_t i = 0; i + 1 < arrays.size(); ++i) {
        EXPECT_EQ(arrays[i].first % 16, 0);
        EXPECT_LE(arrays[i].first + arrays[i].second, arrays[i + 1].first) << "array " << i;
      }
      // The workspace grows with either number: the largest serves all.
      EXPECT_LE(PlanSampling(rows, vocab).bytes, PlanSampling(rows + 1, vocab).bytes);
      EXPECT_LE(PlanSampling(rows, vocab).bytes, PlanSampling(rows, vocab + 1).bytes);
    }
  }
}

TEST(SamplingPlanTest, StaysSmall) {
  EXPECT_LT(PlanSampling(512, 151936).bytes, int64_t{512} * 151936 * 4 / 8);
  EXPECT_LE(kMaxVocab, INT64_MAX >> 40);
}

}  // namespace
}  // namespace somnus
