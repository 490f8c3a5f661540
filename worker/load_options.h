#pragma once
// How a worker runs a model: the options of the coordinator's LoadModelRequest, checked, and combined with
// the options that the worker was started with. Pure functions.

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "allocator/sleepable_allocator.h"
#include "kernels/device.h"
#include "proto/worker.pb.h"
#include "worker/model/shards.h"
#include "worker/placement.h"
#include "worker/runner/model_runner.h"

namespace somnus {

// The options that a worker was started with. The rest comes with LoadModel.
struct WorkerOptions {
  DeviceKind device = DeviceKind::kCpu;
  bool device_is_fixed = false;  // by --device: a request for the other kind is refused
  int device_index = 0;          // of the GPU
  // As CudaVmmDriverOptions::chunk_bytes; LoadModel may set another.
  int64_t device_chunk_bytes = int64_t{1} << 30;
  int num_threads = 0;  // of the CPU device; 0: as LoadModel says
  // As in PlacementRequest.
  bool pins = false;
  std::optional<int> first_cpu;
  std::string numa;                                // as ParseNumaOption takes it; empty: as LoadModel says
  std::vector<int> memory_nodes;                   // of what it loads: chosen (Placement)
  absl::Duration step_timeout = absl::Minutes(5);  // a step that takes longer hangs
};

struct LoadOptions {
  ModelRunnerOptions runner;
  DeviceKind device = DeviceKind::kCpu;
  int64_t device_chunk_bytes = 0;
  BackupPolicy backup = BackupPolicy::kRetain;  // of the weights at level 1
  std::string spill_dir;                        // of kFile
  // BACKUP_POLICY_FILE without a spill_dir: weights that the checkpoint has need no backup of their own;
  // `backup` is then for those of an update.
  bool checkpoint_is_backup = false;
  PlacementRequest placement;  // but for the node of a GPU
  int ranks_on_host = 1;       // this one and those of other groups among them
  // (0, 1]. On a GPU, the share of its memory for everything; on a host, the share of what is left after
  // profiling for the KV cache of all ranks there.
  double memory_utilization = 0.5;
};

// 0.5 of a host, which others use too; 0.9 of a GPU.
double DefaultMemoryUtilization(DeviceKind device);

// How many ranks divide the layers of a stage.
inline int RanksOfStage(const v1::ParallelConfig& parallel) {
  return parallel.world_size() / std::max(1, parallel.num_stages());
}
// The stage of the rank of `parallel`, whose numbers MakeLoadOptions has checked.
PipelinePlace PlaceInPipeline(const v1::ParallelConfig& parallel);

// InvalidArgument names the field; FailedPrecondition when the worker was started for another device.
absl::StatusOr<LoadOptions> MakeLoadOptions(const v1::LoadModelRequest& request, const WorkerOptions& worker);

}  // namespace somnus
