#pragma once
// The parts that a worker makes its model from. Tests pass parts of their own.

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "allocator/sleepable_allocator.h"
#include "allocator/vmm_driver.h"
#include "base/cpu_topology.h"
#include "base/numa.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/checkpoint_stamp.h"
#include "kernels/device.h"
#include "worker/comm/communicator.h"
#include "worker/comm/stage_link.h"
#include "worker/load_options.h"
#include "worker/runner/model_runner.h"

namespace somnus {

class SpillIo;

struct WorkerParts {
  // Ok when the device can be opened; otherwise as CheckCudaDevice (kernels/cuda/check.h). Starts nothing.
  std::function<absl::Status(const WorkerOptions&)> check_device;
  // Open the device, and the driver of its memory.
  std::function<absl::StatusOr<std::unique_ptr<Device>>(const WorkerOptions&, const CpuDeviceOptions&)>
      open_device;
  std::function<absl::StatusOr<std::unique_ptr<VmmDriver>>(const WorkerOptions&, int num_threads)>
      open_memory;
  // As SleepableAllocatorOptions::open_spill_io, also where null.
  std::function<std::unique_ptr<SpillIo>(int fd, int depth)> open_spill_io;
  // The NUMA nodes of the host, and the node of a GPU (gpu_node), where the GPU has a node. Null: no node is
  // known.
  std::function<std::vector<NumaNode>()> numa_nodes;
  // Which CPUs of the host share a core, and how fast each CPU is. Null: no CPUs share a core, and all are
  // equally fast.
  std::function<CpuTopology()> cpu_topology;
  std::function<std::optional<int>(int device_index)> gpu_node;
  // Names the memory that this process takes on its host, and that other processes may share: the share of
  // the process's control group in the host's memory, or the GPU. Null: the host has one memory.
  std::function<std::string(DeviceKind, int device_index)> memory_pool;
  // Joins the group of ranks on GPUs; blocks until all have joined. The device outlives the communicator.
  std::function<absl::StatusOr<std::unique_ptr<Communicator>>(const GroupOptions&, Device*)> join_devices;
  // As JoinDeviceLink (worker/comm/device_link.h), on the device's stream. Null: links go through the host.
  std::function<absl::StatusOr<std::unique_ptr<StageLink>>(const GroupOptions&, const std::string& gpu,
                                                           Device*, std::unique_ptr<StageLink> host)>
      join_device_link;
  std::function<absl::StatusOr<std::unique_ptr<Checkpoint>>(const std::string& path, LoadFormat format)>
      open_checkpoint;
  // As CheckpointFingerprint (checkpoint/fingerprint.h).
  std::function<absl::StatusOr<std::string>(const std::string& path, LoadFormat format)> fingerprint;
  // As TakeCheckpointStamp (checkpoint/checkpoint_stamp.h).
  std::function<absl::StatusOr<CheckpointStamp>(const std::string& path, LoadFormat format)> stamp;
  std::function<absl::StatusOr<std::unique_ptr<ModelRunner>>(const Checkpoint&, const ModelRunnerOptions&,
                                                             Device*, Communicator*, SleepableAllocator*,
                                                             const ModelRunner::Progress&)>
      load_runner;
};
// The parts of the worker binary.
WorkerParts RealWorkerParts();

}  // namespace somnus
