#pragma once
// An update of an engine's weights that is under way, and the result of a change of the weights.
//
// Life. Engine::BeginWeightUpdate makes an update; then the client sends tensors, and calls Finish or gives
// the update up by destroying the object. Ownership: the client owns the update, and the engine must live as
// long. Thread safety: an update is for one thread at a time, but for status().

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordinator/residency/weights.h"
#include "proto/weights.pb.h"

namespace somnus {

// The result of a change of the weights.
struct WeightsChange {
  int64_t version = 0;
  std::string fingerprint;   // of the checkpoint, after a reload
  ReceivedWeights received;  // of an update
};

class WeightUpdate {
 public:
  // Gives the update up unless Finish was called: then the weights are stale.
  virtual ~WeightUpdate() = default;
  // Sends a part of a tensor to all ranks. Blocks while a rank takes no more. After an error, which
  // names the rank, the update is of no use any longer.
  virtual absl::Status Send(v1::WeightChunk chunk) = 0;
  // Ok while the update goes on; else the error that has ended the update before Finish. On any thread.
  virtual absl::Status status() const = 0;
  // Where the client of a direct update sends its chunks: ports of all ranks, or none. They are open until
  // the update's end.
  virtual std::vector<v1::UpdatePort> ports() const = 0;
  // The weights have their new version on every rank, or are stale. To be called once. DataLoss: not the same
  // has come to all ranks, or not what is expected.
  virtual absl::StatusOr<WeightsChange> Finish(const std::optional<ReceivedWeights>& expected) = 0;
  absl::StatusOr<WeightsChange> Finish() { return Finish(std::nullopt); }
};

}  // namespace somnus
