// SideStage: no step overwrites bytes that a step in flight still needs, and only a step that stages too much
// waits.
#include "worker/runner/staging.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <functional>
#include <numeric>
#include <vector>

#include "kernels/op_table.h"

namespace somnus {
namespace {

// A device that copies when the host waits for the device, and no sooner.
class LateDevice : public Device {
 public:
  DeviceKind kind() const override { return DeviceKind::kCuda; }
  const OpTable& ops() const override { std::abort(); }
  std::string Describe() const override { return "late"; }
  void SetWorkspace(void*, int64_t) override {}
  void BeginStep() override {}
  void EndStep() override {}
  bool asynchronous() const override { return true; }
  absl::StatusOr<void*> AllocatePinned(int64_t bytes) override { return std::malloc(bytes); }
  void FreePinned(void* data) override { std::free(data); }
  DeviceUploader* uploader() override { return nullptr; }
  absl::StatusOr<std::unique_ptr<DeviceEvent>> CreateEvent() override { return absl::UnimplementedError(""); }
  absl::Status BeginCapture() override { return absl::UnimplementedError(""); }
  absl::StatusOr<std::unique_ptr<DeviceGraph>> EndCapture() override { return absl::UnimplementedError(""); }
  void CopyToDevice(void* device, const void* host, int64_t bytes) override {
    queue.push_back([=] { std::memcpy(device, host, bytes); });
  }
  void CopyToHost(void* host, const void* device, int64_t bytes) override {
    CopyToDevice(host, device, bytes);
  }
  absl::Status Synchronize() override {
    ++waits;
    for (const auto& op : queue) op();
    queue.clear();
    return absl::OkStatus();
  }

  std::vector<std::function<void()>> queue;
  int waits = 0;
};

class SideStageTest : public testing::Test {
 protected:
  SideStageTest() {
    Carver size(nullptr);
    side_.Carve(&size, device_);
    memory_.resize(size.bytes());
    Carver carver(memory_.data());
    side_.Carve(&carver, device_);
    EXPECT_TRUE(side_.Bind(&device_).ok());
  }
  // An op that will read `n` values from `value` on.
  void Use(int32_t value, int64_t n) {
    std::vector<int32_t> values(n);
    std::iota(values.begin(), values.end(), value);
    const absl::StatusOr<const int32_t*> staged = side_.Stage(values.data(), n);
    ASSERT_TRUE(staged.ok());
    device_.queue.push_back([=, at = *staged] {
      for (int64_t i = 0; i < n; ++i) ASSERT_EQ(at[i], value + i);
    });
  }

  LateDevice device_;
  std::vector<uint8_t> memory_;
  SideStage side_;
};

TEST_F(SideStageTest, StepsInFlightKeepWhatIsTheirs) {
  for (int step = 0; step < 40; ++step) {
    side_.Turn();
    for (int i = 0; i < 3; ++i) Use(1000 * step + i, SideStage::kMaxPiece / 4);
    // The previous step is done, the present step is not.
    const size_t own = 6;
    ASSERT_LE(device_.queue.size(), 2 * own);
    if (device_.queue.size() < 2 * own) continue;
    for (size_t i = 0; i < own; ++i) device_.queue[i]();
    device_.queue.erase(device_.queue.begin(), device_.queue.begin() + own);
  }
  EXPECT_EQ(device_.waits, 0);
  ASSERT_TRUE(device_.Synchronize().ok());
}

TEST_F(SideStageTest, AStepThatNeedsMoreWaits) {
  side_.Turn();
  Use(5, 1);
  for (int i = 0; i < 20; ++i) Use(i, SideStage::kMaxPiece / 4);
  EXPECT_GT(device_.waits, 0);
  ASSERT_TRUE(device_.Synchronize().ok());
}

}  // namespace
}  // namespace somnus
