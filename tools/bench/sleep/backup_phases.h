#pragma once
// Level 1 by what the weights sleep in: how long it takes, and how much memory the host spends meanwhile.

#include <string>

#include "absl/status/status.h"
#include "tools/bench/sleep/phase_table.h"
#include "tools/bench/sleep/served_engine.h"

namespace somnus {

// One round: an engine for each of --backup=retain, release, compress and file, where the checkpoint is the
// backup, and for file once more with files in `spill_dir`, unless it is empty. Each sleeps and wakes twice;
// parts of the second time are shown. Does nothing where the flags of `options` choose a backup.
absl::Status MeasureBackups(const ServedEngineOptions& options, const std::string& spill_dir,
                            PhaseTable* table);

}  // namespace somnus
