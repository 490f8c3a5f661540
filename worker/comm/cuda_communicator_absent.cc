#include "worker/comm/cuda_communicator.h"

namespace somnus {

absl::StatusOr<std::unique_ptr<Communicator>> MakeCudaCommunicator(GroupOptions options, Device* device) {
  return absl::UnimplementedError("this worker was built without CUDA");
}

absl::StatusOr<std::unique_ptr<StageLink>> MakeCudaLink(GroupOptions options, const std::string& gpu,
                                                        Device* device, std::unique_ptr<StageLink> host) {
  return absl::UnimplementedError("this worker was built without CUDA");
}

}  // namespace somnus
