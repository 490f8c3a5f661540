#pragma once
// The check for ports that other processes have taken, before a coordinator binds its ports.

#include "absl/status/status.h"
#include "coordinator/flags/flags.h"

namespace somnus {

// OK where every port that the flags name is free. Unavailable names all taken ports in one message, says
// whether a Somnus server listens there, and which flags choose free ports. A port that cannot be tried
// counts as free: the listener that binds the port reports the error.
absl::Status CheckPortsAreFree(const Flags& flags);

}  // namespace somnus
