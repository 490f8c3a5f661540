#pragma once
// The report of an engine's state (coordinator/residency/state_report.h), from a snapshot of the engine.

#include "coordinator/engine/engine_stats.h"
#include "coordinator/residency/state_report.h"

namespace somnus {

StateReport ReportState(const EngineStats& stats);

}  // namespace somnus
