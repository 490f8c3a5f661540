#pragma once
// Before a coordinator binds its ports, one after the other: which of them somebody else has.

#include "absl/status/status.h"
#include "coordinator/flags.h"

namespace somnus {

// OK where every port that the flags name is free. Unavailable names all that are taken in one message, says
// whether a Somnus server listens there, and which flags choose free ones. A port that cannot be tried is
// left to whoever binds it.
absl::Status CheckPortsAreFree(const Flags& flags);

}  // namespace somnus
