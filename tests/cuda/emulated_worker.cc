// The worker with the emulator as its GPU: a whole cluster of real processes on a machine without a GPU
// (tests/cluster/emulated_gpu_test.py). The worker fails at the moments that SOMNUS_FAULTS names
// (tests/worker/moments.h). Never shipped.

#include <memory>
#include <utility>

#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/emulated_device.h"
#include "kernels/cuda/peer/all_reduce.h"
#include "kernels/emulator/options.h"
#include "tests/cuda/emulated_vmm_driver.h"
#include "tests/worker/faulty_memory.h"
#include "tests/worker/moments.h"
#include "worker/comm/device_group.h"
#include "worker/worker_main.h"

namespace somnus {
namespace {

// Ranks wait for each other across processes, and the emulator sees only one process: a wait up to this long
// is no deadlock.
constexpr int64_t kSpinLimitMs = 10 * 60 * 1000;

absl::StatusOr<std::unique_ptr<Communicator>> JoinEmulated(GroupOptions options, Device* device) {
  cuda_emulated::CudaDevice& cuda = cuda_emulated::AsCuda(*device);
  options.stream = cuda.stream();
  const MakePeers make_peers = [&cuda](const PeerOptions& peers) {
    return cuda_emulated::MakePeerCollectives(cuda, peers);
  };
  return JoinDeviceGroup(options, device, make_peers, absl::UnavailableError("the emulator has none"));
}

WorkerParts EmulatedWorkerParts() {
  WorkerParts parts = RealWorkerParts();
  const WorkerParts real = parts;
  parts.check_device = [real](const WorkerOptions& options) {
    return options.device == DeviceKind::kCpu ? real.check_device(options)
                                              : CheckEmulatedCudaDevice(options.device_index);
  };
  parts.open_device = [real](const WorkerOptions& options, const CpuDeviceOptions& cpu) {
    if (options.device == DeviceKind::kCpu) return real.open_device(options, cpu);
    // Ranks run their threads in different orders.
    return CreateEmulatedCudaDevice(
        {.index = options.device_index, .seed = 1 + static_cast<uint64_t>(options.device_index)});
  };
  parts.open_memory = [real](const WorkerOptions& options,
                             int num_threads) -> absl::StatusOr<std::unique_ptr<VmmDriver>> {
    if (options.device == DeviceKind::kCpu) return real.open_memory(options, num_threads);
    return std::make_unique<FaultyMemory>(std::make_unique<EmulatedVmmDriver>(options.device_chunk_bytes));
  };
  parts.join_devices = JoinEmulated;
  parts.join_device_link = nullptr;
  return parts;
}

}  // namespace
}  // namespace somnus

int main(int argc, char** argv) {
  somnus::cuda_emulated::emulator::Options options = somnus::cuda_emulated::emulator::GetOptions();
  options.spin_limit_ms = somnus::kSpinLimitMs;
  options.find_races = false;  // The kernels' own tests look for races; clusters shall be quick.
  somnus::cuda_emulated::emulator::SetOptions(options);
  somnus::SetMomentRank({argv, argv + argc});
  somnus::WatchCalls();
  return somnus::WorkerMain(argc, argv, somnus::EmulatedWorkerParts());
}
