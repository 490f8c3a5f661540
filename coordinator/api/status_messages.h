#pragma once
// Parts of an engine's snapshot as messages of ControlService. Pure functions. Internal to coordinator/api.

#include "coordinator/engine/engine.h"
#include "proto/control.pb.h"

namespace somnus {

// Sets nothing where no call is under way.
void Fill(const LifecycleCallStats& call, v1::GetStatusResponse* response);
void AddReplicas(const EngineStats& stats, v1::GetStatusResponse* response);

}  // namespace somnus
