#pragma once
// The report of a model that is being started, until the model is served.

#include "absl/time/time.h"
#include "coordinator/residency/state_report.h"

namespace somnus {

// A phase of a start: the work that is being done, or the event that the start waits for. A phase may come
// twice.
enum class StartPhase { kFiles, kBegins, kWorkers, kText, kAdapters, kEnds };

// How far a start is. Plain data.
struct StartProgress {
  StartPhase phase = StartPhase::kFiles;
  // In kWorkers:
  int num_workers = 0;        // that the model needs
  int num_come = 0;           // workers that have registered
  bool have_weights = false;  // every worker has its weights
  int cluster_port = 0;       // where workers of other hosts register; 0: workers are local
};

StateReport ReportStart(const StartProgress& progress, absl::Time since);

}  // namespace somnus
