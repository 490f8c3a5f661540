#pragma once
// The device's memory in pieces of several sizes: how long pieces take to create, map, make accessible, unmap
// and release. A sleep and a wake-up pay for that beside the copies of weights.

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "allocator/vmm_driver.h"
#include "tools/bench/gpu/bench_report.h"

namespace somnus {

struct ChunkSweep {
  // Beside these sizes, a single piece of all bytes is measured.
  std::vector<int64_t> piece_bytes = {int64_t{2} << 20, int64_t{64} << 20, int64_t{192} << 20,
                                      int64_t{1} << 30};
  // A driver clears released memory before it gives the memory out again: each size is measured right after a
  // release, and this long after a release.
  absl::Duration pause = absl::Seconds(1);
};

// Adds rows of the part "chunks" for `bytes` in pieces of each size, by 1 and 4 threads. Each thread has a
// part of the addresses, and makes a single call for access and a single call to unmap. ResourceExhausted:
// the device has less memory left.
absl::Status SweepChunks(VmmDriver& driver, int64_t bytes, const ChunkSweep& sweep, BenchReport& report);

}  // namespace somnus
