#pragma once
// Times one op on a device, without the time of launching on the host: an op of a few microseconds is done
// before the host has launched the next, so queueing the op again and again would time the host.

#include <functional>

#include "absl/status/statusor.h"
#include "kernels/device.h"

namespace somnus {

// Returns the microseconds of a call of `op`, with `repeats` calls in a graph, from the fastest of several
// replays. `op` queues work on the device and is called 1 + repeats times: once alone, to load the code, then
// for the graph. The device must be able to capture.
absl::StatusOr<double> TimeOp(Device& device, int repeats, const std::function<void()>& op);

}  // namespace somnus
