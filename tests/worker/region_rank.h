#pragma once
// A worker in this process with memory of a FakeVmmDriver, in three regions: a test sees the state after each
// phase of a transition, and every call of the driver can fail.

#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "tests/fakes/fake_vmm_driver.h"
#include "tests/worker/fake_parts.h"
#include "worker/worker.h"

namespace somnus {

inline constexpr int64_t kRegionBytes = 4 * FakeVmmDriver::kUnit;
inline constexpr int64_t kAllBytes = 3 * kRegionBytes;
inline constexpr int64_t kBlockBytes = kRegionBytes / 4;
inline constexpr int32_t kHostBlocks = 3;
using Tags = std::set<std::string>;
inline const Tags kAll = {"kv_cache", "weights", "workspace"};

// Three regions of the driver's memory; the weights are full of 'w'.
class RegionRunner : public ModelRunner {
 public:
  RegionRunner(FakeVmmDriver* driver, SleepableAllocator* allocator, FakeModelControl* control)
      : driver_(*driver), allocator_(*allocator), control_(*control) {}
  ~RegionRunner() override {
    for (void* data : {weights_, workspace_, kv_cache_}) {
      if (data != nullptr) allocator_.Free(data).IgnoreError();
    }
  }

  absl::Status Init() {
    ASSIGN_OR_RETURN(weights_, allocator_.Allocate("weights", kRegionBytes));
    ASSIGN_OR_RETURN(workspace_, allocator_.Allocate("workspace", kRegionBytes));
    driver_.Fill(weights_, kRegionBytes, 'w');
    return absl::OkStatus();
  }
  bool HasWeights() { return driver_.Holds(weights_, kRegionBytes, 'w'); }

  int64_t kv_block_bytes() const override { return kRegionBytes / 4; }
  std::string weight_types() const override { return "f32"; }
  absl::Status Profile() override { return absl::OkStatus(); }
  absl::StatusOr<GraphReport> ProfileGraphs() override { return GraphReport(); }
  absl::Status AllocateKvCache(int32_t, int32_t, bool) override {
    ASSIGN_OR_RETURN(kv_cache_, allocator_.Allocate("kv_cache", kRegionBytes));
    return absl::OkStatus();
  }
  absl::Status ResizeKvCache(int32_t num_mapped_blocks) override {
    return allocator_.Resize(kv_cache_, num_mapped_blocks * kv_block_bytes());
  }
  absl::Status SwapBlocks(SwapDirection direction, const KvHostPool& pool,
                          absl::Span<const BlockSwap> swaps) override {
    control_.swaps.emplace_back();
    for (const BlockSwap& swap : swaps) {
      control_.swaps.back().push_back(swap.device_block);
      char* const cached = static_cast<char*>(kv_cache_) + swap.device_block * kv_block_bytes();
      char* const pooled = static_cast<char*>(pool.data) + swap.host_block * kv_block_bytes();
      const bool to_host = direction == SwapDirection::kToHost;
      std::string bytes(kv_block_bytes(), 0);
      RETURN_IF_ERROR(driver_.CopyToHost(bytes.data(), to_host ? cached : pooled, kv_block_bytes()));
      RETURN_IF_ERROR(driver_.CopyFromHost(to_host ? pooled : cached, bytes.data(), kv_block_bytes()));
    }
    return absl::OkStatus();
  }
  // Block `id` is full of the block's letter.
  void FillBlock(int32_t id) { driver_.Fill(Block(id), kv_block_bytes(), static_cast<char>('A' + id)); }
  void SpoilBlock(int32_t id) { driver_.Fill(Block(id), kv_block_bytes(), '?'); }
  bool HasBlock(int32_t id) {
    return driver_.Holds(Block(id), kv_block_bytes(), static_cast<char>('A' + id));
  }
  absl::Status BeginEpoch() override { return absl::OkStatus(); }
  absl::StatusOr<std::unique_ptr<PendingStep>> Launch(const v1::StepRequest&) override {
    return std::make_unique<FinishedStep>(v1::StepReply());
  }
  absl::StatusOr<uint64_t> SelfCheck() override { return HasWeights() ? 1 : 2; }
  absl::Status CheckReload(const Checkpoint&) const override { return control_.check_error; }
  absl::StatusOr<std::unique_ptr<UpdatedTensors>> BeginWeightUpdate(bool) override {
    return absl::UnimplementedError("not needed");
  }
  absl::Status ReloadWeights(const Checkpoint&, const Progress& progress) override {
    ++control_.reloads;
    progress(1, 2);  // of bytes in the checkpoint, not in memory
    if (control_.on_reload) control_.on_reload();
    driver_.Fill(weights_, kRegionBytes, 'w');
    return control_.reload_error;
  }
  absl::Status ResetAfterWake() override {
    driver_.Fill(workspace_, 1, 't');
    driver_.Fill(kv_cache_, 1, 'k');
    return control_.reset_error;
  }

 private:
  void* Block(int32_t id) { return static_cast<char*>(kv_cache_) + id * kv_block_bytes(); }

  FakeVmmDriver& driver_;
  SleepableAllocator& allocator_;
  FakeModelControl& control_;
  void *weights_ = nullptr, *workspace_ = nullptr, *kv_cache_ = nullptr;
};

// A worker that is awake in epoch 1.
class Rank {
 public:
  explicit Rank(v1::BackupPolicy backup = v1::BACKUP_POLICY_UNSPECIFIED)
      : worker_({.num_threads = 1}, Parts()) {
    v1::KvCacheConfig cache = KvConfig();
    cache.set_num_host_blocks(kHostBlocks);
    EXPECT_EQ(MakeAwake(worker_, 0, 1, "", cache, backup), absl::OkStatus());
  }
  ~Rank() { EXPECT_EQ(driver_->violations(), std::vector<std::string>{}); }

  struct State {
    std::string name;
    int sleep_level;
    Tags resident;
    int64_t live_bytes, host_bytes;
    bool operator==(const State&) const = default;
  };
  // The state in the worker's view, and in the driver's.
  State state() {
    const v1::WorkerSnapshot snapshot = worker_.Snapshot();
    return {snapshot.state(), snapshot.sleep_level(),
            Tags(snapshot.resident_tags().begin(), snapshot.resident_tags().end()), driver_->live_bytes(),
            driver_->host_bytes()};
  }
  absl::Status Prepare(const v1::Transition& transition, uint64_t id, int64_t epoch = 1) {
    return worker_.Prepare(PrepareOf(transition, id, epoch));
  }
  absl::Status Commit(uint64_t id, int64_t epoch = 1) { return worker_.Commit(CommitOf(id, epoch)).status(); }
  absl::Status Abort(uint64_t id) { return worker_.AbortTransition(AbortOf(id)); }
  // Both phases; the id is later than the tests' ids.
  absl::Status Run(const v1::Transition& transition, int64_t epoch = 1) {
    return RunTransition(worker_, transition, epoch).status();
  }
  absl::Status Resize(int32_t num_blocks, int64_t epoch = 1) {
    v1::ResizeKvCacheRequest request;
    request.set_group_epoch(epoch);
    request.set_num_blocks(num_blocks);
    return worker_.ResizeKvCache(request).status();
  }
  // Host memory of kept blocks.
  int64_t HostTierBytes() {
    const auto bytes = worker_.GetStatus().host_bytes_by_tag();
    const auto tier = bytes.find("kv_cache");
    return tier == bytes.end() ? 0 : tier->second;
  }
  bool HasWeights() { return runner_->HasWeights(); }
  void FillBlock(int32_t id) { runner_->FillBlock(id); }
  void SpoilBlock(int32_t id) { runner_->SpoilBlock(id); }
  bool HasBlock(int32_t id) { return runner_->HasBlock(id); }

  Worker& worker() { return worker_; }
  FakeVmmDriver& driver() { return *driver_; }
  FakeModelControl& control() { return control_; }

 private:
  WorkerParts Parts() {
    WorkerParts parts = FakeParts(&control_);
    parts.open_memory = [this](const WorkerOptions&, int) -> absl::StatusOr<std::unique_ptr<VmmDriver>> {
      auto driver = std::make_unique<FakeVmmDriver>();
      driver_ = driver.get();
      return driver;
    };
    parts.load_runner = [this](const Checkpoint&, const ModelRunnerOptions&, Device*, Communicator*,
                               SleepableAllocator* allocator,
                               const ModelRunner::Progress&) -> absl::StatusOr<std::unique_ptr<ModelRunner>> {
      auto runner = std::make_unique<RegionRunner>(driver_, allocator, &control_);
      runner_ = runner.get();
      RETURN_IF_ERROR(runner->Init());
      return runner;
    };
    return parts;
  }

  FakeModelControl control_;
  FakeVmmDriver* driver_ = nullptr;
  RegionRunner* runner_ = nullptr;
  Worker worker_;
};

using Pairs = std::vector<std::pair<int32_t, int32_t>>;

// Adds pairs of device blocks and host copies, and the host blocks that steps have swapped out.
inline v1::Transition Keeping(v1::Transition transition, const Pairs& pairs,
                              const std::vector<int32_t>& swapped = {}) {
  for (const auto& [device, host] : pairs) {
    v1::BlockCopy* block = transition.add_kept_blocks();
    block->set_src(device);
    block->set_dst(host);
  }
  transition.mutable_swapped_blocks()->Add(swapped.begin(), swapped.end());
  return transition;
}

}  // namespace somnus
