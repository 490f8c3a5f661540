#include "coordinator/executor/call_deadline.h"

#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/threads.h"

namespace somnus {
namespace {

// A worker's own error of this code says what the worker has waited for.
bool EndedByGrpc(const grpc::Status& status) {
  return status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED &&
         status.error_message() == "Deadline Exceeded";
}

}  // namespace

CallDeadline::CallDeadline(std::string call, absl::Duration timeout, std::string way_out, MonotonicClock now,
                           std::vector<grpc::ClientContext>* contexts)
    : call_(std::move(call)),
      timeout_(timeout),
      way_out_(std::move(way_out)),
      now_(std::move(now)),
      contexts_(*contexts) {
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
  const bool cancelled = status.error_code() == grpc::StatusCode::CANCELLED && passed_;
  if (!cancelled && !EndedByGrpc(status)) return status;
  return {grpc::StatusCode::DEADLINE_EXCEEDED,
          absl::StrCat(call_, " has not returned within ", absl::FormatDuration(timeout_),
                       ": the worker hangs, or its machine is overloaded", way_out_.empty() ? "" : "; ",
                       way_out_)};
}

}  // namespace somnus
