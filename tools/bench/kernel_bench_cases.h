#pragma once
// The measured ops of kernel_bench.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "kernels/device.h"

namespace somnus {

// The shapes of a decoder model.
struct BenchModel {
  std::string name;
  int64_t layers, hidden, intermediate, heads, kv_heads, head_dim, vocab;
  bool qk_norm;
};
const std::vector<BenchModel>& BenchModels();

// The peak that bounds an op's arithmetic.
enum class BenchPeak { kF32, kBF16, kInt8 };

struct BenchResult {
  std::string model, op;
  double best_seconds = 0;
  double median_seconds = 0;
  double bytes = 0;  // that must be read at least; 0 where memory is not the limit
  double flops = 0;
  BenchPeak peak = BenchPeak::kBF16;
};

struct BenchOptions {
  int repeats = 15;
  std::string filter;  // only ops whose name contains this
  // Measures processor time of the calling thread, which depends less on other work on the machine than
  // elapsed time: for a device of one thread.
  bool processor_time = false;
};

// Calls `report` with the result of each op that is wanted. Allocates the model's weights with random
// content.
void RunBenchCases(Device& device, const BenchModel& model, const BenchOptions& options,
                   const std::function<void(const BenchResult&)>& report);

}  // namespace somnus
