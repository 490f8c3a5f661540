// The plans of paged attention, for chips that are and are not there.

#include "kernels/cuda/attention_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace somnus {
namespace {

constexpr AttentionChip kH100{132, 227 << 10, 228 << 10}, kA100{108, 163 << 10, 164 << 10},
    kL4{58, 99 << 10, 100 << 10};
constexpr int64_t kHeader = 2048;
constexpr DataType kBF16 = DataType::kBF16, kF16 = DataType::kF16, kF32 = DataType::kF32,
                   kF8 = DataType::kF8E4M3;

AttentionShape Shape(int64_t head_dim, DataType cache = kBF16, int64_t num_heads = 32,
                     int64_t num_kv_heads = 8) {
  return {.act = kBF16,
          .cache = cache,
          .num_heads = num_heads,
          .num_kv_heads = num_kv_heads,
          .head_dim = head_dim,
          .block_size = 16};
}

TEST(AttentionPlanTest, HeadDimIsRoundedUpToACompiledOne) {
  EXPECT_EQ(CompiledHeadDim(16), 64);
  EXPECT_EQ(CompiledHeadDim(64), 64);
  EXPECT_EQ(CompiledHeadDim(72), 96);
  EXPECT_EQ(CompiledHeadDim(80), 96);
  EXPECT_EQ(CompiledHeadDim(128), 128);
  EXPECT_EQ(CompiledHeadDim(136), 256);
  EXPECT_EQ(CompiledHeadDim(256), 256);
  EXPECT_EQ(CompiledHeadDim(257), 0);
}

TEST(AttentionPlanTest, TensorCoresTakeWholeWordsAndSubTiles) {
  const auto takes = [](DataType act, DataType cache, int64_t head_dim, int64_t block_size) {
    return TakesTensorCores({.act = act,
                             .cache = cache,
                             .num_heads = 4,
                             .num_kv_heads = 2,
                             .head_dim = head_dim,
                             .block_size = block_size});
  };
  for (const DataType act : {kBF16, kF16}) {
    for (const int64_t head_dim : {8, 16, 64, 80, 96, 128, 256}) {
      for (const int64_t block_size : {16, 32, 48, 64, 256})
        EXPECT_TRUE(takes(act, act, head_dim, block_size));
    }
    for (const int64_t block_size : {1, 5, 8, 24, 40}) EXPECT_FALSE(takes(act, act, 64, block_size));
    for (const int64_t head_dim : {4, 12, 100, 264}) EXPECT_FALSE(takes(act, act, head_dim, 16));
    EXPECT_TRUE(takes(act, kF8, 80, 16));
    EXPECT_FALSE(takes(act, kF8, 72, 16));  // rows of 72 bytes
  }
  EXPECT_FALSE(takes(kF32, kF32, 64, 16));
  EXPECT_FALSE(takes(kF32, kF8, 64, 16));
  EXPECT_FALSE(takes(kBF16, kF16, 64, 16));
}

TEST(AttentionPlanTest, DecodeFitsEveryChip) {
  for (const AttentionChip& chip : {kH100, kA100, kL4}) {
    for (const DataType cache : {kBF16, kF8}) {
      for (const int64_t head_dim : {64, 96, 128, 256}) {
        const int64_t header = kHeader + (head_dim == 256 ? 8192 : 0);
        const DecodePlan plan = PlanDecode(chip, Shape(head_dim, cache), 32, 4096, header);
        if (plan.stages == 0) {
          // Only where two sub-tiles a warp do not fit: the largest heads on the smallest chip.
          EXPECT_TRUE(chip.num_sms == kL4.num_sms && head_dim == 256 && cache == kBF16);
          continue;
        }
        EXPECT_GE(plan.stages, 2);
        EXPECT_LE(plan.stages, kMaxStages);
        EXPECT_LE(plan.shared_bytes, chip.max_shared_bytes);
        EXPECT_LE(plan.blocks_per_sm * (plan.shared_bytes + 1024), chip.shared_bytes_per_sm);
        EXPECT_EQ(plan.num_blocks, chip.num_sms * plan.blocks_per_sm);
      }
    }
  }
}

// HBM3's latency times its bandwidth is 40-64 KiB a multiprocessor.
TEST(AttentionPlanTest, DecodeKeepsEnoughBytesUnderWayOnHopper) {
  for (const DataType cache : {kBF16, kF8}) {
    for (const int64_t head_dim : {64, 80, 96, 128, 256}) {
      const int64_t header = kHeader + (head_dim == 256 ? 8192 : 0);
      EXPECT_GE(PlanDecode(kH100, Shape(head_dim, cache), 32, 4096, header).in_flight_bytes, 64 << 10)
          << head_dim;
    }
  }
}

TEST(AttentionPlanTest, DecodeStartsNoMoreBlocksThanCanHaveWork) {
  // One sequence of up to 100 tokens, 2 tiles, and one tile of heads a KV head; at most one a head.
  EXPECT_EQ(PlanDecode(kH100, Shape(64, kBF16, 4, 2), 1, 100, kHeader).num_blocks, 8);
  EXPECT_EQ(PlanDecode(kH100, Shape(64, kBF16, 1, 1), 1, 64, kHeader).num_blocks, 1);
  EXPECT_EQ(PlanDecode(kH100, Shape(64, kBF16, 1, 1), 1, 0, kHeader).num_blocks, 1);  // padding alone
  EXPECT_EQ(PlanDecode(kH100, Shape(128), 1, 32768, kHeader).num_blocks, 264);
}

TEST(AttentionPlanTest, ScratchHoldsEveryDecode) {
  for (const AttentionChip& chip : {kH100, kA100, kL4}) {
    for (const int64_t head_dim : {16, 64, 80, 128, 200, 256}) {
      const int64_t bytes = AttentionScratchBytes(chip, head_dim);
      for (const DataType cache : {kBF16, kF8}) {
        for (const int64_t seqs : {1, 7, 512}) {
          const DecodePlan plan = PlanDecode(chip, Shape(head_dim, cache), seqs, 131072, kHeader);
          EXPECT_LE(plan.scratch.bytes(), bytes);
          EXPECT_GE(plan.scratch.slots_offset(), plan.num_blocks * DecodeScratch::kRecordBytes);
        }
      }
    }
  }
  EXPECT_EQ(AttentionScratchBytes(kH100, 512), 0);  // the plain kernel needs none
}

TEST(AttentionPlanTest, PrefillHasATileForEveryRow) {
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    const int64_t num_kv_heads = 1 + random() % 8, num_heads = num_kv_heads * (1 + random() % 9);
    const int64_t num_seqs = 1 + random() % 40;
    int64_t tokens = 0, tiles = 0;
    for (int64_t i = 0; i < num_seqs; ++i) {
      const int64_t queries = 1 + random() % (round % 2 ? 5 : 700);
      tokens += queries;
      tiles += (queries * (num_heads / num_kv_heads) + kPrefillRows - 1) / kPrefillRows;
    }
    const PrefillPlan plan =
        PlanPrefill(kH100, Shape(128, kBF16, num_heads, num_kv_heads), num_seqs, tokens, kHeader);
    EXPECT_GE(plan.tiles, tiles);
    EXPECT_LE(plan.tiles, tiles + num_seqs);
  }
}

TEST(AttentionPlanTest, PrefillFitsEveryChip) {
  for (const AttentionChip& chip : {kH100, kA100, kL4}) {
    for (const DataType cache : {kBF16, kF8}) {
      for (const int64_t head_dim : {64, 96, 128}) {
        const PrefillPlan plan = PlanPrefill(chip, Shape(head_dim, cache), 1, 512, kHeader);
        EXPECT_GE(plan.stages, 2);
        EXPECT_LE(plan.stages, kMaxStages);
        EXPECT_LE(plan.shared_bytes, chip.max_shared_bytes);
        EXPECT_EQ(plan.tile_tokens % kSubTileTokens, 0);
      }
    }
  }
}

}  // namespace
}  // namespace somnus
