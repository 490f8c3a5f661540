#pragma once
// Named ranges of a host thread, which Nsight Systems shows beside the device's kernels (NVTX, which is
// headers alone; without a tool a range costs the read of a pointer). Nothing in builds without CUDA.

#ifdef SOMNUS_NVTX
#include <nvtx3/nvToolsExt.h>
#endif

namespace somnus {

// The range lasts from construction to destruction, on the same thread; ranges nest.
class TraceRange {
 public:
#ifdef SOMNUS_NVTX
  explicit TraceRange(const char* name) { nvtxRangePushA(name); }
  ~TraceRange() { nvtxRangePop(); }
#else
  explicit TraceRange(const char*) {}
  ~TraceRange() {}
#endif
  TraceRange(const TraceRange&) = delete;
  TraceRange& operator=(const TraceRange&) = delete;
};

}  // namespace somnus
