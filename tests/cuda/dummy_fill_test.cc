// FillRandom against the CPU's, bit by bit.

#include "tests/cuda/rows_test_util.h"

namespace somnus {
namespace {

using namespace cuda_test;

void ExpectEqualsTheCpu(DataType type, int64_t count) {
  const std::unique_ptr<Device> device = MakeCudaDevice(static_cast<uint64_t>(count + 1));
  SOMNUS_SKIP_WITHOUT_GPU(device);
  DeviceBuffer got(count * SizeOf(type));
  std::string want(static_cast<size_t>(count * SizeOf(type)), '\0');
  const uint64_t seed = 0x123456789abcdefull + static_cast<uint64_t>(count);
  FillRandom(*device, got.device<void>(), type, count, seed, 0.02f);
  FillRandom(*Oracle(), want.data(), type, count, seed, 0.02f);
  ASSERT_TRUE(device->Synchronize().ok());
  EXPECT_TRUE(got.Bytes() == want) << count << " of " << NameOf(type);
}

TEST(DummyFillTest, SmallTensors) {
  for (const DataType type : kActTypes) ExpectEqualsTheCpu(type, 9);
}

TEST(DummyFillTest, EqualsTheCpu) {
  for (const DataType type : kActTypes) {
    for (const int64_t count : {0, 1, 7, 8, 9, 2048, 2051, 9000}) ExpectEqualsTheCpu(type, count);
  }
}

TEST(DummyFillTest, OtherTypesAreErrors) {
  const std::unique_ptr<Device> device = MakeCudaDevice();
  SOMNUS_SKIP_WITHOUT_GPU(device);
  DeviceBuffer data(64);
  FillRandom(*device, data.device<void>(), DataType::kI32, 16, 1, 1);
  EXPECT_EQ(device->Synchronize().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace somnus
