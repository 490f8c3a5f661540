#pragma once
// ControlService's UpdateWeights and DirectUpdateWeights: from the client's stream to the engine. Internal to
// coordinator/grpc.

#include <functional>
#include <string>

#include "absl/time/time.h"
#include "coordinator/engine/caller.h"
#include "coordinator/engine/engine.h"
#include "proto/control.grpc.pb.h"

namespace somnus {

// Finds the engine of the model that the first message of an update names.
using FindEngine = std::function<grpc::Status(const std::string& model, Engine** engine)>;

// The client's stream. Both functions return false when the stream has ended.
struct UpdateMessages {
  std::function<bool(v1::UpdateWeightsRequest* message)> read;
  // Tells the client where to send chunks; null: the update is not direct.
  std::function<bool(const v1::DirectUpdateWeightsResponse::Ports& ports)> write_ports;
};

// The pace that an update, which holds calls back, demands of the client.
struct UpdatePace {
  absl::Duration begin_timeout;  // until the first message
  absl::Duration max_silence;    // until each later message
  // The least rate of tensor bytes, over the time that the update waits for the client beyond max_silence.
  int64_t min_bytes_per_s = 0;
};

// Blocks until the client has finished the update or has left, and the ranks have everything that was sent. A
// client that does not keep the pace counts as gone. The engine's update begins with the first tensor, or,
// when the client writes to the ranks directly, with the first message.
grpc::Status ReceiveWeights(const FindEngine& find, grpc::ServerContext* context, const Caller& caller,
                            const UpdateMessages& messages, v1::UpdateWeightsResponse* response,
                            const UpdatePace& pace);

}  // namespace somnus
