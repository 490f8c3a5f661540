#pragma once
// The command line of gpu_bench.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/flags.h"

namespace somnus {

struct GpuBenchFlags {
  std::vector<std::string> parts = {"ceilings", "kernels", "model", "sleep", "load", "chunks"};
  std::string model = "tools/bench/shapes/qwen3-8b";
  std::optional<std::string> only;
  std::optional<double> seconds;
  std::string json_lines;
  std::vector<int32_t> batches = {1, 8, 32, 128, 256};
  int32_t prompt_tokens = 512;
  int32_t new_tokens = 64;
  int32_t prefill_tokens = 4096;
  bool enforce_eager = false;
  bool batch_invariant = false;
  std::string load_checkpoint;
  int32_t device_index = 0;
  double sleep_kv_share = 0.9;
  int64_t device_chunk_bytes = int64_t{1} << 30;
  int64_t chunk_sweep_bytes = int64_t{64} << 30;
};

FlagTable GpuBenchFlagTable(GpuBenchFlags* flags);

}  // namespace somnus
