#pragma once
// Times one op at a time on the GPU, for a table beside the ceilings.

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "allocator/sleepable_allocator.h"
#include "checkpoint/model_config.h"
#include "kernels/device.h"
#include "tools/bench/gpu/bench_report.h"
#include "tools/bench/gpu/ceilings.h"

namespace somnus {

// How much the ops are given to do.
struct KernelSizes {
  struct Attention {
    int64_t num_seqs, context, query;  // of the context's tokens the last `query` are computed
  };
  std::vector<int64_t> linear_rows = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 2048, 4096};
  std::vector<int64_t> activation_rows = {1, 32, 256, 4096};
  std::vector<Attention> attention = {{1, 1024, 1},     {1, 32768, 1},  {1, 131072, 1},  {8, 4096, 1},
                                      {32, 4096, 1},    {128, 1024, 1}, {256, 512, 1},   {1, 2048, 2048},
                                      {1, 16384, 2048}, {1, 32768, 64}, {1, 131072, 16}, {4, 512, 512},
                                      {16, 1024, 128}};
  std::vector<int64_t> sampled_rows = {1, 32, 256};
  // K and V of a case lie there as often as there is room, and calls take turns: in a model, the weights have
  // thrown K and V out of the L2 cache before the next step. Several times the largest L2 cache.
  int64_t kv_bytes = int64_t{256} << 20;
  int max_repeats = 200;  // of an op in a graph
};

// Adds a row of the part "kernels" for each op at the shapes of the model, in bf16. Memory comes from the
// allocator and goes back there.
absl::Status MeasureKernels(const ModelConfig& model, const KernelSizes& sizes, const GpuCeilings& ceilings,
                            Device& device, SleepableAllocator& allocator, BenchReport& report);

}  // namespace somnus
