// Batch-invariant products: exact sums at every edge of a tile, and a row's bits in any number of rows, which
// other kernels take.

#include <memory>

#include "kernels/cuda/gemv_plan.h"
#include "tests/cuda/linear_test_util.h"

namespace somnus::cuda_test {
namespace {

class LinearTilesTest : public testing::TestWithParam<DataType> {
 protected:
  void SetUp() override { SOMNUS_SKIP_WITHOUT_GPU(MakeCudaDevice()); }
};
INSTANTIATE_TEST_SUITE_P(Types, LinearTilesTest, testing::ValuesIn(kActTypes), TypeName);

struct Product {
  int64_t rows, n, k;
  int num_sms = 132;  // fewer: larger tiles
};

std::unique_ptr<Device> MakeInvariantDevice(const Product& product, std::unique_ptr<DeviceBuffer>& scratch) {
  std::unique_ptr<Device> device = MakeCudaDevice(1, product.num_sms);
  device->SetBatchInvariant(true);
  const int64_t bytes = OpsWorkspaceBytes(*device, LinearLimits(product.rows, product.n, product.k));
  scratch = std::make_unique<DeviceBuffer>(bytes);
  device->SetWorkspace(scratch->device<char>(), bytes);
  return device;
}

void ExpectIntegerProduct(DataType act, DataType out, const Product& p) {
  SCOPED_TRACE(testing::Message() << "rows " << p.rows << ", n " << p.n << ", k " << p.k);
  std::unique_ptr<DeviceBuffer> scratch;
  const std::unique_ptr<Device> device = MakeInvariantDevice(p, scratch);
  // Strides that keep vectors aligned, and others for y, which needs no alignment.
  IntegerProduct product(*device, {act, out, p.rows, p.n, p.k, p.rows % 2 == 0, {8, 16}, {3, 1}});
  product.Run();
  ASSERT_TRUE(device->Synchronize().ok());
  product.Check();
}

TEST_P(LinearTilesTest, SmallProduct) { ExpectIntegerProduct(GetParam(), GetParam(), {17, 9, 64}); }

// A section of k is 8 lines of 64 or fewer: sums of one line, of less, of sections that are cut or empty.
TEST_P(LinearTilesTest, EqualsTheExactSum) {
  const int64_t width = GetParam() == DataType::kF32 ? 4 : 8;
  const Product products[] = {
      {17, 1, width},        {17, 33, 64},           {64, 64, 64 + width}, {65, 70, 576},
      {100, 40, 8 * 64 * 2}, {63, 31, 1536 + width}, {130, 65, 128, 2},    {129, 130, 640 + width, 1},
      {300, 257, 72, 1},
  };
  for (const Product& p : products) {
    for (const DataType out : SumTypes(GetParam())) {
      ExpectIntegerProduct(GetParam(), out, p);
      if (HasFatalFailure()) return;
    }
  }
}

// Odd k, which no vector fits: one kernel for all.
TEST_P(LinearTilesTest, RowsDoNotDependOnTheBatch) {
  for (const int64_t k : {72, 1096, 67}) {
    for (const int num_sms : {132, 1}) {
      const Product shape{140, 70, k, num_sms};
      std::unique_ptr<DeviceBuffer> scratch;
      const std::unique_ptr<Device> device = MakeInvariantDevice(shape, scratch);
      DeviceWeight w(*device, GetParam(), shape.n, k, kernel_test::RandomFloats(shape.n * k, 1));
      DeviceArray<float> bias(kernel_test::RandomFloats(shape.n, 2));
      DeviceMatrix x(GetParam(), shape.rows, k, {8 - k % 8, 0}), alone(GetParam(), shape.rows, shape.n);
      x.Randomize(3);
      for (int64_t r = 0; r < shape.rows; ++r)
        Linear(*device, x.view(r, 1), w.weight, bias.data(), alone.view(r, 1));
      ASSERT_TRUE(device->Synchronize().ok());
      for (const int64_t rows : {2, 9, 17, 65, 140}) {
        DeviceMatrix y(GetParam(), rows, shape.n);
        const int64_t begin = shape.rows - rows;
        Linear(*device, x.view(begin, rows), w.weight, bias.data(), y.view());
        ASSERT_TRUE(device->Synchronize().ok());
        for (int64_t r = 0; r < rows; ++r)
          ASSERT_EQ(y.Bytes(r), alone.Bytes(begin + r)) << rows << " rows, row " << r << ", k " << k;
      }
    }
  }
}

// Many tiles, so that groups of rows of tiles are cut at both ends.
TEST_P(LinearTilesTest, EveryTileIsMadeOnce) {
  const Product p{64 * 18 + 5, 32 * 3 + 1, 8, 1000};
  std::unique_ptr<DeviceBuffer> scratch;
  const std::unique_ptr<Device> device = MakeInvariantDevice(p, scratch);
  IntegerProduct product(*device, {GetParam(), GetParam(), p.rows, p.n, p.k, true, {}, {}});
  product.Run();
  ASSERT_TRUE(device->Synchronize().ok());
  product.Check();
}

TEST_P(LinearTilesTest, NothingIsMeasured) {
  const Product p{40, 40, 64};
  std::unique_ptr<DeviceBuffer> scratch;
  const std::unique_ptr<Device> device = MakeInvariantDevice(p, scratch);
  IntegerProduct product(*device, {GetParam(), GetParam(), p.rows, p.n, p.k, false, {}, {}});
  EXPECT_FALSE(product.Tune()) << "the library makes none of them";
}

TEST_P(LinearTilesTest, NanStaysInItsRow) {
  const Product p{80, 40, 72};
  std::unique_ptr<DeviceBuffer> scratch;
  const std::unique_ptr<Device> device = MakeInvariantDevice(p, scratch);
  DeviceWeight w(*device, GetParam(), p.n, p.k, kernel_test::RandomFloats(p.n * p.k, 1));
  DeviceMatrix x(GetParam(), p.rows, p.k), y(GetParam(), p.rows, p.n);
  x.Randomize(2);
  x.Set(71, 71, NAN);
  Linear(*device, x.view(), w.weight, nullptr, y.view());
  ASSERT_TRUE(device->Synchronize().ok());
  for (int64_t r = 0; r < p.rows; ++r) {
    for (int64_t n = 0; n < p.n; ++n) ASSERT_EQ(std::isnan(y.Get(r, n)), r == 71) << r << ", " << n;
  }
}

}  // namespace
}  // namespace somnus::cuda_test
