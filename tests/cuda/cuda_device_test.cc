// Device of the CUDA backend: memory, events, graphs, errors. The ops have other tests.

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <numeric>
#include <thread>
#include <vector>

#include "tests/cuda/cuda_test_util.h"

namespace somnus::cuda_test {
namespace {

constexpr int64_t kRows = 3, kCols = 40;
constexpr int64_t kBytes = kRows * kCols * 4;

class CudaDeviceTest : public testing::Test {
 protected:
  void SetUp() override {
    device_ = MakeCudaDevice();
    SOMNUS_SKIP_WITHOUT_GPU(device_);
    residual_ = std::make_unique<DeviceBuffer>(kBytes);
    delta_ = std::make_unique<DeviceBuffer>(kBytes);
    std::vector<float> residual(kRows * kCols);
    std::iota(residual.begin(), residual.end(), 0.0f);
    residual_->Write(0, residual.data(), kBytes);
    delta_->Write(0, std::vector<float>(kRows * kCols, 1).data(), kBytes);
  }
  void TearDown() override {
    if (device_ == nullptr) return;
    EXPECT_EQ(device_->Synchronize(), absl::OkStatus());
  }

  static TensorView View(DeviceBuffer& buffer) {
    return {buffer.device<void>(), DataType::kF32, kRows, kCols, kCols};
  }
  // residual += 1
  void QueueAdd() { Add(*device_, View(*residual_), View(*delta_)); }
  float first() { return residual_->Values<float>()[0]; }

  std::unique_ptr<Device> device_;
  std::unique_ptr<DeviceBuffer> residual_, delta_;
};

TEST_F(CudaDeviceTest, SaysWhatItIs) {
  EXPECT_EQ(device_->kind(), DeviceKind::kCuda);
  EXPECT_TRUE(device_->asynchronous());
  EXPECT_EQ(device_->Describe().substr(0, 7), "cuda:0,");
  EXPECT_EQ(SumType(*device_, DataType::kBF16), DataType::kBF16);
  EXPECT_EQ(PackedWeightBytes(*device_, DataType::kF16, 7, 33), 7 * 33 * 2);
  EXPECT_EQ(KvBlockBytes(*device_, DataType::kBF16, 16, 3, 64), 3 * 2 * 16 * 64 * 2);
  EXPECT_EQ(KvBlockBytes(*device_, DataType::kF8E4M3, 16, 3, 64), 3 * 2 * 16 * 64);
  EXPECT_EQ(KvBlockBytes(*device_, DataType::kI8, 16, 3, 64), 3 * 2 * 16 * (64 + 4));
  EXPECT_EQ(KvBlockBytes(*device_, DataType::kI8, 5, 3, 7), 3 * 2 * (32 + 48));  // padded to 16 bytes
}

TEST_F(CudaDeviceTest, WorkspaceIsTheLargestOfTheOps) {
  OpsLimits limits{.max_tokens = 64, .max_seqs = 8};
  limits.max_k = limits.max_n = 256;
  limits.num_heads = 4;
  limits.head_dim = 64;
  limits.block_size = 16;
  limits.max_model_len = 1024;
  limits.vocab_size = 1000;
  const int64_t bytes = OpsWorkspaceBytes(*device_, limits);
  EXPECT_GT(bytes, 0);
  EXPECT_EQ(bytes % 256, 0);
  OpsLimits larger = limits;
  larger.max_seqs = 64;
  larger.vocab_size = 100000;
  EXPECT_GE(OpsWorkspaceBytes(*device_, larger), bytes);
}

TEST_F(CudaDeviceTest, CopiesAreInOrderWithOps) {
  auto pinned = device_->AllocatePinned(kBytes);
  ASSERT_TRUE(pinned.ok()) << pinned.status();
  EXPECT_EQ(reinterpret_cast<uintptr_t>(*pinned) % 64, 0u);
  float* const host = static_cast<float*>(*pinned);
  for (int i = 0; i < kRows * kCols; ++i) host[i] = static_cast<float>(100 + i);
  device_->CopyToDevice(residual_->device<void>(), host, kBytes);
  QueueAdd();
  std::vector<float> after(kRows * kCols);
  device_->CopyToHost(after.data(), residual_->device<void>(), kBytes);
  ASSERT_EQ(device_->Synchronize(), absl::OkStatus());
  for (int i = 0; i < kRows * kCols; ++i) EXPECT_EQ(after[i], 101 + i);
  device_->FreePinned(*pinned);
  device_->FreePinned(nullptr);
}

TEST_F(CudaDeviceTest, EventsAreWaitedForFromOtherThreads) {
  auto event = device_->CreateEvent();
  ASSERT_TRUE(event.ok()) << event.status();
  for (int round = 1; round <= 3; ++round) {
    QueueAdd();
    (*event)->Record();
    std::thread waiter([&] { EXPECT_EQ((*event)->Wait(), absl::OkStatus()); });
    waiter.join();
    EXPECT_EQ(first(), static_cast<float>(round));
  }
}

TEST_F(CudaDeviceTest, GraphsReplayOps) {
  ASSERT_EQ(device_->BeginCapture(), absl::OkStatus());
  QueueAdd();
  QueueAdd();
  auto graph = device_->EndCapture();
  ASSERT_TRUE(graph.ok()) << graph.status();
  ASSERT_EQ(device_->Synchronize(), absl::OkStatus());
  EXPECT_EQ(first(), 0);  // recorded only
  for (int i = 0; i < 3; ++i) (*graph)->Launch();
  ASSERT_EQ(device_->Synchronize(), absl::OkStatus());
  EXPECT_EQ(first(), 6);
}

TEST_F(CudaDeviceTest, AFailedCaptureEndsAndSaysWhy) {
  ASSERT_EQ(device_->BeginCapture(), absl::OkStatus());
  QueueAdd();
  EXPECT_FALSE(device_->Synchronize().ok());  // not allowed in a capture
  auto graph = device_->EndCapture();
  EXPECT_FALSE(graph.ok());
  // The device works as before.
  QueueAdd();
  EXPECT_EQ(device_->Synchronize(), absl::OkStatus());
  EXPECT_EQ(first(), 1);
  EXPECT_FALSE(device_->EndCapture().ok());
  EXPECT_EQ(device_->Synchronize(), absl::OkStatus());
}

TEST_F(CudaDeviceTest, NoSuchDevice) {
#ifdef SOMNUS_CUDA_EMULATOR
  const auto create = [](int index) { return CreateEmulatedCudaDevice({.index = index}).status(); };
#else
  const auto create = [](int index) { return Device::CreateCuda(index).status(); };
#endif
  for (const int index : {-1, 1000}) {
    const absl::Status status = create(index);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_NE(status.message().find("there is no CUDA device"), std::string::npos) << status;
  }
}

#ifdef SOMNUS_CUDA_EMULATOR
TEST_F(CudaDeviceTest, TheFirstErrorOfAnOpIsTheOneThatSynchronizeAnswers) {
  float host[4] = {};
  // Neither end is the device's memory.
  device_->CopyToDevice(host, host + 2, 8);
  QueueAdd();
  const absl::Status status = device_->Synchronize();
  EXPECT_NE(status.message().find("copying to the device: invalid argument"), std::string::npos) << status;
  EXPECT_EQ(device_->Synchronize(), absl::OkStatus());
  EXPECT_EQ(first(), 1);
}

// The error of a build without CUDA, and of a build with CUDA on a machine without a GPU.
TEST(CreateCuda, SaysWhyThereIsNoDevice) {
  const auto device = Device::CreateCuda(0);
  if (device.ok()) GTEST_SKIP() << "there is one";
  EXPECT_EQ(device.status().code(), absl::StatusCode::kUnavailable) << device.status();
  EXPECT_EQ(device.status().message().substr(0, 15), "no CUDA device:") << device.status();
}
#endif

}  // namespace
}  // namespace somnus::cuda_test
