#include "worker/comm/group_watch.h"

#include <utility>

namespace somnus {
namespace {

constexpr absl::Duration kWatchInterval = absl::Milliseconds(50);
constexpr absl::Duration kLeavePatience = absl::Seconds(2);

}  // namespace

GroupWatch::GroupWatch(Group group) : group_(std::move(group)), thread_([this] { Watch(); }) {}

absl::Status GroupWatch::error() const {
  absl::MutexLock lock(&mu_);
  return error_;
}

void GroupWatch::Fail(const absl::Status& cause) {
  {
    absl::MutexLock lock(&mu_);
    if (!error_.ok()) return;
    error_ = cause;
  }
  group_.end(std::string(cause.message()));
}

absl::Status GroupWatch::Noted(absl::Status status) {
  if (!status.ok() && !absl::IsInvalidArgument(status) && !absl::IsFailedPrecondition(status)) Fail(status);
  return status;
}

void GroupWatch::Leave() {
  absl::MutexLock lock(&mu_);
  leave_by_ = MonotonicNow() + kLeavePatience;
}

void GroupWatch::Stop() {
  done_.Stop();
  if (thread_.joinable()) thread_.join();
}

void GroupWatch::Watch() {
  while (!done_.WaitFor(kWatchInterval)) {
    const std::optional<MonotonicTime> leave_by = LeaveBy();
    if (!leave_by.has_value()) {
      if (absl::Status status = group_.look(); !status.ok()) Fail(status);
    } else if (MonotonicNow() >= *leave_by) {
      Fail(absl::AbortedError(group_.left));
    }
  }
}

std::optional<MonotonicTime> GroupWatch::LeaveBy() const {
  absl::MutexLock lock(&mu_);
  return leave_by_;
}

}  // namespace somnus
