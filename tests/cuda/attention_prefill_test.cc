// Chunks of prompts against the CPU's op: whole prompts, chunks at odd offsets, short and long, with decodes
// and padding in between.

#include "tests/cuda/attention_test_util.h"

namespace somnus {
namespace {

using namespace cuda_test;

class PrefillTest : public AttentionTypesTest {};
INSTANTIATE_TEST_SUITE_P(Types, PrefillTest, testing::ValuesIn(kMmaTypes), TypesName);

// Cases that do not depend on the type of queries.
class PrefillPlacesTest : public PrefillTest {};
INSTANTIATE_TEST_SUITE_P(Types, PrefillPlacesTest, testing::ValuesIn(kCacheForms), TypesName);

TEST_P(PrefillTest, SmallChunk) {
  for (const int64_t head_dim : {64, 96, 128, 256}) RunCase(bench_, Case({2, 1, head_dim, 16}, {{37, 21}}));
}

TEST_P(PrefillTest, EveryHeadDimAndGroup) {
  constexpr HeadShape kShapes[] = {{1, 1, 16, 16},  {4, 2, 64, 16},   {6, 2, 80, 32},  {7, 1, 96, 16},
                                   {8, 1, 128, 64}, {16, 1, 128, 16}, {2, 1, 256, 16}, {32, 1, 64, 16},
                                   {3, 2, 48, 48},  {9, 3, 112, 256}, {4, 1, 160, 32}};
  for (const HeadShape& shape : kShapes) RunCase(bench_, Case(shape, {{37, 37}, {90, 21}}));
}

// Whole prompts, and chunks with first and last tokens at and around the edges of blocks and tiles.
TEST_P(PrefillPlacesTest, ChunksAtOddOffsets) {
  RunCase(bench_, Case({2, 1, 64, 16}, {{64, 64}, {65, 65}, {127, 1}, {128, 2}, {129, 65}, {200, 73}}));
  RunCase(bench_, Case({3, 1, 128, 32}, {{63, 63}, {64, 1}, {65, 1}, {100, 43}}));
}

// Several tiles of rows, rows of many tiles of tokens.
TEST_P(PrefillPlacesTest, LongChunks) {
  RunCase(bench_, Case({4, 1, 64, 16}, {{330, 150}}));
  RunCase(bench_, Case({1, 1, 128, 16}, {{600, 40}}));
}

TEST_P(PrefillPlacesTest, ShortSequencesShareAStep) {
  std::vector<SequenceSpec> sequences;
  std::mt19937 random(3);
  for (int i = 0; i < 30; ++i) {
    const int64_t queries = 1 + random() % 9;
    sequences.push_back({queries + static_cast<int64_t>(random() % 40), queries});
  }
  RunCase(bench_, Case({4, 2, 16, 16}, sequences));
}

TEST_P(PrefillPlacesTest, DecodesAndChunksAndPadding) {
  const std::vector<SequenceSpec> sequences = {{77}, {0}, {300}, {40, 40}, {1}, {0}, {130, 17}};
  for (const int64_t num_decodes : {0, 3, 1}) {
    RunCase(bench_, Case({6, 2, 64, 16}, sequences, num_decodes));
  }
  RunCase(bench_, Case({6, 2, 80, 16}, sequences, 2));
}

// Uneven shards: more rows for one KV head than the grid foresaw, and none for the second.
TEST_P(PrefillPlacesTest, HeadsMayBeServedByAnyKvHead) {
  AttentionCase c = Case({5, 3, 64, 16}, {{40, 40}, {70, 5}});
  c.kv_head_of_head = {2, 0, 2, 0, 2};
  RunCase(bench_, c);
  c = Case({24, 4, 16, 16}, {{60, 50}, {20, 20}});
  c.kv_head_of_head.assign(24, 1);
  c.kv_head_of_head[5] = 3;
  RunCase(bench_, c);
}

TEST_P(PrefillTest, SpreadScoresAndAnySchedule) {
  for (uint64_t seed = 2; seed < 5; ++seed) {
    AttentionBench bench(seed);
    AttentionCase c = Case({2, 1, 64, 16}, {{150, 70}, {9, 9}});
    c.q_spread = 12;
    c.seed = static_cast<uint32_t>(seed);
    RunCase(bench, c);
  }
}

// A row's result does not depend on the other rows of the tile.
TEST_P(PrefillTest, RowsSeeNothingBehindThem) {
  AttentionRun whole(Case({2, 1, 64, 16}, {{100, 100}}));
  whole.Queue(*bench_.device);
  ASSERT_TRUE(bench_.device->Synchronize().ok());
  AttentionRun poisoned(Case({2, 1, 64, 16}, {{100, 100}}));
  for (int64_t t = 60; t < 100; ++t) {
    for (int64_t col = 0; col < 128; ++col) poisoned.qkv().Set(t, col, NAN);
  }
  poisoned.Queue(*bench_.device);
  ASSERT_TRUE(bench_.device->Synchronize().ok());
  for (int64_t t = 0; t < 60; ++t) EXPECT_EQ(whole.out().Bytes(t), poisoned.out().Bytes(t)) << t;
  for (int64_t t = 60; t < 100; ++t) EXPECT_TRUE(std::isnan(poisoned.out().Get(t, 0))) << t;
}

TEST_P(PrefillTest, PlainKernelTakesTheRest) {
  for (const HeadShape& shape :
       {HeadShape{4, 2, 64, 8}, HeadShape{3, 1, 64, 1}, HeadShape{2, 2, 36, 16}, HeadShape{5, 1, 20, 24}}) {
    RunCase(bench_, Case(shape, {{50, 1}, {0}, {33, 20}, {70, 5}}, 2));
  }
  for (const Layout& layout : {Layout{3, 0}, Layout{0, 1}}) {
    AttentionCase c = Case({4, 2, 64, 16}, {{30, 30}, {40, 3}});
    c.layout = layout;
    RunCase(bench_, c);
  }
}

class PrefillF32Test : public testing::Test {
 protected:
  void SetUp() override { SOMNUS_SKIP_WITHOUT_GPU(bench_.device); }
  AttentionBench bench_;
};

TEST_F(PrefillF32Test, EqualsCpu) {
  for (const HeadShape& shape :
       {HeadShape{9, 3, 64, 16}, HeadShape{1, 1, 16, 1}, HeadShape{4, 1, 128, 8}, HeadShape{2, 2, 24, 5}}) {
    RunCase(bench_, {.act = DataType::kF32,
                     .cache = DataType::kF32,
                     .num_heads = shape.num_heads,
                     .num_kv_heads = shape.num_kv_heads,
                     .head_dim = shape.head_dim,
                     .block_size = shape.block_size,
                     .sequences = {{17}, {40, 40}, {0}, {90, 13}},
                     .num_decodes = 1});
  }
}

}  // namespace
}  // namespace somnus
