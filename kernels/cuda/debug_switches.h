#pragma once
// Parts that can be turned off, to find the origin of a fault, by the environment variable
// SOMNUS_CUDA_DISABLE: names separated by commas, the same on all ranks. No CUDA here.

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace somnus {

struct DebugSwitches {
  bool programmatic_launch = true;  // kernels that start while the previous kernel still runs
  bool fused_all_reduce = true;     // all-reduce + add + RMSNorm in one kernel
  bool cublaslt = true;             // matrix products by the vendor's library
  bool peer_memory = true;          // collectives over memory that ranks map from each other
};

// InvalidArgument names the word that is no switch, and all switches.
absl::StatusOr<DebugSwitches> ParseDebugSwitches(absl::string_view disabled);
// Parses SOMNUS_CUDA_DISABLE of this process's environment.
absl::StatusOr<DebugSwitches> ReadDebugSwitches();

}  // namespace somnus
