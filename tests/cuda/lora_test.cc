// Adapters against the CPU's, in f32 on its side.

#include "tests/cuda/rows_test_util.h"

namespace somnus {
namespace {

using namespace cuda_test;
using kernel_test::Matrix;

class LoraTest : public testing::TestWithParam<DataType> {};
INSTANTIATE_TEST_SUITE_P(Types, LoraTest, testing::ValuesIn(kActTypes), TypeName);

void CompareLora(DataType type, DataType sum, int64_t k, int64_t n, int64_t max_rank, Layout layout) {
  const std::unique_ptr<Device> device = MakeCudaDevice(), cpu = Oracle();
  SOMNUS_SKIP_WITHOUT_GPU(device);
  const std::vector<int32_t> ranks = {static_cast<int32_t>(max_rank), 0,
                                      static_cast<int32_t>((max_rank + 1) / 2)};
  const std::vector<int32_t> slots = {2, -1, 0, 1, 0};
  const int64_t rows = static_cast<int64_t>(slots.size()), slot_rows = 3 * max_rank;
  DeviceArray<int32_t> device_ranks(ranks), device_slots(slots);
  DeviceMatrix x(type, rows, k, layout), a(type, slot_rows, k), b(type, slot_rows, n),
      y(sum, rows, n, layout);
  DeviceMatrix hidden(DataType::kF32, rows, max_rank);
  Matrix host_x(DataType::kF32, rows, k), host_a(DataType::kF32, slot_rows, k),
      host_b(DataType::kF32, slot_rows, n), want(DataType::kF32, rows, n),
      host_hidden(DataType::kF32, rows, max_rank);
  x.Randomize(1, 1, &host_x);
  a.Randomize(2, 1, &host_a);
  b.Randomize(3, 1, &host_b);
  y.Randomize(4, 1, &want);
  std::vector<std::string> before;
  for (int64_t t = 0; t < rows; ++t) before.push_back(y.Bytes(t));
  const LoraWeights adapters = {a.view().data, b.view().data, device_ranks.data(), type, max_rank, n, k};
  LoraAdd(*device, x.view(), adapters, device_slots.data(), hidden.view(), y.view());
  ASSERT_TRUE(device->Synchronize().ok());
  const LoraWeights host = {
      host_a.view().data, host_b.view().data, ranks.data(), DataType::kF32, max_rank, n, k};
  LoraAdd(*cpu, host_x.view(), host, slots.data(), host_hidden.view(), want.view());
  for (int64_t t = 0; t < rows; ++t) {
    if (slots[t] < 0 || ranks[slots[t]] == 0) {
      ASSERT_EQ(y.Bytes(t), before[t]) << "no adapter, row " << t;
      continue;
    }
    for (int64_t i = 0; i < n; ++i) {
      ASSERT_NEAR(y.Get(t, i), want.Get(t, i), Allowed(sum, want.Get(t, i), 1e-5 * std::sqrt(k * max_rank)))
          << "k " << k << ", n " << n << ", row " << t;
    }
  }
}

TEST_P(LoraTest, SmallRows) {
  for (const DataType sum : SumTypes(GetParam())) CompareLora(GetParam(), sum, 40, 70, 2, {});
}

TEST_P(LoraTest, EqualsTheCpu) {
  for (const DataType sum : SumTypes(GetParam())) {
    for (const Layout layout : kLayouts) {
      CompareLora(GetParam(), sum, 1, 1, 1, layout);
      CompareLora(GetParam(), sum, 100, 300, 7, layout);
      CompareLora(GetParam(), sum, 576, 64, 64, layout);
    }
  }
}

}  // namespace
}  // namespace somnus
