// Ranks on GPUs in a new epoch: decode graphs hold the buffers of the old group, so they are dropped by the
// Fence and captured again by the first step, on survivors and newcomers together.
#include <gtest/gtest.h>

#include <thread>

#include "absl/time/clock.h"
#include "tests/cuda/gpu_worker_parts.h"
#include "tests/worker/rejoin_group.h"
#include "worker/worker.h"
#ifdef SOMNUS_CUDA_EMULATOR
#include "tests/cuda/emulator_util.h"
#endif

namespace somnus::cuda_test {
namespace {

constexpr int kTokens = 6;

std::unique_ptr<Worker> NewGpuWorker() {
  WorkerParts parts = GpuParts();
  parts.join_devices = [](const GroupOptions& options, Device* device) {
    const MakePeers make_peers = [device](const PeerOptions& peers) {
      return SOMNUS_CUDA_NAMESPACE::MakePeerCollectives(SOMNUS_CUDA_NAMESPACE::AsCuda(*device), peers);
    };
    return JoinDeviceGroup(options, device, make_peers, absl::UnavailableError("the ranks share a GPU"));
  };
  return std::make_unique<Worker>(WorkerOptions{.device = DeviceKind::kCuda, .num_threads = 1}, parts);
}

class GraphRejoin : public testing::Test {
 protected:
  GraphRejoin() : group_({.batch_invariant = true, .graph_sizes = {1, 2}, .new_worker = NewGpuWorker}) {}

  void SetUp() override {
    SOMNUS_SKIP_WITHOUT_GPU(MakeCudaDevice());
    const absl::Status formed = group_.Form();
    ASSERT_TRUE(formed.ok()) << formed;
    const absl::StatusOr<std::vector<int32_t>> tokens = group_.Generate(kTokens);
    ASSERT_TRUE(tokens.ok()) << tokens.status();
    undisturbed_ = *tokens;
  }
  void ExpectSameTokens() {
    const absl::StatusOr<std::vector<int32_t>> tokens = group_.Generate(kTokens);
    ASSERT_TRUE(tokens.ok()) << tokens.status();
    EXPECT_EQ(*tokens, undisturbed_);
  }

#ifdef SOMNUS_CUDA_EMULATOR
  static constexpr int64_t kGraphBytes = 1 << 20;
  static constexpr int kGraphs = 4;  // two on each rank
  cuda_emulated::WithOptions graphs_cost_{
      [](cuda_emulated::emulator::Options& options) { options.graph_bytes = kGraphBytes; }};
#endif
  RejoinGroup group_;
  std::vector<int32_t> undisturbed_;
};

// In pinned memory.
TEST_F(GraphRejoin, ASequenceWhoseBlocksAreKeptGoesOnAfterEverySleep) {
  const absl::StatusOr<std::vector<int32_t>> tokens = group_.GenerateOverSleeps(kTokens);
  ASSERT_TRUE(tokens.ok()) << tokens.status();
  EXPECT_EQ(*tokens, undisturbed_);
  ExpectSameTokens();
}

TEST_F(GraphRejoin, SurvivorsOfAFailedStepCaptureAgain) {
#ifdef SOMNUS_CUDA_EMULATOR
  const int64_t available = GetEmulatedDeviceMemory().available;
#endif
  // Rank 1 does not come to a step.
  std::thread abort([&] {
    while (!group_.worker(0).step_in_progress()) absl::SleepFor(absl::Milliseconds(1));
    group_.worker(0).Abort("rank 1 is lost");
  });
  EXPECT_FALSE(group_.Generate(kTokens, /*absent=*/1).ok());
  abort.join();
  const absl::Status recovered = group_.Recover(0);
  ASSERT_TRUE(recovered.ok()) << recovered;
#ifdef SOMNUS_CUDA_EMULATOR
  EXPECT_EQ(GetEmulatedDeviceMemory().available, available + kGraphs * kGraphBytes) << "they are dropped";
#endif
  ExpectSameTokens();
#ifdef SOMNUS_CUDA_EMULATOR
  EXPECT_EQ(GetEmulatedDeviceMemory().available, available) << "they are there again";
#endif
}

TEST_F(GraphRejoin, ANewcomerCapturesWithTheSurvivor) {
  for (const int sleep_level : {0, 1}) {
    if (sleep_level > 0) {
      ASSERT_TRUE(group_.Sleep(sleep_level).ok());
    }
    group_.Lose(1);
    const absl::Status recovered = group_.Recover(sleep_level);
    ASSERT_TRUE(recovered.ok()) << recovered;
    if (sleep_level > 0) {
      ASSERT_TRUE(group_.WakeUp().ok());
    }
    ExpectSameTokens();
  }
}

}  // namespace
}  // namespace somnus::cuda_test
