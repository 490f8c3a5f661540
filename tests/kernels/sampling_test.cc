// Arg max, log-probabilities and sampling against definitions in double; distributions by chi-square with
// fixed seeds.

#include <map>
#include <set>

#include "tests/kernels/kernel_test_util.h"

namespace somnus {
namespace {

using namespace kernel_test;

class SamplingTest : public testing::TestWithParam<CpuIsa> {};
INSTANTIATE_TEST_SUITE_P(Isas, SamplingTest, testing::ValuesIn(IsasWithOwnKernels()), IsaName);

const float kInf = std::numeric_limits<float>::infinity();

OpsLimits Limits(int64_t rows, int64_t vocab) { return {.max_seqs = rows, .vocab_size = vocab}; }
SampleRow Row(float temperature, int32_t position, uint64_t seed = 7) {
  return {.temperature = temperature, .top_p = 1, .top_k = 0, .min_p = 0, .seed = seed, .position = position};
}

TEST_P(SamplingTest, ArgMaxIsTheFirstOfTheLargest) {
  for (const int64_t n : {1, 3, 15, 16, 17, 100, 1001}) {
    Bench bench(GetParam(), 2, Limits(6, n));
    Matrix x(DataType::kF32, 6, n, 3);
    x.Randomize(static_cast<uint32_t>(n));
    for (int64_t c : {n - 1, n / 2, n / 3}) x.Set(1, c, 9);
    for (int64_t c = 0; c < n; ++c) {
      x.Set(2, c, NAN);
      x.Set(3, c, -kInf);
    }
    x.Set(4, n / 2, NAN);
    x.Set(5, n - 1, kInf);
    std::vector<ScoredToken> best(6);
    ArgMax(*bench.device, x.view(), 1000, best.data());
    for (int r : {0, 1, 5}) {
      int64_t want = 0;
      for (int64_t c = 1; c < n; ++c) {
        if (x.Get(r, c) > x.Get(r, want)) want = c;
      }
      EXPECT_EQ(best[r].id, 1000 + want) << "row " << r << " of " << n;
      EXPECT_EQ(best[r].value, x.Get(r, want));
    }
    for (int r : {2, 4}) {
      EXPECT_TRUE(std::isnan(best[r].value)) << "row " << r << " of " << n;
      EXPECT_EQ(best[r].id, -1);
    }
    EXPECT_EQ(best[3].value, -kInf);
    EXPECT_EQ(best[3].id, -1);
  }
}

// A NaN in any lane, the first and the last included.
TEST_P(SamplingTest, OneNanIsSeenWhereverItIs) {
  for (const int64_t n : {1, 5, 16, 33, 1000}) {
    Bench bench(GetParam(), 2, Limits(n, n));
    Matrix x(DataType::kF32, n, n);
    x.Randomize(4);
    for (int64_t r = 0; r < n; ++r) x.Set(r, r, NAN);
    std::vector<ScoredToken> best(n);
    ArgMax(*bench.device, x.view(), 0, best.data());
    std::vector<int32_t> tokens(n, 7);
    std::vector<SampleRow> rows(n, Row(1, 3));
    for (int64_t r = 0; r < n; r += 2) rows[r].top_k = 3;
    Sample(*bench.device, x.view(), rows.data(), tokens.data());
    for (int64_t r = 0; r < n; ++r) {
      EXPECT_TRUE(std::isnan(best[r].value)) << r << " of " << n;
      EXPECT_EQ(tokens[r], kLogitsNotFinite) << r << " of " << n;
    }
  }
}

TEST_P(SamplingTest, CombineArgMaxTakesTheBestRankOrNone) {
  Bench bench(GetParam(), 1, Limits(1, 8));
  constexpr int64_t kRows = 6;
  // [3 ranks][6 rows]: plain, ties, a rank without columns, a NaN, +inf, nothing above -inf.
  const std::vector<ScoredToken> all = {{1, 3}, {2, 4}, {-kInf, -1}, {5, 1},    {1, 0},    {-kInf, -1},
                                        {4, 9}, {2, 8}, {-9, 11},    {NAN, -1}, {kInf, 9}, {-kInf, -1},
                                        {2, 7}, {1, 6}, {-kInf, -1}, {9, 12},   {0, 14},   {-kInf, -1}};
  std::vector<int32_t> tokens(kRows);
  CombineArgMax(*bench.device, all.data(), 3, kRows, tokens.data());
  EXPECT_EQ(tokens, (std::vector<int32_t>{9, 4, 11, kLogitsNotFinite, kLogitsNotFinite, kLogitsNotFinite}));
}

TEST_P(SamplingTest, LogProbsOfRowsThatAreNotGoodAreNan) {
  constexpr int64_t kVocab = 70, kRows = 4;
  Bench bench(GetParam(), 1, Limits(kRows, kVocab));
  Matrix x(DataType::kF32, kRows, kVocab);
  x.Randomize(5);
  x.Set(0, 69, NAN);
  x.Set(1, 3, kInf);
  for (int64_t c = 0; c < kVocab; ++c) {
    x.Set(2, c, -kInf);
    x.Set(3, c, NAN);
  }
  const std::vector<int32_t> ids = {1, 3, 5, 7};
  std::vector<float> logprob(kRows);
  std::vector<int32_t> rank(kRows);
  std::vector<ScoredToken> top(kRows * 2);
  LogProbs(*bench.device, x.view(), ids.data(), 2, logprob.data(), rank.data(), top.data());
  for (int64_t r = 0; r < kRows; ++r) EXPECT_TRUE(std::isnan(logprob[r])) << "row " << r;
  for (const ScoredToken& token : top) EXPECT_TRUE(token.id >= 0 && token.id < kVocab) << token.id;
}

TEST_P(SamplingTest, LogProbsRankAndTop) {
  constexpr int64_t kVocab = 5003, kRows = 5, kTop = 20;
  Bench bench(GetParam(), 2, Limits(kRows, kVocab));
  Matrix x(DataType::kF32, kRows, kVocab);
  x.Randomize(1, 4);
  for (int64_t c = 0; c < kVocab; ++c) x.Set(3, c, std::floor(x.Get(3, c)));  // Many ties.
  x.Set(4, 17, -kInf);
  const std::vector<int32_t> ids = {0, 5002, 77, 1234, 17};
  std::vector<float> logprob(kRows);
  std::vector<int32_t> rank(kRows);
  std::vector<ScoredToken> top(kRows * kTop);
  LogProbs(*bench.device, x.view(), ids.data(), kTop, logprob.data(), rank.data(), top.data());
  for (int64_t r = 0; r < kRows; ++r) {
    double sum = 0;
    std::vector<std::pair<float, int32_t>> sorted;
    int32_t larger = 0;
    for (int64_t c = 0; c < kVocab; ++c) {
      sum += std::exp(static_cast<double>(x.Get(r, c)));
      sorted.push_back({-x.Get(r, c), static_cast<int32_t>(c)});
      larger += x.Get(r, c) > x.Get(r, ids[r]);
    }
    std::sort(sorted.begin(), sorted.end());
    if (r < 4) {
      EXPECT_NEAR(logprob[r], x.Get(r, ids[r]) - std::log(sum), 2e-6);
    }
    EXPECT_EQ(rank[r], larger + 1);
    for (int64_t i = 0; i < kTop; ++i) {
      EXPECT_EQ(top[r * kTop + i].id, sorted[i].second) << "row " << r << ", place " << i;
      EXPECT_NEAR(top[r * kTop + i].value, -sorted[i].first - std::log(sum), 2e-6);
    }
  }
  EXPECT_EQ(logprob[4], -kInf);
}

TEST_P(SamplingTest, RowsThatAreNotGoodHaveNoToken) {
  constexpr int64_t kVocab = 1000;
  for (const float temperature : {0.0f, -1.0f, NAN, 1e-9f, 0.7f, 1e30f, 3e38f}) {
    Bench bench(GetParam(), 2, Limits(5, kVocab));
    Matrix x(DataType::kF32, 5, kVocab);
    x.Randomize(2);
    x.Set(0, 321, 50);
    for (int64_t c = 0; c < kVocab; ++c) {
      x.Set(1, c, NAN);
      x.Set(2, c, -kInf);
      if (c != 999) x.Set(4, c, -kInf);
    }
    x.Set(3, 44, kInf);
    std::vector<SampleRow> rows(5, Row(temperature, 3));
    rows[2].top_k = 5;
    rows[4].top_p = 0.5f;
    rows[4].min_p = 0.1f;
    std::vector<int32_t> tokens(5, -7);
    Sample(*bench.device, x.view(), rows.data(), tokens.data());
    SCOPED_TRACE(testing::Message() << "temperature " << temperature);
    if (temperature < 1) {
      EXPECT_EQ(tokens[0], 321);
    }
    EXPECT_TRUE(tokens[0] >= 0 && tokens[0] < kVocab) << tokens[0];
    EXPECT_EQ(tokens[1], kLogitsNotFinite);
    EXPECT_EQ(tokens[2], kNoTokenAllowed);
    EXPECT_EQ(tokens[3], kLogitsNotFinite);
    EXPECT_EQ(tokens[4], 999);
  }
}

// Samples `draws` tokens of the same logits at different positions.
std::map<int32_t, int> Draw(CpuIsa isa, const std::vector<float>& logits, SampleRow row, int draws) {
  constexpr int kRows = 50;
  const int64_t n = logits.size();
  Bench bench(isa, 2, Limits(kRows, n));
  std::map<int32_t, int> counts;
  for (int done = 0; done < draws; done += kRows) {
    Matrix x(DataType::kF32, kRows, n);
    std::vector<SampleRow> rows(kRows, row);
    for (int r = 0; r < kRows; ++r) {
      rows[r].position = done + r;
      std::copy(logits.begin(), logits.end(), x.row(r));
    }
    std::vector<int32_t> tokens(kRows);
    Sample(*bench.device, x.view(), rows.data(), tokens.data());
    for (int32_t token : tokens) ++counts[token];
  }
  return counts;
}

std::vector<double> Probabilities(const std::vector<float>& logits, double temperature) {
  std::vector<double> p;
  double sum = 0;
  for (float x : logits) {
    p.push_back(std::exp(x / temperature));
    sum += p.back();
  }
  for (double& x : p) x /= sum;
  return p;
}

void ExpectDistribution(const std::map<int32_t, int>& counts, const std::vector<double>& p, int draws) {
  double chi = 0;
  int bins = 0;
  double rest_p = 0;
  int rest = 0;
  for (size_t i = 0; i < p.size(); ++i) {
    const int count = counts.contains(static_cast<int32_t>(i)) ? counts.at(static_cast<int32_t>(i)) : 0;
    if (p[i] == 0) {
      EXPECT_EQ(count, 0) << "token " << i << " was cut off";
    } else if (p[i] * draws < 10) {
      rest_p += p[i];
      rest += count;
    } else {
      chi += std::pow(count - p[i] * draws, 2) / (p[i] * draws);
      ++bins;
    }
  }
  if (rest_p * draws >= 5) {
    chi += std::pow(rest - rest_p * draws, 2) / (rest_p * draws);
    ++bins;
  }
  // Mean bins - 1, deviation sqrt(2 (bins - 1)): four deviations, about one in 10,000 for an honest sampler.
  EXPECT_LT(chi, bins - 1 + 4 * std::sqrt(2.0 * (bins - 1)) + 4) << bins << " bins";
}

TEST_P(SamplingTest, FollowsTheSoftmax) {
  constexpr int kDraws = 20000;
  const std::vector<float> logits = RandomFloats(200, 3, 1.5f);
  for (const float temperature : {0.5f, 1.0f, 2.0f}) {
    ExpectDistribution(Draw(GetParam(), logits, Row(temperature, 0), kDraws),
                       Probabilities(logits, temperature), kDraws);
  }
}

TEST_P(SamplingTest, RareTokensKeepTheirProbability) {
  constexpr int kDraws = 8000;
  std::vector<float> logits(3000, -8.0f);  // Together 2999 e^-8 against 1.
  logits[1500] = 0;
  const std::map<int32_t, int> counts = Draw(GetParam(), logits, Row(1, 0), kDraws);
  const double p = 1 / (1 + 2999 * std::exp(-8.0));
  EXPECT_NEAR(counts.at(1500), p * kDraws, 4 * std::sqrt(kDraws * p * (1 - p)));
}

// Zeroes what vLLM would cut: temperature, min-p, top-k, top-p, in this order; then renormalises.
std::vector<double> Cut(const std::vector<float>& logits, const SampleRow& row) {
  std::vector<double> p = Probabilities(logits, row.temperature);
  std::vector<size_t> order(p.size());
  for (size_t i = 0; i < p.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return logits[a] > logits[b]; });
  const double max = p[order[0]];
  for (double& x : p) {
    if (x < max * row.min_p) x = 0;
  }
  if (row.top_k > 0 && row.top_k < static_cast<int>(p.size())) {
    for (size_t i = 0; i < p.size(); ++i) {
      if (logits[i] < logits[order[row.top_k - 1]]) p[i] = 0;
    }
  }
  double sum = 0, before = 0;
  for (double x : p) sum += x;
  for (size_t i : order) {
    const double x = p[i];
    if (row.top_p < 1 && before >= row.top_p * sum && i != order[0]) p[i] = 0;
    before += x;
  }
  sum = 0;
  for (double x : p) sum += x;
  for (double& x : p) x /= sum;
  return p;
}

TEST_P(SamplingTest, TopKTopPAndMinPCutAsDefined) {
  constexpr int kDraws = 1500;
  std::vector<std::vector<float>> cases = {RandomFloats(300, 4, 2), RandomFloats(1, 4),
                                           RandomFloats(33, 5, 0.01f), std::vector<float>(41, 1.5f),
                                           RandomFloats(2000, 6, 20)};
  for (size_t i = 0; i < cases[0].size(); i += 3) cases[0][i] = std::floor(cases[0][i]);  // Ties.
  for (const std::vector<float>& logits : cases) {
    for (SampleRow row : {SampleRow{1, 1, 1, 0, 1, 0},
                          {1, 1, 10, 0, 2, 0},
                          {0.7f, 1, 100000, 0, 3, 0},
                          {1, 0.5f, 0, 0, 4, 0},
                          {1, 0.9f, 0, 0, 5, 0},
                          {1, 0.0f, 0, 0, 6, 0},
                          {1, 1e-9f, 0, 0, 7, 0},
                          {2, 1, 0, 0.2f, 8, 0},
                          {1, 1, 0, 1.0f, 9, 0},
                          {1.3f, 0.8f, 20, 0.05f, 10, 0},
                          {1, 0.999f, 5, 0, 11, 0},
                          {1, 1, -1, 0, 12, 0}}) {
      SCOPED_TRACE(testing::Message()
                   << logits.size() << " logits, temperature " << row.temperature << ", top_p " << row.top_p
                   << ", top_k " << row.top_k << ", min_p " << row.min_p);
      ExpectDistribution(Draw(GetParam(), logits, row, kDraws), Cut(logits, row), kDraws);
    }
  }
}

TEST_P(SamplingTest, DependsOnSeedAndPositionNotOnTheBatch) {
  constexpr int64_t kVocab = 997;
  const std::vector<float> logits = RandomFloats(kVocab, 8);
  const auto sample = [&](int rows, int at, int threads, SampleRow row) {
    Bench bench(GetParam(), threads, Limits(rows, kVocab));
    Matrix x(DataType::kF32, rows, kVocab);
    x.Randomize(9);
    std::copy(logits.begin(), logits.end(), x.row(at));
    std::vector<SampleRow> all(rows, Row(1.5f, 5, 99));
    all[at] = row;
    std::vector<int32_t> tokens(rows);
    Sample(*bench.device, x.view(), all.data(), tokens.data());
    return tokens[at];
  };
  std::set<int32_t> by_seed, by_position;
  for (int i = 0; i < 20; ++i) {
    SampleRow row = Row(1, i, 1000);
    row.top_p = i % 3 == 0 ? 0.9f : 1;
    const int32_t token = sample(1, 0, 1, row);
    EXPECT_EQ(sample(13, i % 13, 1 + i % 4, row), token);
    by_position.insert(token);
    by_seed.insert(sample(1, 0, 1, Row(1, 0, static_cast<uint64_t>(i) << 32)));
  }
  EXPECT_GT(by_seed.size(), 10u);
  EXPECT_GT(by_position.size(), 10u);
}

}  // namespace
}  // namespace somnus
