#pragma once
// What a coordinator needs of the system to serve what its flags say.

#include "base/start_limits.h"
#include "coordinator/flags.h"

namespace somnus {

StartNeeds NeedsOf(const Flags& flags);

}  // namespace somnus
