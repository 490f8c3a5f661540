#pragma once
// ControlService.UpdateWeights: from the client's stream to the engine. Internal to coordinator/api.

#include <functional>
#include <string>

#include "absl/time/time.h"
#include "coordinator/engine/engine.h"
#include "proto/control.grpc.pb.h"

namespace somnus {

// Finds the engine of the model that the first message of an update names.
using FindEngine = std::function<grpc::Status(const std::string& model, Engine** engine)>;

// Blocks until the client has finished the update or has left, and the ranks have what it sent. A client that
// sends nothing for longer than `max_silence` is one that has left: the update holds other calls back.
grpc::Status ReceiveWeights(const FindEngine& find, grpc::ServerContext* context,
                            grpc::ServerReader<v1::UpdateWeightsRequest>* reader,
                            v1::UpdateWeightsResponse* response, absl::Duration max_silence);

}  // namespace somnus
