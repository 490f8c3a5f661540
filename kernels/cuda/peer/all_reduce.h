#pragma once
// The CUDA backend of kernels/peer_collectives.h. Ranks are processes, each with a device of its own or
// sharing one, or threads of a process that share a device (tests).

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/peer_collectives.h"

namespace somnus::SOMNUS_CUDA_NAMESPACE {

// Borrows the device. The caller must be the device's thread. InvalidArgument for a group or buffer that is
// out of range, ResourceExhausted without memory, Unavailable when peer memory is turned off or the device (a
// slice of a GPU, say) is too small to run all blocks of a collective at once.
absl::StatusOr<std::unique_ptr<PeerCollectives>> MakePeerCollectives(CudaDevice& device,
                                                                     const PeerOptions& options);

}  // namespace somnus::SOMNUS_CUDA_NAMESPACE
