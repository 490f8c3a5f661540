#include "coordinator/engine/step_deadline.h"

#include <algorithm>

#include "absl/numeric/bits.h"

namespace somnus {
namespace {

size_t ClassOf(int32_t num_tokens) { return absl::bit_width(static_cast<uint32_t>(std::max(0, num_tokens))); }

}  // namespace

StepDeadline::StepDeadline(absl::Duration hang_timeout, absl::Duration step_timeout)
    : floor_(std::max(hang_timeout, kLowestFloor)), step_timeout_(step_timeout) {}

absl::Duration StepDeadline::Deadline(const SizeClass& size) const {
  if (!size.known) return size.last_deadline + kAllowance;
  return std::max(floor_, kMultiple * std::max(size.newer, size.older));
}

absl::Duration StepDeadline::Timeout(int32_t num_tokens) const {
  return std::min(step_timeout_, Deadline(classes_[ClassOf(num_tokens)]));
}

void StepDeadline::Observe(int32_t num_tokens, absl::Duration duration) {
  if (first_) {
    first_ = false;
    return;
  }
  SizeClass& size = classes_[ClassOf(num_tokens)];
  if (size.num_steps == kWindow) {
    size.older = size.newer;
    size.newer = absl::ZeroDuration();
    size.num_steps = 0;
  }
  size.newer = std::max(size.newer, duration);
  ++size.num_steps;
  size.known = true;
}

void StepDeadline::Restart() {
  first_ = true;
  for (SizeClass& size : classes_) {
    const absl::Duration last = size.known ? Deadline(size) : size.last_deadline;
    size = SizeClass();
    size.last_deadline = last;
  }
}

}  // namespace somnus
