#pragma once
// The error of a sleep, a wake-up or a similar call that was not tried: an operator's pause holds, there is
// nothing to do, or the engine is about to end. The code is FAILED_PRECONDITION, like the code of calls that
// a rank has tried and refused; only IsDeclined tells the two kinds apart.

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace somnus {

absl::Status DeclinedError(absl::string_view why);
bool IsDeclined(const absl::Status& status);

}  // namespace somnus
