#pragma once
// Moves the residual stream of a step's tokens between the stages of a pipeline, by the communicator's links.
//
// The stream goes in f32, as the layers hold it, so that a model in stages computes the bits of the same
// model in one stage. Where the communicator's link is stream ordered, the call only queues the message.
// Otherwise an asynchronous device's memory goes through a pinned buffer of the host, which belongs to this
// object, piece by piece, and the call waits for the device. To be called within a step of the device
// (Device::BeginStep). Borrowed, and must outlive this object: device, communicator. Used by the runner
// thread alone.

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/device.h"
#include "kernels/tensor.h"
#include "worker/comm/communicator.h"
#include "worker/model/shards.h"

namespace somnus {

class StageTransfer {
 public:
  StageTransfer(const PipelinePlace& place, Device* device, Communicator* communicator)
      : has_previous_(!place.first()),
        has_next_(!place.last()),
        device_(*device),
        communicator_(*communicator) {}
  ~StageTransfer();
  StageTransfer(const StageTransfer&) = delete;

  // Takes the pinned buffer, where one is needed. ResourceExhausted: there is no memory for the buffer.
  absl::Status Bind();

  // Fills `stream` (f32 [T, hidden], contiguous) with what the previous stage has sent; nothing in the first
  // stage. Ops that are queued afterwards find the numbers.
  absl::Status Receive(const TensorView& stream);
  // Sends `stream`, once the ops that were queued before are done; nothing in the last stage.
  absl::Status Send(const TensorView& stream);

 private:
  const bool has_previous_;
  const bool has_next_;
  Device& device_;
  Communicator& communicator_;
  char* buffer_ = nullptr;
};

}  // namespace somnus
