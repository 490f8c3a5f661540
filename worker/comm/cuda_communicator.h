#pragma once
// The communicator of a rank on a CUDA device, and the rank's links to other stages. Unimplemented in a build
// without CUDA (cuda_communicator_absent.cc).

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "worker/comm/device_group.h"
#include "worker/comm/device_link.h"

namespace somnus {

// JoinDeviceGroup on the device's stream (options.stream is filled in). The device must be the calling
// thread's current device, and outlive the communicator.
absl::StatusOr<std::unique_ptr<Communicator>> MakeCudaCommunicator(GroupOptions options, Device* device);

// The same of JoinDeviceLink.
absl::StatusOr<std::unique_ptr<StageLink>> MakeCudaLink(GroupOptions options, const std::string& gpu,
                                                        Device* device, std::unique_ptr<StageLink> host);

}  // namespace somnus
