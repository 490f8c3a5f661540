// Linear on every route: the library (in the emulator its replacement), the plain kernel for odd alignments;
// in graphs; and the weights that it reads, packed by many threads.

#include <thread>

#include "kernels/cuda/weight_uploader.h"
#include "kernels/float_convert.h"
#include "tests/cuda/linear_test_util.h"

namespace somnus::cuda_test {
namespace {

class LinearTest : public testing::TestWithParam<DataType> {
 protected:
  void SetUp() override { SOMNUS_SKIP_WITHOUT_GPU(MakeCudaDevice()); }
};
INSTANTIATE_TEST_SUITE_P(Types, LinearTest, testing::ValuesIn(kActTypes), TypeName);

TEST_P(LinearTest, SmallProducts) {
  ExpectIntegerProduct({GetParam(), GetParam(), 17, 9, 8, true, {8, 8}, {8, 8}});  // the library's
  ExpectIntegerProduct({GetParam(), GetParam(), 2, 9, 33, true, {}, {}});          // the plain kernel's
}

TEST_P(LinearTest, ManyRowsGoToTheLibrary) {
  for (const int64_t rows : {17, 40, 130}) {
    for (const int64_t n : {1, 64, 129}) {
      for (const int64_t k : {8, 72, 576}) {
        for (const DataType out : SumTypes(GetParam())) {
          ExpectIntegerProduct({GetParam(), out, rows, n, k, n != 64, {8, 8}, {8, 8}});
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

// Odd k, odd strides and odd addresses, few rows and many.
TEST_P(LinearTest, EveryAlignment) {
  for (const int64_t rows : {1, 2, 8, 33, 70}) {
    for (const int64_t k : {1, 2, 8, 33, 66}) {
      for (const Layout& layout : kLayouts) {
        ExpectIntegerProduct({GetParam(), GetParam(), rows, 37, k, k != 8, layout, {1, 1}});
        ExpectIntegerProduct({GetParam(), DataType::kF32, rows, 5, k, k == 8, layout, {}});
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_P(LinearTest, NothingToDoTouchesNothing) {
  CudaBench bench(LinearLimits(8, 16, 16));
  DeviceWeight w(*bench.device, GetParam(), 16, 16, RandomIntegers(256, 1, 3));
  DeviceMatrix x(GetParam(), 1, 16), y(GetParam(), 1, 16);
  x.Randomize(1);
  const std::string before = y.Bytes(0);
  Linear(*bench.device, x.view(0, 0), w.weight, nullptr, y.view(0, 0));
  ASSERT_TRUE(bench.device->Synchronize().ok());
  EXPECT_EQ(y.Bytes(0), before);
}

TEST_P(LinearTest, WithoutTermsItIsTheBias) {
  ExpectIntegerProduct({GetParam(), GetParam(), 3, 40, 0, true, {}, {}});
  ExpectIntegerProduct({GetParam(), DataType::kF32, 40, 3, 0, false, {}, {}});
}

// By measurement or not, the product is the same; the kernels of our own are not measured.
TEST_P(LinearTest, TunedOnce) {
  CudaBench bench(LinearLimits(40, 64, 72));
  for (const bool bias : {true, false}) {
    IntegerProduct product(*bench.device, {GetParam(), GetParam(), 40, 64, 72, bias, {8, 8}, {8, 8}});
    ASSERT_TRUE(bench.device->Synchronize().ok());
    EXPECT_TRUE(product.Tune());
    EXPECT_FALSE(product.Tune());
    product.Run();
    ASSERT_TRUE(bench.device->Synchronize().ok());
    product.Check();
  }
  IntegerProduct few(*bench.device, {GetParam(), GetParam(), 4, 64, 72, false, {8, 8}, {8, 8}});
  EXPECT_FALSE(few.Tune());
  ASSERT_TRUE(bench.device->Synchronize().ok());
}

TEST_P(LinearTest, NotTunedWhileAGraphIsCaptured) {
  CudaBench bench(LinearLimits(40, 64, 72));
  IntegerProduct product(*bench.device, {GetParam(), GetParam(), 40, 64, 72, false, {8, 8}, {8, 8}});
  ASSERT_TRUE(bench.device->Synchronize().ok());
  ASSERT_TRUE(bench.device->BeginCapture().ok());
  EXPECT_FALSE(product.Tune());
  EXPECT_TRUE(absl::IsFailedPrecondition(bench.device->EndCapture().status()));
  EXPECT_TRUE(product.Tune()) << "afterwards it can be";
  ASSERT_TRUE(bench.device->Synchronize().ok());
}

// A graph runs it again on what x holds by then.
TEST_P(LinearTest, InAGraph) {
  const struct {
    int64_t rows, k;
    Layout x_layout;
  } ways[] = {{4, 64, {}}, {20, 64, {}}, {20, 33, {1, 1}}};  // GEMV, the library, the plain kernel
  for (const auto& way : ways) {
    CudaBench bench(LinearLimits(way.rows, 30, way.k));
    IntegerProduct product(*bench.device,
                           {GetParam(), GetParam(), way.rows, 30, way.k, true, way.x_layout, {}});
    ASSERT_TRUE(bench.device->Synchronize().ok());
    product.Run();  // The library makes its plan outside.
    ASSERT_TRUE(bench.device->Synchronize().ok());
    ASSERT_TRUE(bench.device->BeginCapture().ok());
    product.Run();
    auto graph = bench.device->EndCapture();
    ASSERT_TRUE(graph.ok()) << graph.status();
    for (const uint32_t seed : {10, 11}) {
      product.ChangeX(seed);
      (*graph)->Launch();
      ASSERT_TRUE(bench.device->Synchronize().ok());
      product.Check();
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(LinearTest, PackingRoundsToNearestEven) {
  const std::vector<float> values = {1.0f,      -2.5f,    1.00390625f, 1.01171875f,  3.0e-8f,  6.0e-5f,
                                     65504.0f,  65519.9f, 65520.0f,    1.0e-40f,     -0.0f,    3.38e38f,
                                     0.333333f, 3.4e38f,  1.00048828f, -1.00146484f, INFINITY, -INFINITY};
  const int64_t k = static_cast<int64_t>(values.size());
  std::vector<float> rows;
  for (int n = 0; n < 5; ++n) rows.insert(rows.end(), values.begin(), values.end());
  auto device = MakeCudaDevice();
  DeviceWeight w(*device, GetParam(), 5, k, rows);
  ASSERT_TRUE(device->Synchronize().ok());
  const int64_t size = SizeOf(GetParam());
  const std::string packed = w.buffer.Bytes();
  for (int64_t i = 0; i < 5 * k; ++i) {
    uint32_t bits = 0;
    std::memcpy(&bits, packed.data() + i * size, static_cast<size_t>(size));
    const float x = values[i % k];
    uint32_t want = GetParam() == DataType::kBF16 ? kernel_test::Bf16Of(x) : kernel_test::F16Of(x);
    if (GetParam() == DataType::kF32) std::memcpy(&want, &x, 4);
    EXPECT_EQ(bits, want) << x;
  }
}

// More than all staging memory together, from more threads than it has pieces.
TEST_P(LinearTest, PackingByManyThreads) {
  using Uploader = SOMNUS_CUDA_NAMESPACE::WeightUploader;
  constexpr int kThreads = Uploader::kMaxSlots + 3;
  constexpr int64_t kK = 1024, kRowsPerThread = 3 * 64;
  constexpr int64_t kN = kThreads * kRowsPerThread;
  auto device = MakeCudaDevice();
  DeviceBuffer buffer(kN * kK * SizeOf(GetParam()));
  const LinearWeight weight{buffer.device<void>(), GetParam(), kN, kK};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::vector<float> rows(64 * kK);
      for (int64_t begin = t * kRowsPerThread; begin < (t + 1) * kRowsPerThread; begin += 64) {
        for (int64_t i = 0; i < 64 * kK; ++i) rows[i] = static_cast<float>((begin * kK + i) % 251);
        PackWeightRows(*device, weight, begin, 64, rows.data());
        std::fill(rows.begin(), rows.end(), -1.0f);  // Free to be used again.
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  ASSERT_TRUE(device->Synchronize().ok());
  kernel_test::Matrix expected(GetParam(), 1, 251);
  for (int i = 0; i < 251; ++i) expected.Set(0, i, static_cast<float>(i));
  const char* const want = static_cast<const char*>(expected.view().data);
  const int64_t size = SizeOf(GetParam());
  const std::string packed = buffer.Bytes();
  for (int64_t i = 0; i < kN * kK; ++i) {
    ASSERT_EQ(std::memcmp(packed.data() + i * size, want + i % 251 * size, static_cast<size_t>(size)), 0)
        << i;
  }
}

TEST_P(LinearTest, AWeightLargerThanAPieceOfStaging) {
  using Uploader = SOMNUS_CUDA_NAMESPACE::WeightUploader;
  const int64_t k = 4104, n = Uploader::kSlotBytes * 5 / 2 / SizeOf(GetParam()) / k;
  auto device = MakeCudaDevice();
  DeviceBuffer buffer(n * k * SizeOf(GetParam()));
  std::vector<float> rows(n * k);
  for (int64_t i = 0; i < n * k; ++i) rows[i] = static_cast<float>(i % 253);
  PackWeightRows(*device, {buffer.device<void>(), GetParam(), n, k}, 0, n, rows.data());
  ASSERT_TRUE(device->Synchronize().ok());
  std::string expected(static_cast<size_t>(buffer.bytes()), '\0');
  ConvertFromFloat(rows.data(), n * k, GetParam(), expected.data());
  EXPECT_TRUE(buffer.Bytes() == expected);
  // Bytes are copied as they are, into memory that holds others.
  SOMNUS_CUDA_NAMESPACE::WeightUploader uploader(0);
  buffer.Write(0, std::string(expected.size(), '\0').data(), buffer.bytes());
  uploader.UploadBytes(buffer.device<char>(), expected.data(), buffer.bytes());
  ASSERT_TRUE(uploader.Wait().ok());
  EXPECT_TRUE(buffer.Bytes() == expected);
  EXPECT_TRUE(uploader.Wait().ok()) << "nothing to wait for";
}

TEST_P(LinearTest, ConversionAtEveryLength) {
  const std::vector<float> values = kernel_test::RandomFloats(100, 5, 100);
  for (int64_t n = 0; n <= 100; ++n) {
    const int64_t size = SizeOf(GetParam());
    std::vector<char> out(101 * size, 0x11);
    ConvertFromFloat(values.data(), n, GetParam(), out.data());
    kernel_test::Matrix expected(GetParam(), 1, 101);
    for (int64_t i = 0; i < n; ++i) expected.Set(0, i, values[i]);
    ASSERT_EQ(std::memcmp(out.data(), expected.view().data, static_cast<size_t>(n * size)), 0) << n;
    ASSERT_EQ(out[n * size], 0x11) << "written behind the end";
  }
}

}  // namespace
}  // namespace somnus::cuda_test
