#pragma once
// One to four ranks of a model in this process, a thread each, for tests of the runner. In a pipeline
// (ModelRunnerOptions::pipeline) the ranks are the ranks of all stages.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "allocator/host_vmm_driver.h"
#include "allocator/sleepable_allocator.h"
#include "checkpoint/checkpoint.h"
#include "kernels/device.h"
#include "proto/worker.pb.h"
#include "worker/comm/communicator.h"
#include "worker/comm/stage_link.h"
#include "worker/runner/model_runner.h"

namespace somnus {

// StepSampling with every field resolved: greedy, nothing else.
v1::StepSampling GreedySampling();

// Float32, and steps and sequences that fit the tiny checkpoints of tests/data.
inline ModelRunnerOptions SmallRunnerOptions() {
  ModelRunnerOptions options;
  options.dtype = DataType::kF32;
  options.dequantize = true;
  options.max_num_seqs = 4;
  options.max_num_batched_tokens = 64;
  options.max_model_len = 128;
  return options;
}

// Where a rank runs.
struct RankDevice {
  std::unique_ptr<VmmDriver> driver;
  std::unique_ptr<Device> device;
  // How several ranks form a group; null: in shared memory.
  std::function<absl::StatusOr<std::unique_ptr<Communicator>>(const std::string& group, int rank,
                                                              int world_size, Device* device)>
      join;
  // As JoinDevices::link (worker/join_ranks.h); null: links go through the host.
  std::function<absl::StatusOr<std::unique_ptr<StageLink>>(const GroupOptions&, Device* device,
                                                           std::unique_ptr<StageLink> host)>
      join_link;
};
using MakeRankDevice = std::function<absl::StatusOr<RankDevice>(int rank)>;
MakeRankDevice CpuRanks(int threads_per_rank = 1, CpuIsa isa = CpuIsa::kBest);

class RankGroup {
 public:
  // Loads the checkpoint on every rank, profiles, and allocates `num_blocks`.
  static absl::StatusOr<std::unique_ptr<RankGroup>> Load(const std::string& path, int world_size,
                                                         const ModelRunnerOptions& options,
                                                         int32_t num_blocks,
                                                         const MakeRankDevice& make_device = CpuRanks(),
                                                         LoadFormat format = LoadFormat::kAuto);

  // The step on all ranks at once; the reply of the last stage's rank 0, or the lowest rank's error.
  absl::StatusOr<v1::StepReply> Execute(const v1::StepRequest& request);

  // ModelRunner::SelfCheck on all ranks at once; the fingerprint of the last stage's rank 0.
  absl::StatusOr<uint64_t> SelfCheck();

  // Every rank releases all memory and takes the memory back; the weights come from a backup on the host, or
  // with kDiscard from the checkpoint.
  absl::Status SleepAndWake(RestoreMode weights);

  const ModelConfig& config() const { return checkpoint_->config(); }
  const Checkpoint& checkpoint() const { return *checkpoint_; }
  ModelRunner& runner(int rank) { return *ranks_[rank].runner; }
  SleepableAllocator& allocator(int rank) { return *ranks_[rank].allocator; }
  Device& device(int rank) { return *ranks_[rank].device; }
  VmmDriver& driver(int rank) { return *ranks_[rank].driver; }
  int world_size() const { return static_cast<int>(ranks_.size()); }
  int num_stages() const { return num_stages_; }

 private:
  struct Rank {
    std::unique_ptr<VmmDriver> driver;
    std::unique_ptr<SleepableAllocator> allocator;
    std::unique_ptr<Device> device;
    std::unique_ptr<Communicator> communicator;
    std::unique_ptr<ModelRunner> runner;
  };
  // The rank that samples.
  int sampling_rank() const { return world_size() - world_size() / num_stages_; }
  // The stage's communicator with the links to the stages beside.
  absl::StatusOr<std::unique_ptr<Communicator>> JoinRank(int rank, const std::string& group,
                                                         const RankDevice& device, Device* open) const;
  absl::Status LoadRank(int rank, int world_size, const std::string& group, const ModelRunnerOptions& options,
                        int32_t num_blocks, const MakeRankDevice& make_device);
  template <typename F>
  absl::Status OnAllRanks(F f);

  std::unique_ptr<Checkpoint> checkpoint_;
  std::vector<Rank> ranks_;
  int num_stages_ = 1;
};

}  // namespace somnus
