// Attention with a window, with a soft cap and with sinks: against softmax in double, and bit for bit the
// same however the work is cut. Blocks before the window are taken away and filled with NaN
// (Runner::SetRule), so that every read of such a block shows.

#include "tests/kernels/attention_test_util.h"

namespace somnus {
namespace {

using namespace kernel_test;

class WindowAttentionTest : public testing::TestWithParam<CpuIsa> {};
INSTANTIATE_TEST_SUITE_P(Isas, WindowAttentionTest, testing::ValuesIn(IsasWithOwnKernels()), IsaName);

struct Case {
  Shape shape;
  int32_t window;
  float logit_softcap;
  bool sinks = false;
};

// Logits below, among and above the scores; far above all, and so far below that the sink has no weight.
std::vector<float> SinksOf(const Shape& shape) {
  constexpr float kSinks[] = {0.5f, -2, 3, 60, -1e4f, 1.25f};
  std::vector<float> sinks;
  for (int64_t h = 0; h < shape.num_heads; ++h) sinks.push_back(kSinks[h % 6]);
  return sinks;
}

void SetRule(Runner& runner, const Case& c) {
  runner.SetRule(c.window, c.logit_softcap);
  if (c.sinks) runner.SetSinks(SinksOf(c.shape));
}

std::string Name(const CacheTypes& types, const Case& c) {
  return "types " + std::to_string(static_cast<int>(types.cache)) + " and " +
         std::to_string(static_cast<int>(types.out)) + ", " + std::to_string(c.shape.num_heads) +
         " heads on " + std::to_string(c.shape.num_kv_heads) + ", dim " + std::to_string(c.shape.head_dim) +
         ", block " + std::to_string(c.shape.block_size) + ", window " + std::to_string(c.window) + ", cap " +
         std::to_string(c.logit_softcap) + (c.sinks ? ", sinks" : "");
}

// Windows of one token, less than a block, a block, more than a chunk; odd ones; with and without a cap,
// which is small enough to bend the scores.
constexpr Case kCases[] = {
    {{9, 3, 64, 16}, 1, 0},       {{9, 3, 64, 16}, 16, 0},       {{4, 2, 24, 8}, 37, 0},
    {{16, 8, 128, 16}, 130, 0},   {{3, 1, 32, 16}, 5, 0.7f},     {{2, 2, 64, 80}, 101, 0},
    {{2, 1, 40, 5}, 7, 1.5f},     {{71, 1, 32, 64}, 48, 0},      {{5, 2, 48, 24}, 0, 0.5f},
    {{1, 1, 16, 1}, 3, 0},        {{6, 1, 32, 100}, 65, 2},      {{8, 2, 64, 16}, 64, 0.9f},
    {{8, 1, 64, 16}, 0, 0, true}, {{9, 3, 40, 16}, 37, 0, true}, {{7, 2, 128, 24}, 20, 1, true}};

// Outputs of a cut, row after row of each sequence.
using Rows = std::vector<std::vector<std::string>>;

TEST_P(WindowAttentionTest, EqualsSoftmaxInDouble) {
  for (const CacheTypes& types : CacheTypesOf(GetParam())) {
    for (const Case& c : kCases) {
      SCOPED_TRACE(Name(types, c));
      Runner runner(GetParam(), 2, c.shape, types, 400);
      SetRule(runner, c);
      const std::vector<float> sinks = SinksOf(c.shape);
      const AttentionRule rule{
          .window = c.window, .logit_softcap = c.logit_softcap, .sinks = c.sinks ? sinks.data() : nullptr};
      Sequence a(c.shape, 230, 1), b(c.shape, 33, 2);
      runner.Step({&a}, {100});
      runner.Step({&a}, {129});
      const std::vector<Sequence*> sequences = {&a, &b};
      runner.Step(sequences, {1, 33});
      int64_t row = 0;
      for (Sequence* s : sequences) {
        for (int64_t p = s == &a ? 229 : 0; p < s->done; ++p, ++row) {
          if (s == &b && p % 7 > 1) continue;
          for (int64_t h = 0; h < c.shape.num_heads; ++h) {
            const std::vector<double> want =
                Reference(*s, c.shape, types.cache, runner.kv_head_of_head()[h], h, p, runner.Scale(), rule);
            for (int64_t i = 0; i < c.shape.head_dim; ++i) {
              ASSERT_NEAR(runner.out().Get(row, h * c.shape.head_dim + i), want[i],
                          Tolerance(types.out, want[i]))
                  << "row " << row << ", position " << p << ", head " << h << ", dim " << i;
            }
          }
        }
      }
    }
  }
}

// Runs the sequences to their ends, in steps of some sequences and of up to `most` tokens each.
Rows RunInChunks(Runner& runner, const Case& c, const std::vector<int64_t>& lengths, uint32_t seed,
                 int64_t most) {
  std::mt19937 random(seed);
  std::vector<std::unique_ptr<Sequence>> sequences;
  for (size_t i = 0; i < lengths.size(); ++i)
    sequences.push_back(std::make_unique<Sequence>(c.shape, lengths[i], static_cast<uint32_t>(i)));
  Rows rows(lengths.size());
  while (true) {
    std::vector<size_t> open, chosen;
    for (size_t i = 0; i < lengths.size(); ++i) {
      if (sequences[i]->done < lengths[i]) open.push_back(i);
    }
    if (open.empty()) return rows;
    for (const size_t i : open) {
      if (random() % 3 != 0) chosen.push_back(i);
    }
    if (chosen.empty()) chosen.push_back(open[0]);
    std::vector<Sequence*> step;
    std::vector<int64_t> counts;
    for (const size_t i : chosen) {
      step.push_back(sequences[i].get());
      counts.push_back(
          std::min<int64_t>(lengths[i] - sequences[i]->done, 1 + static_cast<int64_t>(random()) % most));
    }
    const std::vector<std::string> got = runner.Step(step, counts);
    size_t at = 0;
    for (size_t i = 0; i < chosen.size(); ++i) {
      for (int64_t t = 0; t < counts[i]; ++t) rows[chosen[i]].push_back(got[at++]);
    }
  }
}

Rows RunTokenByToken(CpuIsa isa, const CacheTypes& types, const Case& c,
                     const std::vector<int64_t>& lengths) {
  Rows rows;
  for (size_t i = 0; i < lengths.size(); ++i) {
    Runner alone(isa, 1, c.shape, types, 2 + lengths[i] / c.shape.block_size + 1);
    SetRule(alone, c);
    Sequence s(c.shape, lengths[i], static_cast<uint32_t>(i));
    rows.emplace_back();
    while (s.done < lengths[i]) rows.back().push_back(alone.Step({&s}, {1})[0]);
  }
  return rows;
}

void ExpectSame(const Rows& got, const Rows& want) {
  for (size_t i = 0; i < want.size(); ++i) {
    ASSERT_EQ(got[i].size(), want[i].size());
    for (size_t p = 0; p < want[i].size(); ++p)
      ASSERT_EQ(got[i][p], want[i][p]) << "sequence " << i << ", position " << p;
  }
}

TEST_P(WindowAttentionTest, RowsDoNotDependOnBatchChunksPlacementOrThreads) {
  for (const CacheTypes& types : CacheTypesOf(GetParam())) {
    for (const Case& c : kCases) {
      SCOPED_TRACE(Name(types, c));
      const std::vector<int64_t> lengths = {1, 17, 130, 64, 211};
      const Rows want = RunTokenByToken(GetParam(), types, c, lengths);
      for (uint32_t round = 0; round < 3; ++round) {
        SCOPED_TRACE(round);
        Runner runner(GetParam(), 1 + static_cast<int>(round) % 4, c.shape, types, 500);
        SetRule(runner, c);
        runner.ShuffleBlocks(round);
        ExpectSame(RunInChunks(runner, c, lengths, round, round == 0 ? 300 : round % 2 ? 8 : 100), want);
        if (HasFatalFailure()) return;
      }
    }
  }
}

// Windows that cross the borders of sections of 512 tokens (504, 500, 600), on threads that share a context.
TEST_P(WindowAttentionTest, RowsDoNotDependOnHowSectionsAreShared) {
  const Case cases[] = {{{9, 3, 64, 16}, 600, 0},     {{9, 3, 64, 16}, 100, 0.8f},
                        {{2, 1, 40, 24}, 511, 0},     {{3, 3, 16, 100}, 700, 1},
                        {{4, 1, 32, 600}, 37, 0},     {{2, 1, 64, 16}, 1030, 0},
                        {{6, 1, 64, 16}, 0, 0, true}, {{3, 1, 32, 16}, 600, 0, true}};
  for (const CacheTypes& types : CacheTypesOf(GetParam())) {
    for (const Case& c : cases) {
      SCOPED_TRACE(Name(types, c));
      const std::vector<int64_t> lengths = {1290, 1100};
      Runner alone(GetParam(), 1, c.shape, types, 500);
      SetRule(alone, c);
      const Rows want = RunInChunks(alone, c, lengths, 1, 9);
      for (const int threads : {2, 9}) {
        SCOPED_TRACE(threads);
        Runner runner(GetParam(), threads, c.shape, types, 500, 2048);
        SetRule(runner, c);
        runner.ShuffleBlocks(static_cast<uint32_t>(threads));
        const uint32_t seed = static_cast<uint32_t>(threads);
        ExpectSame(RunInChunks(runner, c, lengths, seed, threads == 2 ? 500 : 40), want);
        if (HasFatalFailure()) return;
      }
    }
  }
}

// A NaN among the keys or values counts as long as the NaN is in the window, and not one token longer.
TEST_P(WindowAttentionTest, ATokenBeforeTheWindowIsNotSeen) {
  const Shape shape{6, 2, 32, 16};
  const int64_t key = shape.num_heads * shape.head_dim;
  const int64_t value = key + shape.num_kv_heads * shape.head_dim;
  for (const CacheTypes& types : kCacheTypes) {
    for (const int64_t column : {key, value}) {
      for (const bool one_by_one : {false, true}) {
        Runner runner(GetParam(), 1, shape, types, 20);
        runner.SetRule(21, 0);
        Sequence s(shape, 100, 1);
        s.qkv.Set(37, column, NAN);
        for (int64_t p = 0; p < 100;) {
          const int64_t count = one_by_one ? 1 : 50;
          runner.Step({&s}, {count});
          for (int64_t t = 0; t < count; ++t, ++p) {
            EXPECT_EQ(std::isnan(runner.out().Get(t, 0)), p >= 37 && p < 37 + 21)
                << "types " << static_cast<int>(types.cache) << " and " << static_cast<int>(types.out)
                << ", column " << column << ", position " << p;
          }
        }
      }
    }
  }
}

// A window as long as the context, and a cap that no score comes near, are as none.
TEST_P(WindowAttentionTest, AWideWindowAndAHighCapChangeNothing) {
  const Shape shape{4, 2, 64, 16};
  for (const CacheTypes& types : kCacheTypes) {
    Runner plain(GetParam(), 1, shape, types, 60), wide(GetParam(), 1, shape, types, 60),
        high(GetParam(), 1, shape, types, 60);
    wide.SetRule(600, 0);
    high.SetRule(0, 1e4f);
    Sequence a(shape, 600, 1), b(shape, 600, 1), c(shape, 600, 1);
    const std::vector<std::string> want = plain.Step({&a}, {600});
    EXPECT_EQ(wide.Step({&b}, {600}), want);
    high.Step({&c}, {600});
    for (int64_t i = 0; i < 4 * 64; ++i)
      EXPECT_NEAR(high.out().Get(599, i), plain.out().Get(599, i), Tolerance(types.out, 1));
  }
}

// Scores far beyond the cap all become the cap.
TEST_P(WindowAttentionTest, ScoresFarBeyondTheCapAreEqual) {
  const Shape shape{2, 1, 32, 16};
  for (const CacheTypes& types : kCacheTypes) {
    Runner runner(GetParam(), 1, shape, types, 20);
    runner.SetRule(0, 2);
    Sequence s(shape, 3, 1);
    for (int64_t p = 0; p < 3; ++p) {
      for (int64_t i = 0; i < 4 * 32; ++i) s.qkv.Set(p, i, p == 2 ? 40 : 20 + 10 * static_cast<float>(p));
      for (int64_t i = 3 * 32; i < 4 * 32; ++i) s.qkv.Set(p, i, static_cast<float>(p));
    }
    runner.Step({&s}, {3});
    for (int64_t i = 0; i < 64; ++i) EXPECT_NEAR(runner.out().Get(2, i), 1, 0.02);
  }
}

}  // namespace
}  // namespace somnus
