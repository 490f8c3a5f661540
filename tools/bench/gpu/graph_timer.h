#pragma once
// Times one op on a device, without what launching it takes on the host: an op of a few microseconds is done
// before the host has launched the next, so queueing it again and again would time the host.

#include <functional>

#include "absl/status/statusor.h"
#include "kernels/device.h"

namespace somnus {

// Returns the microseconds of one of `repeats` calls of `op` that one graph holds, from the fastest of
// several replays. `op` queues work on the device and is called 1 + repeats times: once by itself, to load
// its code, then for the graph. The device must be able to capture.
absl::StatusOr<double> TimeOp(Device& device, int repeats, const std::function<void()>& op);

}  // namespace somnus
