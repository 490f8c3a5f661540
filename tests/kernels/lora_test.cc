// LoraAdd against a formula in double; rows without an adapter, and rows independent of the batch.

#include "tests/kernels/kernel_test_util.h"

namespace somnus {
namespace {

using namespace kernel_test;

class LoraTest : public testing::TestWithParam<CpuIsa> {};
INSTANTIATE_TEST_SUITE_P(Isas, LoraTest, testing::ValuesIn(IsasWithOwnKernels()), IsaName);

constexpr DataType kTypes[] = {DataType::kF32, DataType::kBF16, DataType::kF16};
constexpr int64_t kMaxRank = 5;
const std::vector<int32_t> kRanks = {5, 0, 3};
const std::vector<int32_t> kSlots = {2, -1, 0, 1, 0, 2, -1};
constexpr int64_t kRows = 7;

struct Case {
  Case(DataType type, int64_t k_in, int64_t n_in)
      : k(k_in),
        n(n_in),
        x(type, kRows, k, 3),
        a(type, 3 * kMaxRank, k),
        b(type, 3 * kMaxRank, n),
        y(DataType::kF32, kRows, n, 5),
        hidden(DataType::kF32, kRows, kMaxRank) {
    x.Randomize(1);
    a.Randomize(2);
    b.Randomize(3);
    y.Randomize(4);
    adapters = {a.view().data, b.view().data, kRanks.data(), type, kMaxRank, n, k};
  }
  void Run(Device& device, int64_t first, int64_t rows) {
    LoraAdd(device, x.view(first, rows), adapters, kSlots.data() + first, hidden.view(first, rows),
            y.view(first, rows));
  }

  const int64_t k, n;
  Matrix x, a, b, y, hidden;
  LoraWeights adapters;
};

TEST_P(LoraTest, EqualsTheFormula) {
  for (const DataType type : kTypes) {
    for (const auto& [k, n] : {std::pair<int64_t, int64_t>{1, 1}, {17, 100}, {64, 31}, {200, 1100}}) {
      for (const int threads : {1, 3}) {
        const std::unique_ptr<Device> device = MakeDevice(GetParam(), threads);
        Case run(type, k, n), before(type, k, n);
        run.Run(*device, 0, kRows);
        for (int64_t t = 0; t < kRows; ++t) {
          const int32_t slot = kSlots[t];
          std::vector<double> hidden;  // x[t] * A^T
          for (int64_t r = 0; slot >= 0 && r < kRanks[slot]; ++r) {
            double& h = hidden.emplace_back(0);
            for (int64_t i = 0; i < k; ++i) h += double{run.x.Get(t, i)} * run.a.Get(slot * kMaxRank + r, i);
          }
          for (int64_t j = 0; j < n; ++j) {
            if (hidden.empty()) {
              ASSERT_EQ(run.y.Get(t, j), before.y.Get(t, j)) << "no adapter, row " << t;
              continue;
            }
            double want = before.y.Get(t, j), magnitude = std::fabs(want);
            for (size_t r = 0; r < hidden.size(); ++r) {
              const double part = hidden[r] * run.b.Get(slot * kMaxRank + static_cast<int64_t>(r), j);
              want += part;
              magnitude += std::fabs(part);
            }
            ASSERT_NEAR(run.y.Get(t, j), want, 2e-5 * (1 + magnitude)) << "row " << t << ", column " << j;
          }
        }
      }
    }
  }
}

TEST_P(LoraTest, RowsHaveTheSameBitsInAnyBatch) {
  const std::unique_ptr<Device> device = MakeDevice(GetParam(), 2);
  for (const DataType type : kTypes) {
    Case whole(type, 100, 600), parts(type, 100, 600);
    whole.Run(*device, 0, kRows);
    for (int64_t t = 0; t < kRows; ++t) parts.Run(*device, t, 1);
    for (int64_t t = 0; t < kRows; ++t) ASSERT_EQ(whole.y.Bytes(t), parts.y.Bytes(t)) << "row " << t;
  }
}

}  // namespace
}  // namespace somnus
