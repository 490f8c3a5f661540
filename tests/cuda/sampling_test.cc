// Sample against the CPU's token by token (both draw with the same numbers), and the distribution against the
// definition, so that a mistake that both make is seen.

#include <map>

#include "tests/cuda/logits_test_util.h"

namespace somnus {
namespace {

using namespace cuda_test;

SampleRow Row(float temperature, float top_p = 1, int32_t top_k = 0, float min_p = 0) {
  return {
      .temperature = temperature, .top_p = top_p, .top_k = top_k, .min_p = min_p, .seed = 7, .position = 0};
}

std::vector<SampleRow> KindsOfRows() {
  return {Row(0),
          Row(1),
          Row(0.6f, 0.95f, 20),
          Row(1, 0.9f),
          Row(1, 1, 50),
          Row(2, 1, 0, 0.1f),
          Row(1.3f, 0.8f, 40, 0.05f),
          Row(1, 0, 0, 0),
          Row(1, 1, 1),
          Row(0.7f, 0.999f),
          Row(1, 0.5f, 3000),
          Row(NAN),
          Row(1e30f, 0.3f),
          Row(1, 1, 1 << 30),
          Row(1, 1, -1),
          Row(1, 1e-9f),
          Row(1, 1, 0, 1.0f),
          Row(1e-5f, 0.5f)};
}

std::vector<int32_t> SampleOnDevice(CudaBench* bench, const TensorView& logits,
                                    const std::vector<SampleRow>& rows) {
  DeviceArray<SampleRow> device_rows(rows);
  DeviceBuffer tokens(static_cast<int64_t>(rows.size()) * 4);
  Sample(*bench->device, logits, device_rows.data(), tokens.device<int32_t>());
  EXPECT_TRUE(bench->device->Synchronize().ok());
  return tokens.Values<int32_t>();
}

// All `kinds` of logits under every kind of row in `sampled`, one batch for each kind of logits.
void ExpectEqualsTheCpu(int64_t n, const std::vector<std::vector<float>>& kinds,
                        std::vector<SampleRow> sampled, Layout layout, uint64_t seed) {
  const int64_t rows = static_cast<int64_t>(sampled.size());
  CudaBench bench(LogitLimits(rows, n), seed);
  SOMNUS_SKIP_WITHOUT_GPU(bench.device);
  kernel_test::Bench cpu(CpuIsa::kBest, 1, LogitLimits(rows, n));
  for (size_t kind = 0; kind < kinds.size(); ++kind) {
    LogitPair x(rows, n, layout);
    for (int64_t r = 0; r < rows; ++r) {
      x.Set(r, kinds[kind]);
      sampled[r].seed = seed << 32 | (kind * 1000 + static_cast<uint64_t>(r));
      sampled[r].position = static_cast<int32_t>(kind + r * 100000);
    }
    std::vector<int32_t> want(rows);
    const std::vector<int32_t> got = SampleOnDevice(&bench, x.device.view(), sampled);
    Sample(*cpu.device, x.host.view(), sampled.data(), want.data());
    for (int64_t r = 0; r < rows; ++r) {
      EXPECT_EQ(got[r], want[r]) << "vocabulary " << n << ", logits " << kind << ", temperature "
                                 << sampled[r].temperature << ", top_p " << sampled[r].top_p << ", top_k "
                                 << sampled[r].top_k << ", min_p " << sampled[r].min_p;
    }
  }
}

TEST(SamplingTest, SmallVocabulary) {
  ExpectEqualsTheCpu(7, {kernel_test::RandomFloats(7, 1, 2)}, {Row(0), Row(1), Row(0.6f, 0.95f, 3)}, {}, 1);
}

TEST(SamplingTest, EqualsTheCpu) {
  const std::vector<SampleRow> all = KindsOfRows(), some(all.begin(), all.begin() + 5);
  int turn = 0;
  for (const int64_t n : {1, 7, 1000, 2049}) {
    ExpectEqualsTheCpu(n, KindsOfLogits(n, static_cast<uint32_t>(n)), turn % 2 == 0 ? some : all,
                       kLayouts[turn], static_cast<uint64_t>(turn + 1));
    ++turn;
  }
}

// More candidates than the list holds: flat rows and ties are cut from the whole row.
TEST(SamplingTest, EqualsTheCpuWhereTheListIsTooShort) {
  constexpr int64_t kVocab = 20001;
  const std::vector<std::vector<float>> kinds = {kernel_test::RandomFloats(kVocab, 1, 0.5f),
                                                 std::vector<float>(kVocab, -3.0f)};
  ExpectEqualsTheCpu(kVocab, kinds, {Row(1, 0.95f), Row(1, 1, 12000), Row(1, 0.5f, 15000, 1e-9f)}, {1, 0}, 3);
}

TEST(SamplingTest, EqualsTheCpuForALargeVocabulary) {
  constexpr int64_t kVocab = 151936;
  ExpectEqualsTheCpu(kVocab, {kernel_test::RandomFloats(kVocab, 2, 2.5f)},
                     {Row(0), Row(1), Row(0.6f, 0.95f, 20), Row(0.7f, 0.8f)}, {}, 5);
}

TEST(SamplingTest, RowsThatAreNotGoodHaveNoToken) {
  constexpr int64_t kVocab = 5000, kRows = 6;
  for (const SampleRow& row :
       {Row(0), Row(1), Row(3e38f), Row(0.6f, 0.95f, 20), Row(1, 0.9f), Row(1, 1, 0, 0.1f)}) {
    CudaBench bench(LogitLimits(kRows, kVocab));
    SOMNUS_SKIP_WITHOUT_GPU(bench.device);
    DeviceMatrix x(DataType::kF32, kRows, kVocab);
    x.Randomize(1);
    x.Set(0, 0, NAN);
    x.Set(1, 4999, NAN);
    x.Set(2, 2048, kInf);
    for (int64_t c = 0; c < kVocab; ++c) {
      x.Set(3, c, NAN);
      x.Set(4, c, -kInf);
      if (c != 2047) x.Set(5, c, -kInf);
    }
    const std::vector<int32_t> tokens = SampleOnDevice(&bench, x.view(), std::vector<SampleRow>(kRows, row));
    EXPECT_EQ(tokens, (std::vector<int32_t>{kLogitsNotFinite, kLogitsNotFinite, kLogitsNotFinite,
                                            kLogitsNotFinite, kNoTokenAllowed, 2047}))
        << "temperature " << row.temperature << ", top_p " << row.top_p << ", top_k " << row.top_k;
  }
}

// The part of the softmax that Sample's definition leaves: min-p, top-k with ties, top-p.
std::vector<double> Cut(const std::vector<float>& logits, const SampleRow& row) {
  const size_t n = logits.size();
  std::vector<size_t> order(n);
  for (size_t i = 0; i < n; ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return logits[a] > logits[b]; });
  std::vector<double> p(n);
  for (size_t i = 0; i < n; ++i) {
    p[i] = std::exp((logits[i] - logits[order[0]]) / row.temperature);
    if (p[i] < row.min_p) p[i] = 0;
    if (row.top_k > 0 && row.top_k < static_cast<int>(n) && logits[i] < logits[order[row.top_k - 1]])
      p[i] = 0;
  }
  double sum = 0, before = 0, kept = 0;
  for (double x : p) sum += x;
  for (size_t i : order) {
    const double x = p[i];
    if (row.top_p < 1 && before >= row.top_p * sum && i != order[0]) p[i] = 0;
    before += x;
    kept += p[i];
  }
  for (double& x : p) x /= kept;
  return p;
}

TEST(SamplingTest, FollowsTheDefinition) {
  constexpr int kRows = 50;
  std::vector<float> logits = kernel_test::RandomFloats(60, 4, 1.5f);
  for (size_t i = 0; i < logits.size(); i += 3) logits[i] = std::floor(logits[i]);
  logits[5] = -kInf;
  const int64_t n = static_cast<int64_t>(logits.size());
  CudaBench bench(LogitLimits(kRows, n));
  SOMNUS_SKIP_WITHOUT_GPU(bench.device);
  for (SampleRow row : {Row(0.7f), Row(1, 0.9f, 12, 0.05f)}) {
    const int draws = row.top_k == 0 ? 300 : 150;
    std::map<int32_t, int> counts;
    for (int done = 0; done < draws; done += kRows) {
      DeviceMatrix x(DataType::kF32, kRows, n);
      std::vector<SampleRow> rows(kRows, row);
      for (int r = 0; r < kRows; ++r) {
        x.SetRow(r, logits);
        rows[r].position = done + r;
      }
      for (int32_t token : SampleOnDevice(&bench, x.view(), rows)) ++counts[token];
    }
    double chi = 0, rest = 0, rest_p = 0;
    int bins = 0;
    const std::vector<double> p = Cut(logits, row);
    for (int64_t i = 0; i < n; ++i) {
      if (p[i] == 0) {
        EXPECT_EQ(counts[static_cast<int32_t>(i)], 0) << "token " << i << " was cut off";
      } else if (p[i] * draws < 8) {
        rest += counts[static_cast<int32_t>(i)];
        rest_p += p[i];
      } else {
        chi += std::pow(counts[static_cast<int32_t>(i)] - p[i] * draws, 2) / (p[i] * draws);
        ++bins;
      }
    }
    if (rest_p * draws >= 5) {
      chi += std::pow(rest - rest_p * draws, 2) / (rest_p * draws);
      ++bins;
    }
    ASSERT_GT(bins, 3);
    // Mean bins - 1, deviation sqrt(2 (bins - 1)): four deviations, about one in 10,000 for an honest
    // sampler.
    EXPECT_LT(chi, bins - 1 + 4 * std::sqrt(2.0 * (bins - 1)) + 4)
        << bins << " bins, temperature " << row.temperature << ", top_p " << row.top_p;
  }
}

// A part of equal tokens: exactly the tokens with the smaller ids.
TEST(SamplingTest, TiesAreCutById) {
  constexpr int64_t kVocab = 300, kRows = 40;
  CudaBench bench(LogitLimits(kRows, kVocab));
  SOMNUS_SKIP_WITHOUT_GPU(bench.device);
  DeviceMatrix x(DataType::kF32, kRows, kVocab);
  std::vector<SampleRow> rows(kRows, Row(1, 0.01f));
  for (int64_t r = 0; r < kRows; ++r) {
    x.SetRow(r, std::vector<float>(kVocab, 3.0f));
    rows[r].position = static_cast<int32_t>(r);
  }
  std::map<int32_t, int> counts;
  for (int32_t token : SampleOnDevice(&bench, x.view(), rows)) ++counts[token];
  EXPECT_EQ(counts.size(), 3u);
  EXPECT_LT(counts.rbegin()->first, 3);
}

TEST(SamplingTest, IndependentOfTheBatch) {
  constexpr int64_t kVocab = 3000;
  const std::vector<float> logits = kernel_test::RandomFloats(kVocab, 8, 2);
  for (SampleRow row : {Row(1.5f), Row(1.5f, 0.95f), Row(1.5f, 0.95f, 100)}) {
    row.seed = 0x123456789abcdef;
    std::vector<int32_t> tokens;
    for (const int64_t rows : {1, 2, 9}) {
      CudaBench bench(LogitLimits(rows, kVocab), static_cast<uint64_t>(rows));
      SOMNUS_SKIP_WITHOUT_GPU(bench.device);
      DeviceMatrix x(DataType::kF32, rows, kVocab, {rows % 2, 0});
      x.Randomize(9);
      x.SetRow(rows / 2, logits);
      std::vector<SampleRow> all(rows, Row(1, 0.5f, 10));
      all[rows / 2] = row;
      tokens.push_back(SampleOnDevice(&bench, x.view(), all)[rows / 2]);
    }
    EXPECT_EQ(tokens[1], tokens[0]);
    EXPECT_EQ(tokens[2], tokens[0]);
  }
}

}  // namespace
}  // namespace somnus
