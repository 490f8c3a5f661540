// Decode against the CPU's op: every size of head, group and block, contexts at every edge, many parts of one
// context and many contexts a block, padding, lengths that change between two replays of a graph.

#include "tests/cuda/attention_test_util.h"

namespace somnus {
namespace {

using namespace cuda_test;

class DecodeTest : public AttentionTypesTest {
 protected:
  AttentionCase Case(const HeadShape& shape, const std::vector<int64_t>& contexts) const {
    std::vector<SequenceSpec> sequences;
    for (const int64_t context : contexts) sequences.push_back({context});
    return AttentionTypesTest::Case(shape, sequences, static_cast<int64_t>(contexts.size()));
  }
};
INSTANTIATE_TEST_SUITE_P(Types, DecodeTest, testing::ValuesIn(kMmaTypes), TypesName);

// Cases that do not depend on the type of queries.
class DecodePlacesTest : public DecodeTest {};
INSTANTIATE_TEST_SUITE_P(Types, DecodePlacesTest, testing::ValuesIn(kCacheForms), TypesName);

TEST_P(DecodeTest, SmallContexts) {
  for (const int64_t head_dim : {64, 96, 128, 256}) RunCase(bench_, Case({2, 1, head_dim, 16}, {70, 1}));
}

TEST_P(DecodeTest, EveryHeadDimAndGroup) {
  constexpr HeadShape kShapes[] = {{1, 1, 16, 16},  {4, 2, 64, 16},   {6, 2, 80, 32},  {7, 1, 96, 16},
                                   {8, 1, 128, 64}, {16, 1, 128, 16}, {2, 1, 256, 16}, {32, 1, 64, 16},
                                   {35, 2, 48, 48}, {9, 3, 112, 256}, {40, 1, 160, 32}};
  for (const HeadShape& shape : kShapes) RunCase(bench_, Case(shape, {1, 70, 200}));
}

TEST_P(DecodePlacesTest, ContextsAtEveryEdge) {
  for (const HeadShape& shape : {HeadShape{4, 2, 64, 16}, HeadShape{3, 1, 128, 32}}) {
    RunCase(bench_, Case(shape, {1, 2, 15, 16, 17, 31, 32, 33, 47, 48, 49, 63, 64, 65}));
    RunCase(bench_, Case(shape, {127, 128, 129, 191, 192, 193, 255, 256, 257}));
  }
}

// One sequence: as many blocks as tiles, and a context's parts in all blocks.
TEST_P(DecodePlacesTest, LongContextInManyParts) {
  RunCase(bench_, Case({2, 1, 64, 16}, {2500}));
  RunCase(bench_, Case({8, 2, 128, 16}, {1999}));
  RunCase(bench_, Case({1, 1, 256, 16}, {777}));
}

// More tiles than blocks: pieces of several sequences and KV heads in a block, parts at both ends of the
// block.
TEST_P(DecodePlacesTest, ManySequencesInABlock) {
  std::vector<int64_t> contexts;
  std::mt19937 random(5);
  for (int i = 0; i < 40; ++i) contexts.push_back(1 + random() % (i % 9 == 0 ? 400 : 90));
  RunCase(bench_, Case({16, 16, 16, 16}, contexts));
}

TEST_P(DecodePlacesTest, PaddingIsZeros) {
  RunCase(bench_, Case({4, 2, 64, 16}, {0, 33, 0, 0, 100, 0}));
  RunCase(bench_, Case({4, 2, 64, 16}, {0}));
  AttentionCase bounded = Case({4, 2, 128, 16}, {0, 0, 5});
  bounded.max_context_len = 4096;
  RunCase(bench_, bounded);
}

// Uneven shards: any map, KV heads without a head, groups of more than 16.
TEST_P(DecodePlacesTest, HeadsMayBeServedByAnyKvHead) {
  AttentionCase c = Case({5, 3, 64, 16}, {70, 9, 150});
  c.kv_head_of_head = {2, 0, 2, 0, 2};
  RunCase(bench_, c);
  c = Case({40, 4, 64, 16}, {70, 200});
  c.kv_head_of_head.assign(40, 1);
  for (int h = 0; h < 40; h += 7) c.kv_head_of_head[h] = 3;
  RunCase(bench_, c);
}

// Scores whose maximum moves far, and the order in which threads run.
TEST_P(DecodeTest, SpreadScoresAndAnySchedule) {
  for (uint64_t seed = 2; seed < 6; ++seed) {
    AttentionBench bench(seed);
    AttentionCase c = Case({6, 2, 64, 16}, {300, 1, 64, 129});
    c.q_spread = 12;
    c.seed = static_cast<uint32_t>(seed);
    RunCase(bench, c);
  }
}

TEST_P(DecodeTest, SameBitsInAnySchedule) {
  std::vector<std::string> first;
  for (uint64_t seed = 1; seed < 4; ++seed) {
    AttentionBench bench(seed);
    AttentionRun run(Case({4, 2, 64, 16}, {900, 40, 350}));
    run.Queue(*bench.device);
    ASSERT_TRUE(bench.device->Synchronize().ok());
    std::vector<std::string> rows;
    for (int64_t r = 0; r < 3; ++r) rows.push_back(run.out().Bytes(r));
    if (first.empty()) first = rows;
    EXPECT_EQ(rows, first);
  }
}

// A graph serves other lengths than at its recording: splits are chosen on the device.
TEST_P(DecodePlacesTest, GraphServesOtherContextLengths) {
  AttentionCase c = Case({4, 2, 64, 16}, {500, 500, 500});
  c.max_context_len = 2048;
  AttentionRun run(c);
  ASSERT_TRUE(bench_.device->BeginCapture().ok());
  run.Queue(*bench_.device);
  auto graph = bench_.device->EndCapture();
  ASSERT_TRUE(graph.ok()) << graph.status();
  for (const std::vector<int64_t>& contexts :
       {std::vector<int64_t>{500, 500, 500}, {1, 0, 300}, {64, 499, 65}, {0, 0, 0}}) {
    (*graph)->Launch();  // With the earlier contents, which the next replay replaces.
    ASSERT_TRUE(bench_.device->Synchronize().ok());
    for (size_t i = 0; i < contexts.size(); ++i) {
      run.SetContextLength(i, static_cast<int32_t>(contexts[i]));
      run.sequences()[i].context = contexts[i];
    }
    (*graph)->Launch();
    ASSERT_TRUE(bench_.device->Synchronize().ok());
    run.Check();
  }
}

// Tensor cores do not take other blocks, other widths, and rows that are not aligned.
TEST_P(DecodeTest, PlainKernelTakesTheRest) {
  for (const HeadShape& shape : {HeadShape{4, 2, 64, 8}, HeadShape{3, 1, 64, 1}, HeadShape{2, 2, 36, 16},
                                 HeadShape{5, 1, 20, 24}, HeadShape{1, 1, 320, 16}}) {
    RunCase(bench_, Case(shape, {1, 33, 0, 150}));
  }
  for (const Layout& layout : {Layout{3, 0}, Layout{0, 1}}) {
    AttentionCase c = Case({4, 2, 64, 16}, {70, 0, 17});
    c.layout = layout;
    RunCase(bench_, c);
  }
}

class DecodeF32Test : public testing::Test {
 protected:
  void SetUp() override { SOMNUS_SKIP_WITHOUT_GPU(bench_.device); }
  AttentionBench bench_;
};

TEST_F(DecodeF32Test, SmallContext) {
  RunCase(bench_, {.act = DataType::kF32,
                   .cache = DataType::kF32,
                   .num_heads = 2,
                   .head_dim = 16,
                   .sequences = {{33}},
                   .num_decodes = 1});
}

TEST_F(DecodeF32Test, EqualsCpu) {
  for (const HeadShape& shape : {HeadShape{9, 3, 64, 16}, HeadShape{1, 1, 16, 1}, HeadShape{4, 1, 128, 8},
                                 HeadShape{2, 2, 24, 5}, HeadShape{2, 1, 256, 32}}) {
    for (const DataType cache : {DataType::kF32, DataType::kF8E4M3, DataType::kI8}) {
      AttentionCase c{.act = DataType::kF32,
                      .cache = cache,
                      .num_heads = shape.num_heads,
                      .num_kv_heads = shape.num_kv_heads,
                      .head_dim = shape.head_dim,
                      .block_size = shape.block_size};
      for (const int64_t context : {1, 31, 32, 33, 0, 129, 300}) c.sequences.push_back({context});
      c.num_decodes = static_cast<int64_t>(c.sequences.size());
      RunCase(bench_, c);
    }
  }
}

}  // namespace
}  // namespace somnus
