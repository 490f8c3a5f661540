#pragma once
// Level 1 by what the weights sleep in: how long it takes, and how much memory the host spends meanwhile.

#include "absl/status/status.h"
#include "tools/bench/sleep/phase_table.h"
#include "tools/bench/sleep/served_engine.h"

namespace somnus {

// One round: an engine for each of --backup=retain, release and file, where the checkpoint is the backup.
// Each sleeps and wakes twice; the second time counts. Does nothing where the flags of `options` choose a
// backup.
absl::Status MeasureBackups(const ServedEngineOptions& options, PhaseTable* table);

}  // namespace somnus
