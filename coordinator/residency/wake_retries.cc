#include "coordinator/residency/wake_retries.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/missing_memory.h"

namespace somnus {

void WakeRetries::Pause(MonotonicTime now) {
  if (gave_up()) pause_ = std::max(pause_, options_.longest_pause);
  retry_at_ = now + pause_;
  pause_ = std::min(2 * pause_, gave_up() ? options_.longest_given_up : options_.longest_pause);
}

void WakeRetries::NoteFailed(MonotonicTime now, const absl::Status& error) {
  if (MissingOf(error).shortages_size() == 0) ++num_failures_;
  error_ = absl::UnavailableError(absl::StrCat(kCouldNotBeWoken, error.message()));
  Pause(now);
}

void WakeRetries::NoteDeclined(MonotonicTime now) { Pause(now); }

void WakeRetries::NoteWoken() { *this = WakeRetries(options_); }

void WakeRetries::Restart() {
  absl::Status error = std::move(error_);
  *this = WakeRetries(options_);
  error_ = std::move(error);
}

}  // namespace somnus
