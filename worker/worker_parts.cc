#include "worker/worker_parts.h"

#include <fstream>
#include <iterator>

#include "allocator/cuda_vmm_driver.h"
#include "allocator/host_vmm_driver.h"
#include "checkpoint/checkpoint_stamp.h"
#include "checkpoint/fingerprint.h"
#include "kernels/cuda/check.h"
#include "worker/comm/cuda_communicator.h"

namespace somnus {
namespace {

// A GPU has its own; limits of the host's are those of a control group (allocator/host_memory.h).
std::string MemoryPool(DeviceKind device, int device_index) {
  if (device != DeviceKind::kCpu) return CudaPciBusId(device_index).value_or("");
  std::ifstream file("/proc/self/cgroup");
  return std::string(std::istreambuf_iterator<char>(file), {});
}

}  // namespace

WorkerParts RealWorkerParts() {
  WorkerParts parts;
  parts.check_device = [](const WorkerOptions& options) {
    return options.device == DeviceKind::kCpu ? absl::OkStatus() : CheckCudaDevice(options.device_index);
  };
  parts.open_device = [](const WorkerOptions& options, const CpuDeviceOptions& cpu) {
    return options.device == DeviceKind::kCpu ? Device::CreateCpu(cpu)
                                              : Device::CreateCuda(options.device_index);
  };
  parts.open_memory = [](const WorkerOptions& options,
                         int num_threads) -> absl::StatusOr<std::unique_ptr<VmmDriver>> {
    if (options.device == DeviceKind::kCpu)
      return MakeHostVmmDriver({.num_threads = num_threads, .numa_nodes = options.memory_nodes});
    return MakeCudaVmmDriver(options.device_index,
                             {.chunk_bytes = options.device_chunk_bytes, .numa_nodes = options.memory_nodes});
  };
  parts.numa_nodes = [] { return ReadNumaNodes(); };
  parts.cpu_topology = [] { return ReadCpuTopology(); };
  parts.gpu_node = [](int device_index) -> std::optional<int> {
    const absl::StatusOr<std::string> bus_id = CudaPciBusId(device_index);
    return bus_id.ok() ? NumaNodeOfPciDevice(*bus_id) : std::nullopt;
  };
  parts.memory_pool = MemoryPool;
  parts.join_devices = MakeCudaCommunicator;
  parts.join_device_link = MakeCudaLink;
  parts.open_checkpoint = Checkpoint::Open;
  parts.fingerprint = CheckpointFingerprint;
  parts.stamp = TakeCheckpointStamp;
  parts.load_runner = ModelRunner::Load;
  return parts;
}

}  // namespace somnus
