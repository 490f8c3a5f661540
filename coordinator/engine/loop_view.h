#pragma once
// Draws the picture of an engine loop. For the loop's thread; reads and changes nothing.

#include "base/monotonic.h"
#include "coordinator/engine/engine_view.h"
#include "coordinator/scheduler/scheduler.h"

namespace somnus {

// Takes time in proportion to the bounds of engine_view.h, not to the numbers of requests and blocks.
EngineView DrawView(const Scheduler& scheduler, int32_t replica, int32_t max_requests, MonotonicTime now);

}  // namespace somnus
