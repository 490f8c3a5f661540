#include "worker/comm/cuda_communicator.h"

#include <utility>

#include "base/check.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/peer/all_reduce.h"

namespace somnus {

absl::StatusOr<std::unique_ptr<Communicator>> MakeCudaCommunicator(GroupOptions options, Device* device) {
  SOMNUS_CHECK(device->kind() == DeviceKind::kCuda);
  cuda_device::CudaDevice& cuda = cuda_device::AsCuda(*device);
  options.stream = cuda.stream();
  const MakePeers make_peers = [&cuda](const PeerOptions& peers) {
    return cuda_device::MakePeerCollectives(cuda, peers);
  };
  return JoinDeviceGroup(options, device, make_peers, NcclApi::Load());
}

absl::StatusOr<std::unique_ptr<StageLink>> MakeCudaLink(GroupOptions options, const std::string& gpu,
                                                        Device* device, std::unique_ptr<StageLink> host) {
  SOMNUS_CHECK(device->kind() == DeviceKind::kCuda);
  options.stream = cuda_device::AsCuda(*device).stream();
  return JoinDeviceLink(options, gpu, device, std::move(host), NcclApi::Load());
}

}  // namespace somnus
