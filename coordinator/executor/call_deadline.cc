#include "coordinator/executor/call_deadline.h"

#include <utility>

#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "base/threads.h"

namespace somnus {

CallDeadline::CallDeadline(absl::Duration timeout, MonotonicClock now,
                           std::vector<grpc::ClientContext>* contexts)
    : now_(std::move(now)), contexts_(*contexts) {
  const MonotonicTime deadline = now_() + timeout;
  absl::StatusOr<std::thread> thread = StartThread([this, deadline] { Watch(deadline); });
  if (thread.ok()) {
    thread_ = *std::move(thread);
    return;
  }
  // gRPC turns this into a time of gRPC's own monotonic clock at once.
  for (grpc::ClientContext& context : contexts_)
    context.set_deadline(absl::ToChronoTime(absl::Now() + timeout));
}

CallDeadline::~CallDeadline() {
  ended_.Stop();
  if (thread_.joinable()) thread_.join();
}

void CallDeadline::Watch(MonotonicTime deadline) {
  for (absl::Duration left; (left = deadline - now_()) > absl::ZeroDuration();) {
    if (ended_.WaitFor(left)) return;
  }
  passed_ = true;
  for (grpc::ClientContext& context : contexts_) context.TryCancel();
}

grpc::Status CallDeadline::Translate(const grpc::Status& status) const {
  if (status.error_code() != grpc::StatusCode::CANCELLED || !passed_) return status;
  return {grpc::StatusCode::DEADLINE_EXCEEDED, "Deadline Exceeded"};
}

}  // namespace somnus
