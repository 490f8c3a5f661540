// The device that a worker takes on machines that have a GPU, none, or a GPU that cannot be used.

#include "worker/choose_device.h"

#include <gtest/gtest.h>

#include "tests/fakes/fake_vmm_driver.h"

namespace somnus {
namespace {

// A machine with these GPUs: each is ok, or has an error.
WorkerParts Machine(const std::vector<absl::Status>& drivers, int* memory_opened = nullptr) {
  WorkerParts parts;
  const auto check = [drivers](const WorkerOptions& options) -> absl::Status {
    const size_t index = static_cast<size_t>(options.device_index);
    return index < drivers.size() ? drivers[index] : absl::InvalidArgumentError("there is no such GPU");
  };
  parts.check_device = check;
  parts.open_memory = [memory_opened](const WorkerOptions&,
                                      int) -> absl::StatusOr<std::unique_ptr<VmmDriver>> {
    if (memory_opened != nullptr) ++*memory_opened;
    return std::make_unique<FakeVmmDriver>();
  };
  return parts;
}

const absl::Status kOldDriver =
    absl::FailedPreconditionError("the NVIDIA driver 570.86 knows CUDA up to 12.8");

TEST(ChooseDevice, TakesTheGpuThatIsThere) {
  for (const char* wanted : {"auto", "cuda"}) {
    const auto chosen = ChooseDevice(Machine({absl::OkStatus()}), wanted, 0);
    ASSERT_TRUE(chosen.ok()) << chosen.status();
    EXPECT_EQ(chosen->kind, DeviceKind::kCuda);
    EXPECT_EQ(chosen->memory_bytes, int64_t{1} << 40);
    EXPECT_TRUE(chosen->no_gpu.ok());
  }
}

TEST(ChooseDevice, CpuAsksForNoGpu) {
  const auto chosen = ChooseDevice(Machine({kOldDriver}), "cpu", 0);
  ASSERT_TRUE(chosen.ok()) << chosen.status();
  EXPECT_EQ(chosen->kind, DeviceKind::kCpu);
  EXPECT_TRUE(chosen->no_gpu.ok());
}

// The driver's memory calls work with an old driver; the runtime and the kernels do not.
TEST(ChooseDevice, AutoTakesTheCpuBesideADriverThatIsTooOldAndSaysWhy) {
  int memory_opened = 0;
  const auto chosen = ChooseDevice(Machine({kOldDriver}, &memory_opened), "auto", 0);
  ASSERT_TRUE(chosen.ok()) << chosen.status();
  EXPECT_EQ(chosen->kind, DeviceKind::kCpu);
  EXPECT_GT(chosen->memory_bytes, 0);
  EXPECT_EQ(chosen->no_gpu, kOldDriver);
  EXPECT_EQ(memory_opened, 0);
}

TEST(ChooseDevice, CudaWithADriverThatIsTooOldIsAnErrorThatSaysWhy) {
  const absl::Status status = ChooseDevice(Machine({kOldDriver}), "cuda", 0).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_NE(status.message().find(kOldDriver.message()), std::string::npos) << status;
  EXPECT_NE(status.message().find("--device=cuda"), std::string::npos) << status;
}

TEST(ChooseDevice, RanksOfOneHostDoNotDiffer) {
  const std::vector<absl::Status> first_only = {absl::OkStatus()}, none = {kOldDriver, kOldDriver};
  EXPECT_TRUE(absl::IsFailedPrecondition(ChooseDevice(Machine(first_only), "auto", 1).status()));
  const auto chosen = ChooseDevice(Machine(none), "auto", 1);
  ASSERT_TRUE(chosen.ok()) << chosen.status();
  EXPECT_EQ(chosen->kind, DeviceKind::kCpu);
}

}  // namespace
}  // namespace somnus
