// Activations against the CPU's activations in f32. The approximate exponential and reciprocal are off by
// some 2^-22 each, more where an exponent is large: 5e-6 of the value.

#include "tests/cuda/rows_test_util.h"

namespace somnus {
namespace {

using namespace cuda_test;
using kernel_test::Matrix;

constexpr int64_t kWidths[] = {1, 3, 8, 17, 64, 100, 576, 1536, 4104};
constexpr float kEnds[] = {-1000, -104, -90, -88, -87, -20, 0, 20, 87, 90, 1000};
constexpr double kError = 5e-6;

class ActivationsTest : public testing::TestWithParam<DataType> {};
INSTANTIATE_TEST_SUITE_P(Types, ActivationsTest, testing::ValuesIn(kActTypes), TypeName);

using GateOp = void (*)(Device&, const TensorView&, const TensorView&);

void CompareGate(GateOp op, DataType out_type, DataType sum, int64_t rows, int64_t n, Layout layout) {
  const std::unique_ptr<Device> device = MakeCudaDevice(), cpu = Oracle();
  SOMNUS_SKIP_WITHOUT_GPU(device);
  DeviceMatrix x(sum, rows, 2 * n, layout), out(out_type, rows, n, layout);
  Matrix host(DataType::kF32, rows, 2 * n), want(DataType::kF32, rows, n);
  x.Randomize(1, 4);
  for (int64_t r = 0; r < rows && r < 11; ++r) x.Set(r, n / 2, kEnds[r]);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = 0; i < 2 * n; ++i) host.Set(r, i, x.Get(r, i));
  }
  op(*device, x.view(), out.view());
  ASSERT_TRUE(device->Synchronize().ok());
  op(*cpu, host.view(), want.view());
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = 0; i < n; ++i) {
      ASSERT_NEAR(out.Get(r, i), want.Get(r, i), Allowed(out_type, want.Get(r, i), kError))
          << "width " << n << ", row " << r << ", gate " << host.Get(r, i);
    }
  }
}

void CompareActivate(DataType out_type, DataType sum, UnaryActivation f, int64_t n, Layout layout) {
  const std::unique_ptr<Device> device = MakeCudaDevice(), cpu = Oracle();
  SOMNUS_SKIP_WITHOUT_GPU(device);
  DeviceMatrix x(sum, 3, n, layout), out(out_type, 3, n, layout);
  Matrix host(DataType::kF32, 3, n), want(DataType::kF32, 3, n);
  x.Randomize(1, 4, &host);
  Activate(*device, x.view(), f, out.view());
  ASSERT_TRUE(device->Synchronize().ok());
  Activate(*cpu, host.view(), f, want.view());
  const bool exact = f == UnaryActivation::kIdentity || f == UnaryActivation::kRelu;
  for (int64_t r = 0; r < 3; ++r) {
    for (int64_t i = 0; i < n; ++i) {
      if (exact) {
        ASSERT_EQ(out.Get(r, i), kernel_test::Round(out_type, want.Get(r, i))) << "width " << n;
      } else {
        ASSERT_NEAR(out.Get(r, i), want.Get(r, i), Allowed(out_type, want.Get(r, i), kError))
            << "width " << n << ", x " << host.Get(r, i);
      }
    }
  }
}

void CompareScaleAndCap(DataType type, float softcap, int64_t n, Layout layout) {
  const std::unique_ptr<Device> device = MakeCudaDevice(), cpu = Oracle();
  SOMNUS_SKIP_WITHOUT_GPU(device);
  DeviceMatrix x(type, 5, n, layout);
  Matrix host(DataType::kF32, 5, n);
  x.Randomize(1, 4, &host);
  ScaleAndCap(*device, x.view(), 0.7f, softcap);
  ASSERT_TRUE(device->Synchronize().ok());
  ScaleAndCap(*cpu, host.view(), 0.7f, softcap);
  for (int64_t r = 0; r < 5; ++r) {
    for (int64_t i = 0; i < n; ++i) {
      ASSERT_NEAR(x.Get(r, i), host.Get(r, i), Allowed(type, host.Get(r, i), kError))
          << "width " << n << ", cap " << softcap;
    }
  }
}

TEST_P(ActivationsTest, ScaleAndCapEqualsTheCpu) {
  for (const DataType type : SumTypes(GetParam())) {
    for (const float softcap : {0.0f, 1.5f, 30.0f}) {
      for (const int64_t n : {1, 17, 64, 576}) {
        for (const Layout layout : kLayouts) CompareScaleAndCap(type, softcap, n, layout);
      }
    }
  }
}

TEST_P(ActivationsTest, GeluTanhAndMulEqualsTheCpu) {
  for (const DataType sum : SumTypes(GetParam())) {
    for (const int64_t n : {1, 17, 64, 576}) {
      for (const Layout layout : kLayouts) CompareGate(GeluTanhAndMul, GetParam(), sum, 12, n, layout);
    }
  }
}

void Clamped(Device& device, const TensorView& gate_up, const TensorView& out) {
  ClampedSwigluAndMul(device, gate_up, {.alpha = 1.3f, .limit = 2}, out);
}

TEST_P(ActivationsTest, ClampedSwigluEqualsTheCpuSmall) {
  for (const DataType sum : SumTypes(GetParam())) {
    for (const int64_t n : {17, 64}) CompareGate(Clamped, GetParam(), sum, 12, n, {});
  }
}

TEST_P(ActivationsTest, SmallRows) {
  CompareGate(SiluAndMul, GetParam(), GetParam(), 1, 64, {});
  CompareActivate(GetParam(), GetParam(), UnaryActivation::kGelu, 64, {});
  CompareScaleAndCap(SumTypes(GetParam()).front(), 30.0f, 64, {});
}

TEST_P(ActivationsTest, SiluAndMulEqualsTheCpu) {
  for (const DataType sum : SumTypes(GetParam())) {
    for (const int64_t n : kWidths) {
      for (const Layout layout : kLayouts) {
        for (const int64_t rows : {1, 12}) CompareGate(SiluAndMul, GetParam(), sum, rows, n, layout);
      }
    }
  }
}

TEST_P(ActivationsTest, ActivateEqualsTheCpu) {
  for (const UnaryActivation f : {UnaryActivation::kIdentity, UnaryActivation::kRelu, UnaryActivation::kGelu,
                                  UnaryActivation::kGeluTanh}) {
    for (const DataType sum : SumTypes(GetParam())) {
      for (const int64_t n : kWidths) {
        for (const Layout layout : kLayouts) CompareActivate(GetParam(), sum, f, n, layout);
      }
    }
  }
}

TEST_P(ActivationsTest, NanComesOutAsNanAndInfinityOverflows) {
  const std::unique_ptr<Device> device = MakeCudaDevice();
  SOMNUS_SKIP_WITHOUT_GPU(device);
  for (const DataType sum : SumTypes(GetParam())) {
    DeviceMatrix x(sum, 1, 48), silu(GetParam(), 1, 24), same(GetParam(), 1, 48);
    x.Randomize(1);
    x.Set(0, 3, NAN);
    SiluAndMul(*device, x.view(), silu.view());
    ASSERT_TRUE(device->Synchronize().ok());
    for (int64_t i = 0; i < 24; ++i) EXPECT_EQ(std::isnan(silu.Get(0, i)), i == 3);
    x.Set(0, 7, INFINITY);
    for (const UnaryActivation f : {UnaryActivation::kIdentity, UnaryActivation::kRelu,
                                    UnaryActivation::kGelu, UnaryActivation::kGeluTanh}) {
      Activate(*device, x.view(), f, same.view());
      ASSERT_TRUE(device->Synchronize().ok());
      for (int64_t i = 0; i < 48; ++i) EXPECT_EQ(std::isnan(same.Get(0, i)), i == 3);
      EXPECT_EQ(same.Get(0, 7), INFINITY);
    }
  }
}

TEST_P(ActivationsTest, NoRowsAreNoWork) {
  const std::unique_ptr<Device> device = MakeCudaDevice();
  SOMNUS_SKIP_WITHOUT_GPU(device);
  const TensorView x{nullptr, GetParam(), 0, 128, 128}, out{nullptr, GetParam(), 0, 64, 64};
  SiluAndMul(*device, x, out);
  Activate(*device, out, UnaryActivation::kRelu, out);
  EXPECT_TRUE(device->Synchronize().ok());
}

}  // namespace
}  // namespace somnus
