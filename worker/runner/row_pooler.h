#pragma once
// Makes one vector of the final hidden states of a prompt, for sequences that pool (StepPooling), on the rank
// that makes replies. The vector of a slot grows on the device while chunks of the prompt are computed, one
// row after the other: the vector does not depend on the chunks, nor on other sequences of the steps.
//
// Memory on the device is carved from the runner's workspace. Used by the runner thread alone.

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/device.h"
#include "kernels/ops.h"
#include "proto/worker.pb.h"
#include "worker/model/carver.h"
#include "worker/runner/batch_state.h"
#include "worker/runner/staging.h"
#include "worker/runner/step_arrays.h"

namespace somnus {

// The vectors that a step has completed, in a host buffer of the pooler, once the device has done the step.
struct PooledVectors {
  std::vector<int32_t> slots;
  const float* vectors = nullptr;  // [slots, width]: row s is slot s's
  int64_t width = 0;

  // Adds a vector for each slot, or a slot error where a number is not finite.
  void FillReply(v1::StepReply* reply) const;
};

class RowPooler {
 public:
  // width: of the hidden states.
  RowPooler(int32_t max_num_seqs, int64_t width);

  void Carve(Carver* carver) { results_.Carve(carver); }
  // As MirroredBlock::Bind.
  absl::Status Bind(Device* device);

  // Queues the pooling of the step's rows, and the copies of the vectors that the step completes. hidden: act
  // [T, width]. Errors are the device's.
  absl::StatusOr<PooledVectors> Run(const TensorView& hidden, absl::Span<const PoolingPart> parts,
                                    const BatchState& state, SideStage* side);

 private:
  const int32_t max_num_seqs_;
  const int64_t width_;
  Device* device_ = nullptr;
  MirroredBlock results_;
  MirroredBlock::Array<float> vectors_;  // [max_num_seqs, width]
  std::vector<PooledRows> pools_;
};

}  // namespace somnus
