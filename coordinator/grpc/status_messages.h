#pragma once
// Parts of an engine's snapshot as messages of ControlService. Pure functions. Internal to coordinator/grpc.

#include "base/heartbeat.h"
#include "coordinator/engine/engine.h"
#include "coordinator/engine/engine_report.h"
#include "coordinator/http/api_error.h"
#include "proto/control.pb.h"

namespace somnus {

// Sets nothing while requests are served.
void Fill(const StateReport& report, v1::StateReport* out);
// Why requests are not served, and the report of the state. A thread that hangs is a reason, too.
template <typename Status>
void FillReasons(const Engine& engine, const EngineStats& stats, Status* status) {
  const absl::Status alive = Heartbeats::OfProcess().Check();
  status->set_not_ready_reason(CleanMessage((alive.ok() ? engine.Health() : alive).message()));
  const StateReport report = ReportState(stats);
  if (!report.serving()) Fill(report, status->mutable_state_report());
}
// Sets nothing where no call is under way.
void Fill(const LifecycleCallStats& call, v1::GetStatusResponse* response);
void AddReplicas(const EngineStats& stats, v1::GetStatusResponse* response);

}  // namespace somnus
