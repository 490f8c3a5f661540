#include "worker/comm/cuda_communicator.h"

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

}  // namespace somnus
