#pragma once
// An update of a rank's weights by chunks (proto/worker.proto, "Weights"): the tensors that have come, and
// the stream that may send more. At most one update is under way; a further Begin drops the update before.
//
// Every stream has a number, which OpenStream gives. The numbers of older streams are refused from then on:
// the sender of such a stream is lost, or does not know better.
//
// Owns the tensors, which borrow the runner. For the runner thread alone. Errors of the Require functions are
// FailedPrecondition.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/worker.pb.h"
#include "worker/model/updated_tensors.h"

namespace somnus {

class RankUpdate {
 public:
  // InvalidArgument: the id is empty or too long.
  static absl::Status CheckId(const std::string& id);

  void Begin(const std::string& id, std::unique_ptr<UpdatedTensors> tensors);
  // The update is over, finished or not. Without an update Drop does nothing.
  void Drop() { under_way_.reset(); }

  // Ok while this update is under way. The error names the call.
  absl::Status Require(const std::string& id, const char* call) const;
  // Ok for the stream that may send.
  absl::Status RequireStream(uint64_t stream) const;

  // Drops an unfinished tensor of the stream before.
  absl::StatusOr<uint64_t> OpenStream(const std::string& id);
  // InvalidArgument: the stream ended within a tensor, which is dropped.
  absl::StatusOr<v1::WorkerUpdateWeightsResponse> CloseStream(uint64_t stream);
  // The tensors and bytes of all streams of the update.
  absl::StatusOr<v1::WorkerUpdateWeightsResponse> Received(const std::string& id) const;

  // While an update is under way:
  UpdatedTensors* tensors() const { return under_way_->tensors.get(); }

 private:
  struct UnderWay {
    std::string id;
    std::unique_ptr<UpdatedTensors> tensors;
    uint64_t stream = 0;  // that may send; 0: none may
  };

  v1::WorkerUpdateWeightsResponse Sums() const;

  std::optional<UnderWay> under_way_;
  uint64_t last_stream_ = 0;
};

}  // namespace somnus
