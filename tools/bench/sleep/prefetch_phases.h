#pragma once
// Wake-ups from level 2 whose checkpoint is on the disk, and not in the page cache: read by the wake-up
// itself, and prefetched while another model ran.

#include <cstdint>

#include "absl/status/status.h"
#include "tools/bench/sleep/phase_table.h"
#include "tools/bench/sleep/served_engine.h"

namespace somnus {

// One round: the model of `options` twice, under two names, with memory for one, which takes `model_bytes`,
// and none for backups; each wakes `turns` times in either way. Needs no privilege: the pages of a file go
// where nobody has mapped them. Where its file system keeps them (tmpfs), both times are those of a copy.
absl::Status MeasurePrefetch(const ServedEngineOptions& options, int64_t model_bytes, int turns,
                             PhaseTable* table);

}  // namespace somnus
