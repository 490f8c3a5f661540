#include "worker/comm/cuda_communicator.h"

namespace somnus {

absl::StatusOr<std::unique_ptr<Communicator>> MakeCudaCommunicator(GroupOptions options, Device* device) {
  return absl::UnimplementedError("this worker was built without CUDA");
}

}  // namespace somnus
