// The runner's self-check: what changes the result, and what the check leaves alone.

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>

#include "base/status_macros.h"
#include "tests/runner/mini_engine.h"

namespace somnus {
namespace {

// Remembers where the first region is: that of the weights.
class WatchedMemory : public VmmDriver {
 public:
  WatchedMemory(std::unique_ptr<VmmDriver> driver, uint8_t** weights)
      : driver_(std::move(driver)), weights_(weights) {}

  int64_t Granularity() const override { return driver_->Granularity(); }
  int64_t ChunkBytes() const override { return driver_->ChunkBytes(); }
  absl::StatusOr<int64_t> TotalBytes() override { return driver_->TotalBytes(); }
  absl::StatusOr<int64_t> AvailableBytes() override { return driver_->AvailableBytes(); }
  absl::StatusOr<void*> Reserve(int64_t bytes) override {
    ASSIGN_OR_RETURN(void* address, driver_->Reserve(bytes));
    if (*weights_ == nullptr) *weights_ = static_cast<uint8_t*>(address);
    return address;
  }
  absl::Status FreeAddress(void* address, int64_t bytes) override {
    return driver_->FreeAddress(address, bytes);
  }
  absl::StatusOr<Handle> Create(int64_t bytes) override { return driver_->Create(bytes); }
  absl::Status Release(Handle handle) override { return driver_->Release(handle); }
  absl::Status Map(void* address, int64_t bytes, Handle handle) override {
    return driver_->Map(address, bytes, handle);
  }
  absl::Status Unmap(void* address, int64_t bytes) override { return driver_->Unmap(address, bytes); }
  absl::Status SetAccess(void* address, int64_t bytes) override { return driver_->SetAccess(address, bytes); }
  absl::StatusOr<void*> AllocateHost(int64_t bytes) override { return driver_->AllocateHost(bytes); }
  bool HostIsDevice() const override { return driver_->HostIsDevice(); }
  void FreeHost(void* data, int64_t bytes) override { driver_->FreeHost(data, bytes); }
  absl::Status CopyToHost(void* host, const void* device, int64_t bytes) override {
    return driver_->CopyToHost(host, device, bytes);
  }
  absl::Status CopyFromHost(void* device, const void* host, int64_t bytes) override {
    return driver_->CopyFromHost(device, host, bytes);
  }
  absl::Status Synchronize() override { return driver_->Synchronize(); }

 private:
  const std::unique_ptr<VmmDriver> driver_;
  uint8_t** const weights_;
};

class SelfCheckTest : public testing::TestWithParam<int> {
 protected:
  void Load(const std::string& model, ModelRunnerOptions options = SmallRunnerOptions()) {
    const auto make = [this, cpu = CpuRanks()](int rank) -> absl::StatusOr<RankDevice> {
      ASSIGN_OR_RETURN(RankDevice device, cpu(rank));
      device.driver = std::make_unique<WatchedMemory>(std::move(device.driver), &weights_[rank]);
      return device;
    };
    auto group = RankGroup::Load("tests/data/tiny/" + model, GetParam(), options, 64, make);
    ASSERT_TRUE(group.ok()) << group.status();
    group_ = *std::move(group);
  }
  uint64_t Check() {
    const absl::StatusOr<uint64_t> fingerprint = group_->SelfCheck();
    EXPECT_TRUE(fingerprint.ok()) << fingerprint.status();
    return fingerprint.value_or(0);
  }

  uint8_t* weights_[4] = {};
  std::unique_ptr<RankGroup> group_;
};

TEST_P(SelfCheckTest, IsTheSameAfterRequestsAndSleeps) {
  Load("llama-uneven");
  const uint64_t first = Check();
  EXPECT_NE(first, 0u);
  EXPECT_EQ(Check(), first);
  MiniOptions options{.max_running = 4, .max_step_tokens = 64, .num_blocks = 64};
  const MiniRequest request = {.prompt = {5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21}};
  const auto before = RunAll(*group_, {request, request}, options);
  ASSERT_TRUE(before.ok()) << before.status();
  EXPECT_EQ(Check(), first) << "it does not depend on what was computed";
  for (const RestoreMode mode : {RestoreMode::kBackup, RestoreMode::kDiscard}) {
    ASSERT_TRUE(group_->SleepAndWake(mode).ok());
    EXPECT_EQ(Check(), first);
  }
  const auto after = RunAll(*group_, {request}, options);
  ASSERT_TRUE(after.ok()) << after.status();
  EXPECT_EQ((*after)[0].tokens, (*before)[0].tokens) << "nor does what is computed depend on it";
}

TEST_P(SelfCheckTest, FindsWeightsThatAreDamagedOnAnyRank) {
  Load("llama-uneven");
  const uint64_t first = Check();
  for (int rank = 0; rank < GetParam(); ++rank) {
    // A bit of every number there; a scale, or a small number, must not be missed among the numbers.
    for (int i = 3; i < 4096; i += 4) weights_[rank][i] ^= 1;
    EXPECT_NE(Check(), first) << "rank " << rank;
    for (int i = 3; i < 4096; i += 4) weights_[rank][i] ^= 1;
    EXPECT_EQ(Check(), first) << "rank " << rank;
  }
}

TEST_P(SelfCheckTest, FitsShortBlocksAndSteps) {
  ModelRunnerOptions options = SmallRunnerOptions();
  options.block_size = 1;
  Load("llama-uneven", options);
  const uint64_t one_token = Check();
  EXPECT_EQ(Check(), one_token);
  options.block_size = 16;
  options.max_num_batched_tokens = 4;
  Load("llama-uneven", options);
  EXPECT_NE(Check(), one_token);
}

TEST_P(SelfCheckTest, RefusesWhileASequenceHasASlot) {
  Load("llama-uneven");
  v1::StepRequest request;
  request.set_step_id(1);
  *request.add_samplings() = GreedySampling();
  v1::NewSequence* const sequence = request.add_new_sequences();
  for (const int32_t token : {5, 6, 7}) sequence->add_token_ids(token);
  sequence->set_num_prompt_tokens(3);
  sequence->add_block_ids(1);
  request.add_sequences()->set_num_tokens(3);
  ASSERT_TRUE(group_->Execute(request).ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(group_->SelfCheck().status()));
  v1::StepRequest frees;
  frees.set_step_id(2);
  frees.add_freed_slots(0);
  ASSERT_TRUE(group_->Execute(frees).ok());
  EXPECT_NE(Check(), 0u);
}

INSTANTIATE_TEST_SUITE_P(WorldSizes, SelfCheckTest, testing::Values(1, 2));

}  // namespace
}  // namespace somnus
