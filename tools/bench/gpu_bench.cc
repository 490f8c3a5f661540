// Measures the GPU's ceilings, then each op beside its ceiling, then whole models with random weights
// (decode, prefill, sleep and wake-up), then loading weights from a file, then the driver's memory in pieces.
//
//   gpu_bench --parts=kernels,model,sleep,load,chunks --model=tools/bench/shapes/qwen3-8b
//   [--json-lines=rows.jsonl] [--seconds=60] [--batches=1,8,32,128,256]

#include "allocator/cuda_vmm_driver.h"
#include "base/status_macros.h"
#include "tools/bench/gpu/cuda_ceilings.h"
#include "tools/bench/gpu/gpu_bench_main.h"

namespace somnus {
namespace {

absl::StatusOr<LoopDevice> OpenGpu(int device_index, int64_t chunk_bytes) {
  LoopDevice gpu;
  ASSIGN_OR_RETURN(gpu.driver, MakeCudaVmmDriver(device_index, {.chunk_bytes = chunk_bytes}));
  ASSIGN_OR_RETURN(gpu.device, Device::CreateCuda(device_index));
  return gpu;
}

}  // namespace
}  // namespace somnus

int main(int argc, char** argv) {
  somnus::GpuBenchMachine machine;
  machine.open = somnus::OpenGpu;
  machine.measure_ceilings = somnus::MeasureCeilings;
  return somnus::GpuBenchMain(argc, argv, machine);
}
