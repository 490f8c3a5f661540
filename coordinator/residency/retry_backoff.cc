#include "coordinator/residency/retry_backoff.h"

#include <algorithm>

namespace somnus {

absl::Duration RetryBackoff::NoteFailed(MonotonicTime now) {
  if (now - serving_since_ >= longest_pause_) pause_ = first_pause_;
  serving_since_ = absl::InfiniteDuration();
  const absl::Duration pause = pause_;
  pause_ = std::min(2 * pause_, std::max(first_pause_, longest_pause_));
  due_ = now + pause;
  return pause;
}

}  // namespace somnus
