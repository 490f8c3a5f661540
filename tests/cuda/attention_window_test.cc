// Attention with a window, with a soft cap and with sinks, against the CPU's op: decodes and chunks, windows
// that begin at every place of blocks, tiles and sections. Table entries before a window name the null block,
// which holds NaN, so that every read of the null block shows.

#include "kernels/cuda/attention_plan.h"
#include "tests/cuda/attention_test_util.h"

namespace somnus {
namespace {

using namespace cuda_test;

class WindowTest : public AttentionTypesTest {
 protected:
  AttentionCase Case(const HeadShape& shape, const std::vector<SequenceSpec>& sequences, int32_t window,
                     float cap, int64_t num_decodes = 0) const {
    AttentionCase c = AttentionTypesTest::Case(shape, sequences, num_decodes);
    c.window = window;
    c.logit_softcap = cap;
    return c;
  }
  AttentionCase Decodes(const HeadShape& shape, const std::vector<int64_t>& contexts, int32_t window,
                        float cap) const {
    std::vector<SequenceSpec> sequences;
    for (const int64_t context : contexts) sequences.push_back({context});
    return Case(shape, sequences, window, cap, static_cast<int64_t>(contexts.size()));
  }
};
INSTANTIATE_TEST_SUITE_P(Types, WindowTest, testing::ValuesIn(kMmaTypes), TypesName);

// Cases that do not depend on the type of queries.
class WindowPlacesTest : public WindowTest {};
INSTANTIATE_TEST_SUITE_P(Types, WindowPlacesTest, testing::ValuesIn(kCacheForms), TypesName);

TEST_P(WindowTest, DecodesOfEveryHeadDim) {
  for (const HeadShape& shape : {HeadShape{4, 2, 64, 16}, HeadShape{7, 1, 96, 16}, HeadShape{2, 1, 128, 64},
                                 HeadShape{2, 1, 256, 16}, HeadShape{35, 2, 48, 48}}) {
    RunCase(bench_, Decodes(shape, {1, 70, 200, 333}, 50, 0));
    RunCase(bench_, Decodes(shape, {1, 70, 200}, 0, 1.5f));
  }
}

TEST_P(WindowPlacesTest, DecodesWithWindowsAtEveryEdge) {
  for (const int32_t window : {1, 15, 16, 17, 63, 64, 65, 130}) {
    RunCase(bench_, Decodes({4, 2, 64, 16}, {1, 16, 17, 64, 65, 80, 127, 128, 129, 200}, window,
                            window % 2 == 0 ? 2 : 0));
  }
}

// A window in the parts of many blocks, and many windows in a block.
TEST_P(WindowPlacesTest, DecodesInParts) {
  RunCase(bench_, Decodes({8, 2, 128, 16}, {1999, 0, 700}, 1000, 0));
  AttentionBench small(1, 2);
  std::vector<int64_t> contexts;
  std::mt19937 random(5);
  for (int i = 0; i < 30; ++i) contexts.push_back(1 + random() % (i % 9 == 0 ? 900 : 150));
  RunCase(small, Decodes({16, 16, 16, 16}, contexts, 100, 3));
}

TEST_P(WindowTest, ChunksOfEveryHeadDim) {
  for (const HeadShape& shape : {HeadShape{4, 2, 64, 16}, HeadShape{7, 1, 96, 16}, HeadShape{2, 1, 128, 64},
                                 HeadShape{2, 1, 256, 16}, HeadShape{3, 2, 48, 48}}) {
    RunCase(bench_, Case(shape, {{37, 37}, {190, 21}}, 33, 0));
    RunCase(bench_, Case(shape, {{37, 37}, {90, 21}}, 0, 1.5f));
  }
}

TEST_P(WindowPlacesTest, ChunksWithWindowsAtEveryEdge) {
  for (const int32_t window : {1, 16, 31, 32, 33, 64, 100}) {
    RunCase(bench_, Case({2, 1, 64, 16}, {{64, 64}, {65, 65}, {128, 2}, {129, 65}, {200, 73}, {0}}, window,
                         window % 2 == 0 ? 2 : 0));
  }
  RunCase(bench_, Case({3, 1, 128, 32}, {{263, 163}, {164, 1}, {165, 1}, {100, 43}}, 40, 0));
}

TEST_P(WindowPlacesTest, DecodesAndChunksAndPadding) {
  const std::vector<SequenceSpec> sequences = {{77}, {0}, {300}, {40, 40}, {1}, {0}, {130, 17}};
  for (const int64_t num_decodes : {0, 3})
    RunCase(bench_, Case({6, 2, 80, 16}, sequences, 45, 4, num_decodes));
}

// Windows that begin before, at and behind the border of a section, and that span whole sections.
TEST_P(WindowPlacesTest, ChunksAcrossSections) {
  constexpr int64_t kSection = kSectionTokens;
  RunCase(bench_, Case({2, 1, 64, 16}, {{2 * kSection + 50, 90}, {kSection + 5, 3}, {70, 7}}, 100, 0));
  RunCase(bench_, Case({1, 1, 128, 16}, {{3 * kSection + 40, 20}}, 2 * kSection + 30, 0));
  RunCase(bench_, Case({1, 1, 64, 16}, {{2 * kSection + 9, 12}}, 0, 2));
}

// The last rows of a prompt: in chunks of 40, 9 and 1 tokens, on chips of any size. Sections 0 to 3 are left
// out for all, some or none of a tile's rows.
TEST_P(WindowTest, SameBitsInAnyChunk) {
  constexpr int64_t kContext = 4 * kSectionTokens + 20, kQueries = 40;
  if (GetParam().cache != GetParam().act) GTEST_SKIP() << "SwingValues takes caches of 16 bits";
  for (const int32_t window : {30, static_cast<int32_t>(kSectionTokens), 5000}) {
    AttentionCase c = Case({3, 1, 64, 16}, {{kContext, kQueries}}, window, 0);
    c.q_spread = 0.01;
    AttentionBench small(1, 1);
    AttentionRun whole(c);
    whole.SwingValues(kSectionTokens);
    whole.Queue(*small.device);
    ASSERT_TRUE(small.device->Synchronize().ok());
    for (const int64_t queries : {9, 1}) {
      SCOPED_TRACE(testing::Message() << "window " << window << ", queries " << queries);
      c.sequences = {{kContext, queries}, {300, 7}};
      AttentionRun run(c);
      run.CopyFirstContext(whole);
      for (int64_t r = 0; r < queries; ++r) run.qkv().SetRow(r, whole.qkv().GetRow(kQueries - queries + r));
      run.Queue(*bench_.device);
      ASSERT_TRUE(bench_.device->Synchronize().ok());
      for (int64_t r = 0; r < queries; ++r)
        EXPECT_EQ(run.out().Bytes(r), whole.out().Bytes(kQueries - queries + r)) << r;
    }
  }
}

// A graph that was recorded for long contexts serves shorter contexts.
TEST_P(WindowPlacesTest, GraphServesOtherContextLengths) {
  AttentionCase c = Decodes({4, 2, 64, 16}, {90, 90, 90}, 70, 0);
  c.max_context_len = 2048;
  AttentionRun run(c);
  ASSERT_TRUE(bench_.device->BeginCapture().ok());
  run.Queue(*bench_.device);
  auto graph = bench_.device->EndCapture();
  ASSERT_TRUE(graph.ok()) << graph.status();
  for (const std::vector<int64_t>& contexts : {std::vector<int64_t>{90, 90, 90}, {86, 0, 89}, {0, 0, 0}}) {
    for (size_t i = 0; i < contexts.size(); ++i) {
      run.SetContextLength(i, static_cast<int32_t>(contexts[i]));
      run.sequences()[i].context = contexts[i];
    }
    (*graph)->Launch();
    ASSERT_TRUE(bench_.device->Synchronize().ok());
    run.Check();
  }
}

TEST_P(WindowTest, PlainKernelTakesTheRest) {
  for (const HeadShape& shape : {HeadShape{4, 2, 64, 8}, HeadShape{3, 1, 64, 1}, HeadShape{2, 2, 36, 16}}) {
    for (const int32_t window : {1, 31, 33, 140})
      RunCase(bench_, Case(shape, {{1}, {50, 1}, {0}, {133, 20}, {270, 5}}, window, window == 33 ? 2 : 0, 1));
  }
}

// Logits of sinks among the scores, far above and far below.
AttentionCase WithSinks(AttentionCase c) {
  for (int64_t h = 0; h < c.num_heads; ++h) {
    constexpr float kSinks[] = {0.5f, -2, 3, 40, -1e4f, 1.25f};
    c.sinks.push_back(kSinks[h % 6]);
  }
  return c;
}

// Whole contexts, contexts in the parts of many blocks, chunks, spans of sections, padding and the plain
// kernel; each with and without a window.
TEST_P(WindowTest, SinksSmall) {
  AttentionBench small(1, 2);
  for (const int32_t window : {0, 50}) {
    RunCase(bench_, WithSinks(Decodes({7, 1, 64, 16}, {1, 70, 0, 333}, window, 0)));
    RunCase(small, WithSinks(Decodes({6, 2, 128, 16}, {600, 3}, window, 0)));
    RunCase(bench_, WithSinks(Case({3, 1, 64, 16}, {{37, 37}, {0}, {190, 21}}, window, 0)));
    RunCase(bench_, WithSinks(Case({6, 2, 64, 8}, {{1}, {133, 20}, {0}}, window, 2, 1)));
  }
  RunCase(bench_, WithSinks(Case({2, 1, 64, 16}, {{2 * kSectionTokens + 50, 9}, {70, 7}}, 0, 0)));
  RunCase(small, WithSinks(Case({2, 1, 64, 16}, {{2 * kSectionTokens + 50, 9}}, 0, 0)));
}

class WindowF32Test : public testing::Test {
 protected:
  void SetUp() override { SOMNUS_SKIP_WITHOUT_GPU(bench_.device); }
  AttentionBench bench_;
};

TEST_F(WindowF32Test, EqualsCpu) {
  for (const HeadShape& shape : {HeadShape{9, 3, 64, 16}, HeadShape{2, 2, 24, 5}}) {
    RunCase(bench_, {.act = DataType::kF32,
                     .cache = DataType::kF32,
                     .num_heads = shape.num_heads,
                     .num_kv_heads = shape.num_kv_heads,
                     .head_dim = shape.head_dim,
                     .block_size = shape.block_size,
                     .sequences = {{17}, {40, 40}, {0}, {190, 13}},
                     .num_decodes = 1,
                     .window = 37,
                     .logit_softcap = 1});
  }
}

}  // namespace
}  // namespace somnus
