// Plans of Linear: the route, how the GEMV is cut into blocks, and the keys under which the library's choices
// are kept.

#include "kernels/cuda/gemm_plan.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>

#include "kernels/cuda/gemv_plan.h"

namespace somnus {
namespace {

TEST(BucketRows, CoversTheRowsAndWastesLittle) {
  int64_t last = 0;
  for (int64_t rows = 1; rows <= 20000; ++rows) {
    const int64_t bucket = BucketRows(rows);
    ASSERT_GE(bucket, rows);
    ASSERT_GE(bucket, last) << rows;
    ASSERT_EQ(BucketRows(bucket), bucket) << "a bucket's own number is in it";
    ASSERT_LE(bucket - rows, std::max<int64_t>(rows <= 16 ? 0 : 15, rows / 8)) << rows;
    last = bucket;
  }
}

TEST(BucketRows, AreFew) {
  int count = 0;
  for (int64_t rows = 1, last = 0; rows <= 16384; ++rows) {
    count += BucketRows(rows) != last;
    last = BucketRows(rows);
  }
  EXPECT_LE(count, 100);
}

TEST(AlignmentOf, IsTheLargestPowerOfTwoUpTo256) {
  const auto at = [](uintptr_t address) { return AlignmentOf(reinterpret_cast<const void*>(address)); };
  EXPECT_EQ(at(0x10000), 256);
  EXPECT_EQ(at(0x10080), 128);
  EXPECT_EQ(at(0x10010), 16);
  EXPECT_EQ(at(0x10030), 16);
  EXPECT_EQ(at(0x10002), 2);
  EXPECT_EQ(at(0x10001), 1);
}

TEST(GemmKey, EveryPartCounts) {
  const GemmKey key{.rows = 1, .n = 2, .k = 3, .x_stride = 4, .y_stride = 5};
  LruCache<GemmKey, int> cache(100);
  cache.Put(key, 1);
  int made = 1;
  const auto differs = [&](auto change) {
    GemmKey other = key;
    change(other);
    EXPECT_EQ(cache.Find(other), nullptr) << made;
    cache.Put(other, ++made);
  };
  differs([](GemmKey& k) { k.rows = 9; });
  differs([](GemmKey& k) { k.n = 9; });
  differs([](GemmKey& k) { k.k = 9; });
  differs([](GemmKey& k) { k.x_stride = 9; });
  differs([](GemmKey& k) { k.y_stride = 9; });
  differs([](GemmKey& k) { k.act = DataType::kF16; });
  differs([](GemmKey& k) { k.out = DataType::kF32; });
  differs([](GemmKey& k) { k.bias = true; });
  differs([](GemmKey& k) { k.x_alignment = 2; });
  differs([](GemmKey& k) { k.w_alignment = 2; });
  differs([](GemmKey& k) { k.y_alignment = 2; });
  EXPECT_EQ(cache.size(), 12u);
  EXPECT_EQ(*cache.Find(key), 1);
}

TEST(LruCache, TheLeastRecentlyUsedLeaves) {
  LruCache<int, std::unique_ptr<int>> cache(3);
  for (int i = 0; i < 3; ++i) cache.Put(i, std::make_unique<int>(i));
  ASSERT_NE(cache.Find(0), nullptr);  // 1 is the oldest now.
  cache.Put(3, std::make_unique<int>(3));
  EXPECT_EQ(cache.Find(1), nullptr);
  EXPECT_NE(cache.Find(0), nullptr);
  EXPECT_NE(cache.Find(2), nullptr);
  EXPECT_EQ(**cache.Find(3), 3);
  EXPECT_EQ(cache.size(), 3u);
}

TEST(LruCache, PutReplaces) {
  LruCache<int, int> cache(2);
  cache.Put(1, 10);
  cache.Put(2, 20);
  EXPECT_EQ(*cache.Put(1, 11), 11);
  EXPECT_EQ(cache.size(), 2u);
  cache.Put(3, 30);
  EXPECT_EQ(cache.Find(2), nullptr) << "to replace is to use";
  EXPECT_EQ(*cache.Find(1), 11);
  cache.Clear();
  EXPECT_EQ(cache.size(), 0u);
  EXPECT_EQ(cache.Find(1), nullptr);
}

TEST(RouteLinear, FewRowsGoToTheGemv) {
  for (const DataType act : {DataType::kF32, DataType::kBF16, DataType::kF16}) {
    const int64_t most = act == DataType::kF32 ? kMaxGemvRowsF32 : kMaxGemvRows;
    LinearShape shape{.rows = 1, .n = 100, .k = 64, .act = act, .vectors = true};
    EXPECT_EQ(RouteLinear(shape, false), LinearRoute::kGemv);
    shape.rows = most;
    EXPECT_EQ(RouteLinear(shape, false), LinearRoute::kGemv);
    shape.rows = most + 1;
    EXPECT_EQ(RouteLinear(shape, false), LinearRoute::kGemm);
    shape.rows = 1;
    shape.vectors = false;
    EXPECT_EQ(RouteLinear(shape, false), LinearRoute::kGemm);
  }
}

TEST(RouteLinear, BatchInvariantWaysDependOnNoRows) {
  for (const DataType act : {DataType::kF32, DataType::kBF16, DataType::kF16}) {
    for (const int64_t rows : {1, 8, 9, 16, 17, 4096}) {
      LinearShape shape{.rows = rows, .n = 100, .k = 64, .act = act, .vectors = true};
      const bool gemv = act == DataType::kF32 || rows <= kMaxGemvRows;
      EXPECT_EQ(RouteLinear(shape, true), gemv ? LinearRoute::kGemv : LinearRoute::kTiles) << rows;
      shape.vectors = false;
      // The GEMV of few rows needs vectors too.
      EXPECT_EQ(RouteLinear(shape, true), LinearRoute::kPlain) << rows;
    }
  }
}

TEST(PlanLinearTiles, CoversTheProductAndFitsTheChip) {
  for (const int64_t max_shared : {99 << 10, 163 << 10, 227 << 10}) {
    for (const int sms : {1, 108, 132}) {
      for (const int64_t rows : {17, 64, 65, 512, 8192}) {
        for (const int64_t n : {1, 576, 4096, 28672}) {
          const LinearTilesPlan plan = PlanLinearTiles(sms, max_shared, rows, n);
          ASSERT_GE(plan.row_tiles * plan.tile_rows, rows);
          ASSERT_LT((plan.row_tiles - 1) * plan.tile_rows, rows);
          ASSERT_GE(plan.column_tiles * plan.tile_columns, n);
          ASSERT_LT((plan.column_tiles - 1) * plan.tile_columns, n);
          ASSERT_GE(plan.stages, 2);
          ASSERT_LE(plan.stages, kMaxLinearStages);
          ASSERT_LE(plan.shared_bytes, max_shared);
          ASSERT_EQ(plan.shared_bytes, int64_t{plan.stages} * (plan.tile_rows + plan.tile_columns) * 128);
        }
      }
    }
  }
  EXPECT_EQ(PlanLinearTiles(132, 227 << 10, 2048, 4096).tile_rows, 128) << "512 large tiles";
  EXPECT_EQ(PlanLinearTiles(132, 227 << 10, 64, 4096).tile_columns, 32) << "too few of the larger ones";
}

TEST(LinearSections, AreTheSameForEveryKernel) {
  EXPECT_EQ(LinearSectionLines(8), 1);
  EXPECT_EQ(LinearSectionLines(8 * 64), 1);
  EXPECT_EQ(LinearSectionLines(8 * 64 + 8), 2);
  EXPECT_EQ(LinearSectionLines(4096), 8);
}

TEST(RouteLinear, NothingToDoAndNothingToMultiply) {
  EXPECT_EQ(RouteLinear({.rows = 0, .n = 5, .k = 64, .vectors = true}, false), LinearRoute::kNothing);
  EXPECT_EQ(RouteLinear({.rows = 5, .n = 0, .k = 64, .vectors = true}, false), LinearRoute::kNothing);
  EXPECT_EQ(RouteLinear({.rows = 5, .n = 5, .k = 0, .vectors = true}, false), LinearRoute::kPlain)
      << "y is the bias";
}

TEST(PlanGemv, BlocksCoverEveryColumnOnce) {
  for (const int sms : {1, 108, 132}) {
    for (int64_t rows = 1; rows <= kMaxGemvRows; ++rows) {
      for (const int64_t n : {1, 7, 8, 9, 64, 576, 1000, 1536, 4096, 6144, 28672, 151936}) {
        for (const int64_t k : {8, 576, 4096, 14336}) {
          const GemvPlan plan = PlanGemv(sms, rows, n, k);
          ASSERT_TRUE(plan.tiles == 1 || plan.tiles == 2 || plan.tiles == 4);
          ASSERT_EQ(plan.halves, rows <= 8 ? 1 : 2);
          const int64_t per_block = plan.tiles * kGemvTile;
          ASSERT_GE(plan.blocks * per_block, n);
          ASSERT_LT((plan.blocks - 1) * per_block, n);
          ASSERT_EQ(plan.threads, 256);
          // Below the size that needs no opting in.
          ASSERT_LE(plan.shared_bytes, 48 << 10);
        }
      }
    }
  }
}

// The shapes that matter on an H100: every multiprocessor has a block wherever there are columns enough.
TEST(PlanGemv, FillsTheChip) {
  constexpr int kSms = 132;
  for (const int64_t n : {1536, 2048, 3072, 4096, 6144, 28672, 128256}) {
    for (const int64_t k : {576, 1024, 4096, 14336}) {
      for (const int64_t rows : {1, 8, 16}) {
        EXPECT_GE(PlanGemv(kSms, rows, n, k).blocks * 10, kSms * 9) << n << " " << k << " " << rows;
      }
    }
  }
  EXPECT_EQ(PlanGemv(kSms, 1, 576, 576).tiles, 1);
  EXPECT_EQ(PlanGemv(kSms, 1, 4096, 4096).tiles, 2);
  // 8 rows of 14336 are more than a first-level cache holds beside the weights.
  EXPECT_EQ(PlanGemv(kSms, 8, 4096, 14336).tiles, 4);
}

TEST(PlanGemvF32, RoundsRowsUp) {
  const int expected[] = {0, 1, 2, 4, 4, 8, 8, 8, 8};
  for (int64_t rows = 1; rows <= kMaxGemvRowsF32; ++rows) {
    const GemvF32Plan plan = PlanGemvF32(rows, 1001);
    EXPECT_EQ(plan.rows, expected[rows]);
    EXPECT_EQ(plan.blocks, 126);
    EXPECT_EQ(plan.threads, 256);
  }
}

}  // namespace
}  // namespace somnus
