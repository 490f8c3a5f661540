// gpu_bench with the emulator as its GPU, and little to do: the rows can be tested, and a day with a GPU
// rehearsed, on any machine. The times say nothing. Never shipped.

#include "kernels/cuda/emulated_device.h"
#include "kernels/emulator/options.h"
#include "tests/cuda/emulated_vmm_driver.h"
#include "tools/bench/gpu/gpu_bench_main.h"

namespace somnus {
namespace {

absl::StatusOr<LoopDevice> OpenEmulated(int device_index, int64_t chunk_bytes) {
  LoopDevice emulated{.driver = std::make_unique<EmulatedVmmDriver>(chunk_bytes)};
  auto device = CreateEmulatedCudaDevice({.index = device_index});
  if (!device.ok()) return device.status();
  emulated.device = *std::move(device);
  return emulated;
}

GpuBenchMachine Emulated() {
  constexpr int64_t kMiB = int64_t{1} << 20;
  GpuBenchMachine machine{.open = OpenEmulated, .measure_ceilings = [](int) { return GpuCeilings{1, 1, 1}; }};
  machine.kernel_sizes.linear_rows = {1, 8, 64};
  machine.kernel_sizes.activation_rows = {1, 32};
  machine.kernel_sizes.attention = {{1, 64, 1}, {4, 32, 1}, {1, 64, 16}, {2, 32, 32}};
  machine.kernel_sizes.sampled_rows = {1};
  machine.kernel_sizes.kv_bytes = kMiB;
  machine.kernel_sizes.max_repeats = 2;
  machine.chunk_sweep.piece_bytes = {2 * kMiB, 4 * kMiB};
  machine.chunk_sweep.pause = absl::Milliseconds(1);
  machine.defaults.model = "tests/data/tiny/qwen3";
  machine.defaults.batches = {1, 2};
  machine.defaults.prompt_tokens = 16;
  machine.defaults.new_tokens = 4;
  machine.defaults.prefill_tokens = 32;
  machine.defaults.chunk_sweep_bytes = 8 * kMiB;
  return machine;
}

}  // namespace
}  // namespace somnus

int main(int argc, char** argv) {
  somnus::cuda_emulated::emulator::Options options = somnus::cuda_emulated::emulator::GetOptions();
  options.device_bytes = int64_t{1} << 28;  // a share of the bytes becomes the KV cache, which is cleared
  somnus::cuda_emulated::emulator::SetOptions(options);
  return somnus::GpuBenchMain(argc, argv, somnus::Emulated());
}
