#pragma once
// The speeds that no sleep or wake-up of host memory can beat, measured without the allocator: the speed of
// page faults, of copies, of giving memory back, and of the disk.

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "tools/bench/sleep/phase_table.h"

namespace somnus {

// Over `bytes` of memory in huge pages, with `threads` threads; with `spill_dir` also over a file there of at
// most 256 MiB. Takes some tenths of a second; call it while nothing else is measured.
absl::StatusOr<SleepFloors> MeasureFloors(int64_t bytes, int threads, const std::string& spill_dir);

}  // namespace somnus
