#pragma once
// The outcome of a launched step, of which the reply is made: where the tokens will be, and which sequences
// the tokens belong to.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/synchronization/notification.h"
#include "kernels/device.h"
#include "proto/worker.pb.h"
#include "worker/comm/communicator.h"
#include "worker/runner/expert_load.h"
#include "worker/runner/model_runner.h"
#include "worker/runner/row_pooler.h"
#include "worker/runner/sampler.h"

namespace somnus {

// Shared by the runner, which takes the tokens into the batch state, and the PendingStep that makes the
// reply.
struct StepOutcome {
  // The place in the batch state of a token that is not known there yet.
  struct Unknown {
    int32_t slot = 0;
    int64_t generation = 0;
    int32_t index = 0;
    size_t row = 0;  // of the sampled token
  };

  v1::StepReply reply;  // all but the tokens and the pooled vectors
  SampledRows sampled;
  PooledVectors pooled;
  ExpertCounts experts;
  bool reports_tokens = false;  // rank 0
  int32_t vocab_size = 0;
  std::vector<Unknown> unknown;       // for each sampled row without a draft; none on a synchronous device
  std::unique_ptr<DeviceEvent> done;  // nullptr: nothing was run
  const Communicator* communicator = nullptr;
  absl::Notification read;  // the device is past the step, and the results' memory may be used again
  absl::Status status;      // of Wait; known once `read`

  // Ok once the device has done the step. A row without a token is no error of the step.
  absl::Status Wait() const;
  // Records the result of Wait, and lets the runner go on.
  void SetRead(absl::Status result);
};

std::unique_ptr<PendingStep> MakePendingStep(std::shared_ptr<StepOutcome> outcome);

}  // namespace somnus
