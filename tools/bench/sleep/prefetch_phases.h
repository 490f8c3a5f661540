#pragma once
// Wake-ups from level 2 with the checkpoint on the disk, and not in the page cache: read by the wake-up
// itself, and prefetched while another model ran.

#include <cstdint>

#include "absl/status/status.h"
#include "tools/bench/sleep/phase_table.h"
#include "tools/bench/sleep/served_engine.h"

namespace somnus {

// One round: the model of `options` twice, under two names, with memory for one model, which takes
// `model_bytes`, and no memory for backups; each model wakes `turns` times in either way. Needs no privilege:
// the kernel drops pages of a file that nobody has mapped. Where the file system keeps the pages (tmpfs),
// both times are the times of a copy.
absl::Status MeasurePrefetch(const ServedEngineOptions& options, int64_t model_bytes, int turns,
                             PhaseTable* table);

}  // namespace somnus
