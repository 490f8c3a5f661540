#pragma once
// ControlService.UpdateWeights: from the client's stream to the engine. Internal to coordinator/api.

#include "absl/time/time.h"
#include "coordinator/engine/engine.h"
#include "proto/control.grpc.pb.h"

namespace somnus {

// Blocks until the client has finished the update or has left, and the ranks have what it sent. A client that
// sends nothing for longer than `max_silence` is one that has left: the update holds other calls back.
grpc::Status ReceiveWeights(Engine* engine, grpc::ServerContext* context,
                            grpc::ServerReader<v1::UpdateWeightsRequest>* reader,
                            v1::UpdateWeightsResponse* response, absl::Duration max_silence);

}  // namespace somnus
