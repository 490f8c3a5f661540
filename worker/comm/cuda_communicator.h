#pragma once
// The communicator of a rank on a CUDA device. Unimplemented in a build without CUDA
// (cuda_communicator_absent.cc).

#include <memory>

#include "absl/status/statusor.h"
#include "worker/comm/device_group.h"

namespace somnus {

// JoinDeviceGroup on the device's stream (options.stream is filled in). The device must be the calling
// thread's current device, and outlive the communicator.
absl::StatusOr<std::unique_ptr<Communicator>> MakeCudaCommunicator(GroupOptions options, Device* device);

}  // namespace somnus
