#pragma once
// Level 1 with each kind of backup: how long sleep and wake-up take, and how much memory the host spends
// meanwhile.

#include <string>

#include "absl/status/status.h"
#include "tools/bench/sleep/phase_table.h"
#include "tools/bench/sleep/served_engine.h"

namespace somnus {

// One round: an engine for each of --backup=retain, release, compress and file, where the checkpoint is the
// backup, and for file once more with files in `spill_dir`, unless `spill_dir` is empty. Each engine sleeps
// and wakes twice; parts of the second time are shown. Does nothing where the flags of `options` choose a
// backup.
absl::Status MeasureBackups(const ServedEngineOptions& options, const std::string& spill_dir,
                            PhaseTable* table);

}  // namespace somnus
