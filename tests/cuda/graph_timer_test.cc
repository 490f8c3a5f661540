// The benchmark's clock for ops, which are launched once, as a graph, and all run.

#include "tools/bench/gpu/graph_timer.h"

#include <gtest/gtest.h>

#include "kernels/cuda/cuda_device.h"
#include "tests/cuda/rows_test_util.h"

namespace somnus::cuda_test {
namespace {

TEST(GraphTimerTest, OpsAreReplayedAndNotLaunchedOneByOne) {
  const std::unique_ptr<Device> device = MakeCudaDevice();
  SOMNUS_SKIP_WITHOUT_GPU(device);
  DeviceMatrix sum(DataType::kF32, 1, 8), one(DataType::kF32, 1, 8);
  for (int64_t c = 0; c < 8; ++c) sum.Set(0, c, 0), one.Set(0, c, 1);
  const TensorView sums = sum.view(), ones = one.view();
  int calls = 0;
  const HostCalls before = device->CallsOfThisThread();
  const absl::StatusOr<double> us = TimeOp(*device, 10, [&] {
    ++calls;
    Add(*device, sums, ones);
  });
  ASSERT_TRUE(us.ok()) << us.status();
  EXPECT_GT(*us, 0);
  EXPECT_EQ(calls, 1 + 10);
  const int64_t replays = device->CallsOfThisThread().graph_launches - before.graph_launches;
  EXPECT_GE(replays, 2);
  EXPECT_EQ(sum.Get(0, 7), static_cast<float>(1 + 10 * replays)) << "an op of the graph has not run";
}

TEST(GraphTimerTest, ErrorsOfTheOpAreReturned) {
  const std::unique_ptr<Device> device = MakeCudaDevice();
  SOMNUS_SKIP_WITHOUT_GPU(device);
  SOMNUS_CUDA_NAMESPACE::CudaDevice& cuda = SOMNUS_CUDA_NAMESPACE::AsCuda(*device);
  const auto us = TimeOp(*device, 3, [&] { cuda.Record(absl::InternalError("no such op")); });
  EXPECT_TRUE(absl::IsInternal(us.status())) << us.status();
}

}  // namespace
}  // namespace somnus::cuda_test
