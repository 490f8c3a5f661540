#pragma once
// The command line of a local worker, which the worker needs to become a member. LoadModel brings the options
// of the model.

#include <cstdint>
#include <string>
#include <vector>

#include "coordinator/flags/flags.h"

namespace somnus {

// The device of a rank of this group.
int32_t DeviceIndex(const Flags& flags, int rank);
// argv; `coordinator` is the address where the worker registers.
std::vector<std::string> WorkerCommand(const Flags& flags, const std::string& binary,
                                       const std::string& coordinator, int rank);

}  // namespace somnus
