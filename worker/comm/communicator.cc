#include "worker/comm/communicator.h"

#include "base/check.h"
#include "base/status_macros.h"

namespace somnus {

absl::Status Communicator::AllReduceAddRmsNorm(Device& device, const TensorView& residual,
                                               const TensorView& delta, const float* weight, double eps,
                                               const TensorView& out) {
  SOMNUS_CHECK(delta.stride == delta.cols);
  if (world_size() > 1) {
    if (!stream_ordered()) RETURN_IF_ERROR(device.Synchronize());
    RETURN_IF_ERROR(AllReduceSum(delta.data, delta.rows * delta.cols, delta.dtype));
  }
  AddRmsNorm(device, residual, delta, weight, eps, out);
  return absl::OkStatus();
}

absl::Status Communicator::SendToNextStage(const void* /*data*/, int64_t /*bytes*/) {
  return absl::FailedPreconditionError("there is no next stage");
}

absl::Status Communicator::ReceiveFromPreviousStage(void* /*data*/, int64_t /*bytes*/) {
  return absl::FailedPreconditionError("there is no previous stage");
}

}  // namespace somnus
