#pragma once
// A sleep, a wake-up or another call that nobody's word has asked for, and that was not tried: an operator's
// pause holds, there is nothing to do, or the engine is about to end. Its code is FAILED_PRECONDITION, as
// that of calls which a rank has tried and refused is; only IsDeclined tells the two apart.

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace somnus {

absl::Status DeclinedError(absl::string_view why);
bool IsDeclined(const absl::Status& status);

}  // namespace somnus
