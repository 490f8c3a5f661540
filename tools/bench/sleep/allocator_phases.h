#pragma once
// Sleep and wake-up of the allocator alone, on host memory: no engine, no model.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "allocator/sleepable_allocator.h"
#include "tools/bench/sleep/phase_table.h"

namespace somnus {

struct AllocatorPhasesOptions {
  int64_t weights_bytes = 0;  // saved at level 1
  int64_t kv_bytes = 0;       // discarded
  int threads = 1;
  std::string spill_dir;  // of BackupPolicy::kFile
};

// One round with one policy: a first sleep at level 1, a wake-up, a second sleep, a wake-up, a sleep at level
// 2 and a wake-up, which restores nothing. DataLoss when the weights did not come back.
absl::Status MeasureAllocator(BackupPolicy policy, const AllocatorPhasesOptions& options,
                              const SleepFloors& floors, PhaseTable* table);

}  // namespace somnus
