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
                   kF8 = DataType::kF8E4M3, kI8 = DataType::kI8;

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
    for (const DataType bytes : {kF8, kI8}) {
      EXPECT_TRUE(takes(act, bytes, 80, 16));
      EXPECT_FALSE(takes(act, bytes, 72, 16));  // rows of 72 bytes
    }
  }
  EXPECT_FALSE(takes(kF32, kF32, 64, 16));
  EXPECT_FALSE(takes(kF32, kF8, 64, 16));
  EXPECT_FALSE(takes(kF32, kI8, 64, 16));
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

// HBM3's latency times HBM3's bandwidth is 40-64 KiB a multiprocessor.
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
  // One sequence of up to 100 tokens, 2 tiles, and one tile of heads a KV head; at most one tile a head.
  EXPECT_EQ(PlanDecode(kH100, Shape(64, kBF16, 4, 2), 1, 100, kHeader).num_blocks, 8);
  EXPECT_EQ(PlanDecode(kH100, Shape(64, kBF16, 1, 1), 1, 64, kHeader).num_blocks, 1);
  EXPECT_EQ(PlanDecode(kH100, Shape(64, kBF16, 1, 1), 1, 0, kHeader).num_blocks, 1);  // padding alone
  EXPECT_EQ(PlanDecode(kH100, Shape(128), 1, 32768, kHeader).num_blocks, 264);
}

TEST(AttentionPlanTest, ScratchHoldsEveryDecode) {
  for (const AttentionChip& chip : {kH100, kA100, kL4}) {
    for (const int64_t head_dim : {16, 64, 80, 128, 200, 256}) {
      const int64_t bytes = AttentionScratchBytes(chip, 32, head_dim, 4096);
      for (const DataType cache : {kBF16, kF8}) {
        for (const int64_t seqs : {1, 7, 512}) {
          const DecodePlan plan = PlanDecode(chip, Shape(head_dim, cache), seqs, 131072, kHeader);
          EXPECT_LE(plan.scratch.bytes(), bytes);
          EXPECT_GE(plan.scratch.slots_offset(), plan.num_blocks * DecodeScratch::kRecordBytes);
        }
      }
    }
  }
  EXPECT_EQ(AttentionScratchBytes(kH100, 32, 512, 131072), 0);  // the plain kernel needs none
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
        PlanPrefill(kH100, Shape(128, kBF16, num_heads, num_kv_heads), num_seqs, tokens, 700, kHeader);
    EXPECT_GE(plan.tiles, tiles);
    EXPECT_LE(plan.tiles, tiles + num_seqs);
    EXPECT_EQ(plan.blocks, plan.tiles);  // contexts of one section are not cut
    EXPECT_EQ(plan.scratch.bytes(), 0);
  }
}

TEST(AttentionPlanTest, PrefillFitsEveryChip) {
  for (const AttentionChip& chip : {kH100, kA100, kL4}) {
    for (const DataType cache : {kBF16, kF8}) {
      for (const int64_t head_dim : {64, 96, 128}) {
        const PrefillPlan plan = PlanPrefill(chip, Shape(head_dim, cache), 1, 512, 512, kHeader);
        EXPECT_GE(plan.stages, 2);
        EXPECT_LE(plan.stages, kMaxStages);
        EXPECT_LE(plan.shared_bytes, chip.max_shared_bytes);
        EXPECT_EQ(plan.tile_tokens % kSubTileTokens, 0);
        EXPECT_EQ(kSectionTokens % plan.tile_tokens, 0);
        EXPECT_GE(plan.blocks_per_sm, 1);
        EXPECT_LE(plan.blocks_per_sm * (plan.shared_bytes + 1024), chip.shared_bytes_per_sm);
      }
    }
  }
}

// Blocks and scratch of long contexts: every block has a stack, no more blocks than the chip holds, and the
// scratch for a model's longest context is enough for any batch.
TEST(AttentionPlanTest, ScratchHoldsEveryPrefill) {
  for (const AttentionChip& chip : {kH100, kA100, kL4}) {
    for (const int64_t head_dim : {64, 80, 128, 256}) {
      for (const int64_t num_kv_heads : {1, 3, 8, 32, 200}) {
        const int64_t num_heads = num_kv_heads * 2;
        const int64_t bytes = AttentionScratchBytes(chip, num_heads, head_dim, 131072);
        for (const int64_t context : {1, 2048, 2049, 32768, 131072}) {
          const PrefillPlan plan =
              PlanPrefill(chip, Shape(head_dim, kF8, num_heads, num_kv_heads), 3, 2048, context, kHeader);
          ASSERT_GE(plan.stages, 2);
          EXPECT_LE(plan.scratch.bytes(), bytes);
          if (plan.sections <= 1) continue;
          EXPECT_GE(plan.blocks, 1);
          EXPECT_LE(plan.blocks * num_kv_heads,
                    std::max<int64_t>(chip.num_sms * plan.blocks_per_sm, num_kv_heads));
          EXPECT_GE(int64_t{1} << (plan.scratch.levels - 1), plan.sections);
          EXPECT_EQ(plan.scratch.parts_offset() % 256, 0);
          EXPECT_EQ(plan.scratch.bytes(),
                    plan.scratch.stacks_offset() + num_kv_heads * plan.blocks * plan.scratch.levels *
                                                       kPrefillRows * (plan.dims + 8) * 4);
        }
      }
    }
  }
}

// Chunks of 64 on 32 k tokens and of 16 on 100 k make more spans than the chip has multiprocessors; a chunk
// of 2048 on 32 k tokens has tiles enough, and is not cut.
TEST(AttentionPlanTest, ShortChunksOnLongContextsFillTheChip) {
  const auto spans = [](int64_t tokens, int64_t context) {
    const PrefillPlan plan = PlanPrefill(kH100, Shape(128), 1, tokens, context, kHeader);
    const int64_t tiles = (tokens * 4 + kPrefillRows - 1) / kPrefillRows;
    const int64_t span = SpanSections(tiles * plan.sections, plan.blocks, plan.sections);
    return std::pair(8 * tiles * ((plan.sections + span - 1) / span), 8 * tiles);
  };
  EXPECT_GE(spans(64, 32768).first, 132);
  EXPECT_GE(spans(16, 100000).first, 132);
  EXPECT_GE(spans(1, 131072).first, 132);
  const auto [cut, tiles] = spans(2048, 32768);
  EXPECT_EQ(cut, tiles);
}

TEST(AttentionPlanTest, SpansOfAnyBatchFitTheirParts) {
  std::mt19937 random(7);
  for (int round = 0; round < 500; ++round) {
    const int64_t blocks = 1 + random() % 264, num_seqs = 1 + random() % 40;
    std::vector<std::pair<int64_t, int64_t>> seqs;  // tiles, sections
    int64_t work = 0, longest = 0;
    for (int64_t i = 0; i < num_seqs; ++i) {
      seqs.emplace_back(1 + random() % (round % 2 ? 2 : 300), 1 + random() % (round % 3 ? 20 : 500));
      work += seqs.back().first * seqs.back().second;
      longest = std::max(longest, seqs.back().second);
    }
    const int64_t span = SpanSections(work, blocks, longest);
    EXPECT_EQ(span & (span - 1), 0);
    int64_t parts = 0;
    for (const auto& [tiles, sections] : seqs) {
      const int64_t spans = (sections + span - 1) / span;
      EXPECT_LE(spans, kMaxSpans);
      if (spans > 1) parts += tiles * spans;
    }
    EXPECT_LE(parts, 4 * blocks);
  }
}

}  // namespace
}  // namespace somnus
