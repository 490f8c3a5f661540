// A device on machines that lack something (a new driver, the library for matrix products), and with parts of
// the device turned off.

#include <gtest/gtest.h>
#include <stdlib.h>

#include <functional>
#include <thread>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/peer/all_reduce.h"
#include "kernels/cuda/ptx.h"
#include "kernels/emulator/options.h"
#include "tests/cuda/linear_test_util.h"

namespace somnus::cuda_test {
namespace {

namespace cuda = ::somnus::SOMNUS_CUDA_NAMESPACE;
using cuda::emulator::GetOptions;
using cuda::emulator::Options;

class DeviceSettingsTest : public testing::Test {
 protected:
  ~DeviceSettingsTest() override {
    cuda::emulator::SetOptions(before_);
    unsetenv("SOMNUS_CUDA_DISABLE");
  }
  void Set(const std::function<void(Options*)>& change) {
    Options options = GetOptions();
    change(&options);
    cuda::emulator::SetOptions(options);
  }
  void Disable(const char* names) { setenv("SOMNUS_CUDA_DISABLE", names, 1); }

  const Options before_ = GetOptions();
};

TEST_F(DeviceSettingsTest, ADriverThatIsTooOldIsNamed) {
  Set([](Options* options) { options->driver_version = 12080; });
  const absl::Status status = CheckEmulatedCudaDevice(0);
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_NE(status.message().find("12.8"), std::string::npos) << status;
  EXPECT_NE(status.message().find("580"), std::string::npos) << status;
  EXPECT_EQ(CreateEmulatedCudaDevice({}).status(), status);
  Set([](Options* options) { options->driver_version = 14010; });
  EXPECT_TRUE(CheckEmulatedCudaDevice(0).ok());
  EXPECT_TRUE(CreateEmulatedCudaDevice({}).ok());
}

TEST_F(DeviceSettingsTest, IndicesAreChecked) {
  EXPECT_TRUE(absl::IsInvalidArgument(CheckEmulatedCudaDevice(GetOptions().num_devices)));
  Set([](Options* options) { options->num_devices = 0; });
  EXPECT_TRUE(absl::IsUnavailable(CheckEmulatedCudaDevice(0)));
}

// A thread that has chosen no device has device 0: a call that any thread may make chooses the right device.
TEST_F(DeviceSettingsTest, CallsOfAnyThreadAreForTheirOwnDevice) {
  auto created = CreateEmulatedCudaDevice({.index = 1});
  ASSERT_TRUE(created.ok()) << created.status();
  Device& device = **created;
  const auto event = device.CreateEvent();
  ASSERT_TRUE(event.ok()) << event.status();
  (*event)->Record();
  const auto device_after = [](const std::function<void()>& call) {
    int index = -1;
    std::thread([&] {
      call();
      cuda::cudaGetDevice(&index);
    }).join();
    return index;
  };
  EXPECT_EQ(device_after([] {}), 0);
  EXPECT_EQ(device_after([&] { EXPECT_TRUE((*event)->Wait().ok()); }), 1);
  char byte;
  const std::string no_handle(sizeof(cuda::cudaIpcMemHandle_t), '\1');
  EXPECT_EQ(device_after([&] { EXPECT_FALSE(device.CopyFromProcess(no_handle, 0, 1, &byte).ok()); }), 1);
}

void ExpectProductsOfEveryRoute() {
  for (const DataType act : kActTypes) {
    for (const int64_t rows : {1, 16, 17, 70}) {
      for (const int64_t k : {64, 33}) ExpectIntegerProduct({act, act, rows, 40, k, true, {}, {}});
    }
  }
  ExpectIntegerProduct({DataType::kBF16, DataType::kF32, 33, 40, 64, false, {}, {}});
}

TEST_F(DeviceSettingsTest, WithoutTheLibraryOurOwnKernelsMakeAllProducts) {
  Set([](Options* options) { options->has_matrix_library = false; });
  ExpectProductsOfEveryRoute();
  CudaBench bench(LinearLimits(70, 40, 64));
  EXPECT_EQ(cuda::AsCuda(*bench.device).gemm(), nullptr);
  IntegerProduct product(*bench.device, {DataType::kBF16, DataType::kBF16, 70, 40, 64, false, {}, {}});
  EXPECT_FALSE(product.Tune()) << "there is nothing to measure";
}

TEST_F(DeviceSettingsTest, LibraryCanBeTurnedOff) {
  Disable("cublaslt");
  ExpectProductsOfEveryRoute();
  EXPECT_EQ(cuda::AsCuda(*MakeCudaDevice()).gemm(), nullptr);
}

TEST_F(DeviceSettingsTest, WhatIsNoSwitchIsAnError) {
  Disable("everything");
  const absl::Status status = CreateEmulatedCudaDevice({}).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_NE(status.message().find("everything"), std::string::npos) << status;
}

// The second kernel does not call GridDependencyWait, though a kernel that may start early must.
void WriteKernel(int* value) {
  cuda::GridDependencyLaunch();
  for (int i = 0; i < 50; ++i) cuda::emulator::Yield(false);
  *value = 1;
}
void CopyKernel(const int* value, int* copy) { *copy = *value; }

bool SecondSeesFirst(uint64_t seed) {
  const std::unique_ptr<Device> device = MakeCudaDevice(seed);
  DeviceBuffer memory(2 * sizeof(int));
  int* const values = memory.device<int>();
  const int zeros[2] = {};
  memory.Write(0, zeros, sizeof(zeros));
  const cuda::LaunchConfig first{.grid = cuda::dim3(1), .block = cuda::dim3(1)};
  cuda::LaunchConfig second = first;
  second.overlaps_previous = true;
  cuda::Launch(cuda::AsCuda(*device), first, WriteKernel, values);
  cuda::Launch(cuda::AsCuda(*device), second, CopyKernel, values, values + 1);
  EXPECT_TRUE(device->Synchronize().ok());
  return memory.Values<int>()[1] == 1;
}

TEST_F(DeviceSettingsTest, ProgrammaticLaunchCanBeTurnedOff) {
  int seen = 0;
  constexpr int kSeeds = 20;
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) seen += SecondSeesFirst(seed);
  EXPECT_LT(seen, kSeeds) << "no kernel started early: this test shows nothing";
  Disable("programmatic_launch");
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) EXPECT_TRUE(SecondSeesFirst(seed)) << seed;
}

TEST_F(DeviceSettingsTest, OlderChipsStartNoKernelEarly) {
  Set([](Options* options) { options->compute_capability = 89; });
  for (uint64_t seed = 1; seed <= 20; ++seed) EXPECT_TRUE(SecondSeesFirst(seed)) << seed;
}

TEST_F(DeviceSettingsTest, PeerMemoryCanBeTurnedOff) {
  Disable("peer_memory");
  const std::unique_ptr<Device> device = MakeCudaDevice();
  const absl::Status status =
      cuda::MakePeerCollectives(cuda::AsCuda(*device), {.rank = 0, .world_size = 2}).status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
}

// Blocks wait for blocks of the other ranks: a device that does not run all at once would wait for ever.
TEST_F(DeviceSettingsTest, PeerMemoryNeedsRoomForAllBlocksOfACollective) {
  const auto make = [](int num_sms) {
    const std::unique_ptr<Device> device = MakeCudaDevice(1, num_sms);
    return cuda::MakePeerCollectives(cuda::AsCuda(*device), {.rank = 0, .world_size = 2}).status();
  };
  const absl::Status status = make(16);
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_NE(status.message().find("16 multiprocessors"), std::string::npos) << status;
  EXPECT_TRUE(make(18).ok());
}

// A rank that fuses, beside a rank that does not, would wait for a kernel that never comes.
TEST_F(DeviceSettingsTest, FusedAllReduceIsTheSameOnAllRanks) {
  const auto make = [](const Device& device, int rank) {
    return cuda::MakePeerCollectives(cuda::AsCuda(const_cast<Device&>(device)),
                                     {.rank = rank, .world_size = 2, .buffer_bytes = 4096})
        .value();
  };
  const std::unique_ptr<Device> fusing = MakeCudaDevice();
  const auto peer = make(*fusing, 1);
  Disable("fused_all_reduce");
  const std::unique_ptr<Device> device = MakeCudaDevice();
  const auto alone = make(*device, 0), same = make(*device, 1);
  const PeerHandle mixed[] = {alone->handle(), peer->handle()}, alike[] = {alone->handle(), same->handle()};
  const absl::Status status = alone->Connect(mixed);
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_NE(status.message().find("fused_all_reduce"), std::string::npos) << status;
  ASSERT_TRUE(alone->Connect(alike).ok());
  DeviceBuffer memory(4096);
  const TensorView delta = {memory.device<char>(), DataType::kBF16, 1, 64, 64};
  const TensorView residual = {memory.device<char>() + 1024, DataType::kF32, 1, 64, 64};
  const TensorView out = {memory.device<char>() + 2048, DataType::kBF16, 1, 64, 64};
  EXPECT_FALSE(alone->AllReduceAddRmsNorm(residual, delta, memory.device<float>(), 1e-5, out));
}

}  // namespace
}  // namespace somnus::cuda_test
