#pragma once
// Facts about the model and the server, for gateways. Pure functions. Internal to coordinator/grpc/gateway.

#include "coordinator/engine/engine_stats.h"
#include "coordinator/grpc/gateway/wire.h"
#include "coordinator/openai/served_model.h"

namespace somnus::gateway {

wire::GetModelInfoResponse ModelInfo(const ServedModel& model);
// Without the times, which the service knows.
wire::GetServerInfoResponse ServerInfo(const ServedModel& model, const EngineStats& stats);

// Sequences that run at once in all replicas together.
int32_t MaxNumSeqs(const ServedModel& model, const EngineStats& stats);

}  // namespace somnus::gateway
