#pragma once
// A checkpoint with an expected.json beside it (see tests/data/tiny/README.md), in a folder or as a GGUF file
// there: runs the cases, and returns how far the results are from transformers' results.

#include <string>

#include "absl/status/statusor.h"
#include "kernels/tensor.h"
#include "tests/runner/rank_group.h"

namespace somnus {

struct GoldenResult {
  double worst = 0;      // largest difference of a prompt token's log-probability; 1e9 for NaN
  std::string mismatch;  // the first greedy token that differs and should not; empty: no such token
  // How far apart transformers' two best logits are where the tokens part from transformers' tokens: the
  // largest such distance, of the cases with "gaps".
  double parted_gap = 0;
};

absl::StatusOr<GoldenResult> RunGolden(const std::string& folder, int world_size, DataType dtype,
                                       const MakeRankDevice& make_device = CpuRanks(),
                                       size_t max_cases = 1000, bool expert_parallel = false);

}  // namespace somnus
