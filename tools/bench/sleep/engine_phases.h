#pragma once
// Sleep and wake-up of a whole engine: a coordinator and its workers, as real processes.

#include <string>

#include "absl/status/status.h"
#include "tools/bench/sleep/phase_table.h"
#include "tools/bench/sleep/served_engine.h"

namespace somnus {

struct EnginePhasesOptions {
  ServedEngineOptions engine;
  int threads = 1;  // that measure the floors
  bool switches = true;
  int turns = 3;  // turns of each of two models
  bool backups = true;
  std::string spill_dir;  // of backups in files; empty: none
};

// One round. A first engine is started, asked for first tokens, and ended after a sleep at level 2 that says
// how much memory the engine has. The floors of that much memory are measured with `threads` threads, while
// nothing runs, and added to the table. A second engine sleeps and wakes twice at level 1 and once at level
// 2, and reads its weights again and gets new weights from a trainer. Then two such models take turns, and at
// last an engine sleeps with each kind of backup.
absl::Status MeasureEngine(const EnginePhasesOptions& options, PhaseTable* table);

}  // namespace somnus
