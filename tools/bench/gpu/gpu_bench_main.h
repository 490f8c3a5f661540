#pragma once
// gpu_bench: the flags and the parts, over the machine that is measured.

#include <functional>

#include "absl/status/statusor.h"
#include "tools/bench/decode/decode_loop.h"
#include "tools/bench/gpu/ceilings.h"
#include "tools/bench/gpu/chunk_sweep.h"
#include "tools/bench/gpu/gpu_bench_flags.h"
#include "tools/bench/gpu/kernel_table.h"

namespace somnus {

// A GPU, or the emulator with less to do (tests/cuda/gpu_bench_emulated.cc).
struct GpuBenchMachine {
  std::function<absl::StatusOr<LoopDevice>(int device_index, int64_t chunk_bytes)> open;
  std::function<absl::StatusOr<GpuCeilings>(int device_index)> measure_ceilings;
  GpuBenchFlags defaults;
  KernelSizes kernel_sizes;
  ChunkSweep chunk_sweep;
};

// Runs the command line. Returns the exit code: 1 where a part failed, 2 for wrong flags.
int GpuBenchMain(int argc, char** argv, const GpuBenchMachine& machine);

}  // namespace somnus
