// The host tier of a rank on a GPU: a step never waits for host memory, and a sleep gives all the memory
// back.
#include "worker/kv_host_tier.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <mutex>
#include <set>
#include <thread>

#include "absl/time/clock.h"
#include "tests/fakes/fake_vmm_driver.h"

namespace somnus {
namespace {

constexpr int64_t kBlock = 4096;

// A GPU of which only pinned memory is real. Says which memory the thread that made the device took or freed.
class PinningDevice : public Device {
 public:
  DeviceKind kind() const override { return DeviceKind::kCuda; }
  const OpTable& ops() const override { std::abort(); }
  std::string Describe() const override { return "pinning"; }
  void SetWorkspace(void*, int64_t) override {}
  void BeginStep() override {}
  void EndStep() override {}
  bool asynchronous() const override { return true; }
  absl::StatusOr<void*> AllocatePinned(int64_t bytes) override {
    const std::lock_guard<std::mutex> lock(mu_);
    calls_here_ += std::this_thread::get_id() == maker_;
    if (!has_memory_) return absl::ResourceExhaustedError("no pinned memory");
    void* const data = std::malloc(bytes);
    live_[data] = bytes;
    return data;
  }
  void FreePinned(void* data) override {
    const std::lock_guard<std::mutex> lock(mu_);
    calls_here_ += std::this_thread::get_id() == maker_;
    EXPECT_EQ(live_.erase(data), 1u);
    std::free(data);
  }
  DeviceUploader* uploader() override { return nullptr; }
  absl::StatusOr<std::unique_ptr<DeviceEvent>> CreateEvent() override { return absl::UnimplementedError(""); }
  absl::Status BeginCapture() override { return absl::UnimplementedError(""); }
  absl::StatusOr<std::unique_ptr<DeviceGraph>> EndCapture() override { return absl::UnimplementedError(""); }
  void CopyToDevice(void*, const void*, int64_t) override {}
  void CopyToHost(void*, const void*, int64_t) override {}
  absl::Status Synchronize() override { return absl::OkStatus(); }

  void SetHasMemory(bool has_memory) {
    const std::lock_guard<std::mutex> lock(mu_);
    has_memory_ = has_memory;
  }
  int64_t live_bytes() const {
    const std::lock_guard<std::mutex> lock(mu_);
    int64_t sum = 0;
    for (const auto& [data, bytes] : live_) sum += bytes;
    return sum;
  }
  int calls_here() const {
    const std::lock_guard<std::mutex> lock(mu_);
    return calls_here_;
  }

 private:
  mutable std::mutex mu_;
  const std::thread::id maker_ = std::this_thread::get_id();
  bool has_memory_ = true;
  int calls_here_ = 0;
  std::map<void*, int64_t> live_;
};

// A cache in which each block, and each copy in host memory, is one number.
class NumberRunner : public ModelRunner {
 public:
  int64_t kv_block_bytes() const override { return kBlock; }
  std::string weight_types() const override { return "f32"; }
  absl::Status Profile() override { return absl::OkStatus(); }
  absl::StatusOr<GraphReport> ProfileGraphs() override { return GraphReport(); }
  absl::Status AllocateKvCache(int32_t, int32_t, bool) override { return absl::OkStatus(); }
  absl::Status ResizeKvCache(int32_t) override { return absl::OkStatus(); }
  absl::Status SwapBlocks(SwapDirection direction, const KvHostPool& pool,
                          absl::Span<const BlockSwap> swaps) override {
    for (const BlockSwap& swap : swaps) {
      EXPECT_LT(swap.host_block, pool.num_blocks);
      auto* const pooled = reinterpret_cast<int*>(static_cast<char*>(pool.data) + swap.host_block * kBlock);
      if (direction == SwapDirection::kToHost) {
        *pooled = numbers[swap.device_block];
      } else {
        numbers[swap.device_block] = *pooled;
      }
    }
    return absl::OkStatus();
  }
  absl::Status BeginEpoch() override { return absl::OkStatus(); }
  absl::StatusOr<std::unique_ptr<PendingStep>> Launch(const v1::StepRequest&) override {
    return absl::UnimplementedError("");
  }
  absl::StatusOr<uint64_t> SelfCheck() override { return 1; }
  absl::Status CheckReload(const Checkpoint&) const override { return absl::OkStatus(); }
  absl::StatusOr<std::unique_ptr<UpdatedTensors>> BeginWeightUpdate(bool) override {
    return absl::UnimplementedError("");
  }
  absl::Status ReloadWeights(const Checkpoint&, const Progress&) override { return absl::OkStatus(); }
  absl::Status ResetAfterWake() override { return absl::OkStatus(); }

  std::map<int32_t, int> numbers;
};

class KvHostTierTest : public testing::Test {
 protected:
  // Pieces of 4 blocks; `ahead` pieces are ready.
  void Make(int32_t num_blocks, int64_t ahead, bool retains = false) {
    tier_ = std::make_unique<KvHostTier>(KvHostTierOptions{.block_bytes = kBlock,
                                                           .num_blocks = num_blocks,
                                                           .retains_memory = retains,
                                                           .piece_bytes = 4 * kBlock,
                                                           .ahead_bytes = ahead * 4 * kBlock,
                                                           .ready_bytes = &ready_},
                                         &device_, &driver_, &runner_);
  }
  void AwaitReady(int64_t pieces) {
    while (ready_ != pieces * 4 * kBlock) absl::SleepFor(absl::Milliseconds(1));
  }
  // A step that swaps the blocks out: this thread calls no driver for memory.
  absl::Status SwapOut(const std::vector<BlockSwap>& swaps) {
    const int before = device_.calls_here();
    tier_->BeginStep();
    const absl::Status status = tier_->SwapOut(swaps, {});
    EXPECT_EQ(device_.calls_here(), before) << "within a step";
    return status;
  }
  absl::Status SwapOutOnceReady(const std::vector<BlockSwap>& swaps) {
    absl::Status status = SwapOut(swaps);
    for (; absl::IsUnavailable(status); status = SwapOut(swaps)) absl::SleepFor(absl::Milliseconds(1));
    return status;
  }
  static v1::Transition TransitionTo(int level, const std::vector<BlockSwap>& kept = {},
                                     const std::vector<int32_t>& swapped = {}) {
    v1::Transition transition;
    transition.set_sleep_level(level);
    for (const BlockSwap& swap : kept) {
      v1::BlockCopy* const block = transition.add_kept_blocks();
      block->set_src(swap.device_block);
      block->set_dst(swap.host_block);
    }
    transition.mutable_swapped_blocks()->Add(swapped.begin(), swapped.end());
    return transition;
  }
  absl::Status Run(const v1::Transition& transition) {
    const absl::Status status = tier_->Prepare(transition);
    status.ok() ? tier_->Commit(transition.sleep_level(), true) : tier_->Abort();
    return status;
  }

  PinningDevice device_;
  FakeVmmDriver driver_;
  NumberRunner runner_;
  std::atomic<int64_t> ready_{0};
  std::unique_ptr<KvHostTier> tier_;
};

TEST_F(KvHostTierTest, AStepFindsItsMemoryReady) {
  Make(16, 2);
  EXPECT_EQ(device_.live_bytes(), 0) << "before the first step it costs nothing";
  tier_->BeginStep();
  AwaitReady(2);
  runner_.numbers = {{1, 11}, {2, 12}};
  ASSERT_EQ(SwapOut({{1, 0}, {2, 7}}), absl::OkStatus());
  EXPECT_EQ(tier_->host_bytes(), 8 * kBlock);
  AwaitReady(2);  // beside the pieces that swaps have taken
  runner_.numbers.clear();
  ASSERT_EQ(tier_->SwapIn({{5, 7}, {6, 0}}), absl::OkStatus());
  EXPECT_EQ(runner_.numbers[5], 12);
  EXPECT_EQ(runner_.numbers[6], 11);
  EXPECT_EQ(SwapOut({{1, 1}}), absl::OkStatus()) << "in the same piece";
  EXPECT_EQ(device_.live_bytes(), 16 * kBlock) << "which is all that the tier may have";
}

TEST_F(KvHostTierTest, AStepThatFindsTooLittleCopiesNothingAndALaterOneHasIt) {
  Make(16, 0);
  runner_.numbers = {{1, 11}, {2, 12}, {3, 13}};
  EXPECT_TRUE(absl::IsUnavailable(SwapOut({{1, 0}, {2, 4}, {3, 8}})));
  EXPECT_FALSE(tier_->SwapIn({{9, 0}}).ok());
  AwaitReady(3);
  ASSERT_EQ(SwapOut({{1, 0}, {2, 4}, {3, 8}}), absl::OkStatus());
  ASSERT_EQ(tier_->SwapIn({{9, 8}}), absl::OkStatus());
  EXPECT_EQ(runner_.numbers[9], 13);
}

TEST_F(KvHostTierTest, AHostWithoutMemoryIsSaidWithWhatIsMissing) {
  Make(16, 1);
  device_.SetHasMemory(false);
  absl::Status status = SwapOutOnceReady({{1, 0}});
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_NE(status.message().find("no pinned memory"), absl::string_view::npos) << status;
}

TEST_F(KvHostTierTest, ASleepGivesTheReserveBack) {
  for (const bool retains : {false, true}) {
    for (const int level : {1, 2}) {
      Make(16, 2, retains);
      ASSERT_EQ(SwapOutOnceReady({{1, 0}}), absl::OkStatus());
      AwaitReady(2);
      ASSERT_EQ(Run(TransitionTo(level)), absl::OkStatus());
      EXPECT_EQ(ready_, 0);
      const int64_t retained = retains && level == 1 ? 4 * kBlock : 0;
      EXPECT_EQ(device_.live_bytes(), retained) << "what a step has used stays where it is retained";
      ASSERT_EQ(Run(TransitionTo(0)), absl::OkStatus());
      EXPECT_EQ(ready_, 0) << "until a step begins";
      ASSERT_EQ(SwapOutOnceReady({{1, 0}}), absl::OkStatus());
      AwaitReady(2);
      tier_ = nullptr;
      EXPECT_EQ(device_.live_bytes(), 0);
    }
  }
}

TEST_F(KvHostTierTest, ASleepThatKeepsBlocksTakesForThemWhatIsReady) {
  Make(16, 3);
  tier_->BeginStep();
  AwaitReady(3);
  std::vector<BlockSwap> kept;
  for (int32_t i = 0; i < 5; ++i) {
    kept.push_back({1 + i, i});
    runner_.numbers[1 + i] = 20 + i;
  }
  ASSERT_EQ(Run(TransitionTo(1, kept)), absl::OkStatus());
  EXPECT_EQ(device_.live_bytes(), 5 * kBlock) << "for these blocks and no more";
  runner_.numbers.clear();
  ASSERT_EQ(Run(TransitionTo(0, kept)), absl::OkStatus());
  for (int32_t i = 0; i < 5; ++i) EXPECT_EQ(runner_.numbers[1 + i], 20 + i);
  EXPECT_EQ(device_.live_bytes(), 0);
}

TEST_F(KvHostTierTest, AnAbortedSleepLeavesTheReserveToTheNextStep) {
  Make(16, 3);
  tier_->BeginStep();
  AwaitReady(3);
  ASSERT_EQ(tier_->Prepare(TransitionTo(1, {{1, 0}})), absl::OkStatus());
  tier_->Abort();
  EXPECT_EQ(ready_, 0) << "the sleep's blocks came first";
  runner_.numbers = {{1, 11}};
  ASSERT_EQ(SwapOutOnceReady({{1, 0}}), absl::OkStatus());
  AwaitReady(3);
}

TEST_F(KvHostTierTest, ANewEpochKeepsWhatItsStepsWillNeed) {
  Make(16, 1);
  ASSERT_EQ(SwapOutOnceReady({{1, 0}, {2, 4}}), absl::OkStatus());
  AwaitReady(1);
  tier_->ForgetAll();
  EXPECT_FALSE(tier_->SwapIn({{1, 0}}).ok());
  while (device_.live_bytes() != 4 * kBlock) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_EQ(tier_->host_bytes(), 0);
  EXPECT_EQ(ready_, 4 * kBlock);
}

// Steps swap at random, sleeps keep or forget, and every block comes back unchanged.
TEST_F(KvHostTierTest, RandomSwapsAndSleepsLoseNothing) {
  Make(23, 1);  // the last piece has three blocks
  uint32_t random = 1;
  const auto below = [&random](uint32_t n) {
    random = random * 1664525 + 1013904223;
    return (random >> 8) % n;
  };
  std::map<int32_t, int> swapped;  // numbers, by host block
  for (int i = 0; i < 2000; ++i) {
    const auto host = static_cast<int32_t>(below(23));
    if (const uint32_t what = below(100); what < 60) {
      runner_.numbers[1] = i;
      const absl::Status status = SwapOut({{1, host}});
      ASSERT_TRUE(status.ok() || absl::IsUnavailable(status)) << status;
      if (status.ok()) swapped[host] = i;
    } else if (what < 95) {
      if (!swapped.contains(host)) continue;
      ASSERT_EQ(tier_->SwapIn({{2, host}}), absl::OkStatus());
      ASSERT_EQ(runner_.numbers[2], swapped[host]);
    } else {
      std::vector<int32_t> wanted;
      if (what < 98) {
        for (const auto& [id, number] : swapped) wanted.push_back(id);
      } else {
        swapped.clear();
      }
      ASSERT_EQ(Run(TransitionTo(1, {}, wanted)), absl::OkStatus());
      ASSERT_EQ(Run(TransitionTo(0, {}, wanted)), absl::OkStatus());
    }
    ASSERT_LE(device_.live_bytes(), 24 * kBlock);
  }
}

}  // namespace
}  // namespace somnus
