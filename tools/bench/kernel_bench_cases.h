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

struct BenchResult {
  std::string model, op;
  double best_seconds = 0;
  double median_seconds = 0;
  double bytes = 0;  // that must be read at least; 0 where memory is not the limit
  double flops = 0;
  bool uses_bf16 = true;
};

// Calls `report` with the result of each op whose name contains `filter`. Allocates the model's weights with
// random content.
void RunBenchCases(Device& device, const BenchModel& model, int repeats, const std::string& filter,
                   const std::function<void(const BenchResult&)>& report);

}  // namespace somnus
