// Prefill over contexts of several sections: against the CPU's op at every edge of a section, and the same
// bits however the work is cut: by the number of blocks that share a context, by the chunks that a prompt
// comes in, by the rest of the batch.

#include "kernels/cuda/attention_plan.h"
#include "tests/cuda/attention_test_util.h"

namespace somnus {
namespace {

using namespace cuda_test;

constexpr int64_t kSection = kSectionTokens;

class SectionsTest : public AttentionTypesTest {};
INSTANTIATE_TEST_SUITE_P(Types, SectionsTest, testing::ValuesIn(kMmaTypes), TypesName);

// Cases that do not depend on the type of queries.
class SectionsPlacesTest : public SectionsTest {};
INSTANTIATE_TEST_SUITE_P(Types, SectionsPlacesTest, testing::ValuesIn(kCacheForms), TypesName);

// Uses caches whose values can be far apart, so that the order of sums shows (SwingValues).
class SectionsOrderTest : public SectionsTest {};
INSTANTIATE_TEST_SUITE_P(Types, SectionsOrderTest, testing::Values(kMmaTypes[0], kMmaTypes[1]), TypesName);

std::vector<std::string> Rows(AttentionRun& run, Device& device, int64_t first, int64_t count) {
  run.Queue(device);
  EXPECT_TRUE(device.Synchronize().ok());
  std::vector<std::string> rows;
  for (int64_t r = first; r < first + count; ++r) rows.push_back(run.out().Bytes(r));
  return rows;
}

// The chunk's rows lie before, on and behind the edge.
TEST_P(SectionsTest, SmallContextOfTwoSections) {
  RunCase(bench_, Case({1, 1, 16, 16}, {{kSection + 16, 1}}));
}

TEST_P(SectionsPlacesTest, ContextsAtEveryEdge) {
  RunCase(bench_, Case({2, 1, 64, 16}, {{kSection - 1, 3}, {kSection, 17}, {kSection + 1, 1}, {2060, 30}}));
  RunCase(bench_, Case({1, 1, 128, 32}, {{2 * kSection, 1}, {2 * kSection + 7, 16}, {0}, {90, 20}}, 0));
}

TEST_P(SectionsTest, EveryHeadDimAndGroup) {
  for (const HeadShape& shape : {HeadShape{7, 1, 16, 16}, HeadShape{2, 2, 80, 32}, HeadShape{1, 1, 96, 16},
                                 HeadShape{4, 2, 128, 64}, HeadShape{1, 1, 256, 16}}) {
    RunCase(bench_, Case(shape, {{2100, 9}}));
  }
}

// Several tiles of rows, of which the first see a section less.
TEST_P(SectionsPlacesTest, TilesOfRows) { RunCase(bench_, Case({8, 1, 16, 16}, {{2064, 32}})); }

TEST_P(SectionsPlacesTest, DecodesAndPaddingAmongThem) {
  RunCase(bench_, Case({6, 2, 64, 16}, {{2500}, {0}, {2100}, {0}, {2049, 5}, {33, 33}, {4100, 3}}, 3));
}

// Uneven shards: a KV head without a head leaves no parts.
TEST_P(SectionsPlacesTest, HeadsMayBeServedByAnyKvHead) {
  AttentionCase c = Case({5, 3, 64, 16}, {{2100, 4}, {70, 5}});
  c.kv_head_of_head = {2, 0, 2, 0, 2};
  RunCase(bench_, c);
}

TEST_P(SectionsTest, SpreadScoresAndAnySchedule) {
  for (uint64_t seed = 2; seed < 5; ++seed) {
    AttentionBench bench(seed, static_cast<int>(seed));
    AttentionCase c = Case({2, 1, 64, 16}, {{4200, 7}, {9, 9}});
    c.q_spread = 12;
    c.seed = static_cast<uint32_t>(seed);
    RunCase(bench, c);
  }
}

// Small chips give a block a whole context or a span of several sections, large chips give each section to a
// different block.
TEST_P(SectionsOrderTest, SameBitsHoweverManyBlocksShareAContext) {
  AttentionCase c = Case({2, 1, 64, 16}, {{6 * kSection, 3}, {4 * kSection, 2}, {2 * kSection, 67}});
  c.q_spread = 0.01;
  std::vector<std::string> first;
  for (const int num_sms : {1, 2, 132}) {
    SCOPED_TRACE(num_sms);
    AttentionBench bench(1, num_sms);
    AttentionRun run(c);
    run.SwingValues(kSection);
    const std::vector<std::string> rows = Rows(run, *bench.device, 0, 72);
    if (first.empty()) first = rows;
    EXPECT_EQ(rows, first);
  }
}

// The last rows of a prompt: in chunks of 40, 9 and 1 tokens, alone and with others in the batch.
TEST_P(SectionsOrderTest, SameBitsInAnyChunkAndBatch) {
  constexpr int64_t kContext = 4 * kSection, kQueries = 40;
  AttentionCase c = Case({3, 1, 64, 16}, {{kContext, kQueries}});
  c.q_spread = 0.01;
  AttentionBench small(1, 1);
  AttentionRun whole(c);
  whole.SwingValues(kSection);
  const std::vector<std::string> want = Rows(whole, *small.device, 0, kQueries);
  for (const int64_t queries : {9, 1}) {
    for (const bool others : {false, true}) {
      SCOPED_TRACE(testing::Message() << queries << " queries, others " << others);
      c.sequences = {{kContext, queries}};
      if (others) c.sequences.insert(c.sequences.end(), {{2100, 50}, {300, 7}, {0}});
      AttentionRun run(c);
      run.CopyFirstContext(whole);
      for (int64_t r = 0; r < queries; ++r) run.qkv().SetRow(r, whole.qkv().GetRow(kQueries - queries + r));
      Device& device = others ? *small.device : *bench_.device;
      EXPECT_EQ(Rows(run, device, 0, queries), std::vector<std::string>(want.end() - queries, want.end()));
    }
  }
}

// NaN rows stay NaN through every sum, and change no other row.
TEST_P(SectionsTest, NanStaysInItsRow) {
  const AttentionCase c = Case({2, 1, 64, 16}, {{2 * kSection + 30, 20}});
  AttentionRun whole(c), poisoned(c);
  for (int64_t col = 0; col < 128; ++col) poisoned.qkv().Set(12, col, NAN);
  const std::vector<std::string> want = Rows(whole, *bench_.device, 0, 20),
                                 got = Rows(poisoned, *bench_.device, 0, 20);
  for (int64_t t = 0; t < 20; ++t) {
    if (t == 12) continue;
    EXPECT_EQ(got[t], want[t]) << t;
  }
  for (int64_t col = 0; col < 128; ++col) EXPECT_TRUE(std::isnan(poisoned.out().Get(12, col)));
}

// A workspace for shorter contexts is an error, not a write behind the workspace.
TEST_P(SectionsPlacesTest, WorkspaceThatIsTooSmallIsAnError) {
  bench_.device->SetWorkspace(bench_.workspace->device<void>(), 1 << 20);
  AttentionRun run(Case({2, 1, 64, 16}, {{2100, 4}}));
  run.Queue(*bench_.device);
  EXPECT_EQ(bench_.device->Synchronize().code(), absl::StatusCode::kInternal);
}

}  // namespace
}  // namespace somnus
