#pragma once
// The limits of the system that a coordinator with these flags needs.

#include "base/start_limits.h"
#include "coordinator/flags/flags.h"

namespace somnus {

StartNeeds NeedsOf(const Flags& flags);

}  // namespace somnus
