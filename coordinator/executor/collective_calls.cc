#include "coordinator/executor/collective_calls.h"

#include <atomic>

#include "absl/time/clock.h"
#include "base/heartbeat.h"
#include "base/threads.h"
#include "coordinator/executor/call_deadline.h"
#include "proto/status.h"

namespace somnus {
namespace {

constexpr int kMaxAsks = 4;  // of one rank for the result of one operation

// Whether the rank may yet tell the call's outcome: the connection broke, or gRPC's clock ran while this
// process stood still.
bool IsUnknown(const grpc::Status& status, MonotonicTime now, MonotonicTime deadline) {
  return status.error_code() == grpc::StatusCode::UNAVAILABLE ||
         (status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED && now < deadline);
}

}  // namespace

std::vector<absl::Status> CollectiveCalls::Run(const std::string& name, absl::Duration timeout,
                                               const Call& call) const {
  return RunAll(name, timeout, /*cancel_others=*/false, call);
}

std::vector<absl::Status> CollectiveCalls::RunOperation(const std::string& name, absl::Duration timeout,
                                                        const Call& call) const {
  const MonotonicTime deadline = now_() + timeout;
  return Run(name, timeout, [&](const WorkerLink& worker, size_t rank, grpc::ClientContext* context) {
    grpc::Status status = call(worker, rank, context);
    for (int asks = 1; asks < kMaxAsks && IsUnknown(status, now_(), deadline); ++asks) {
      grpc::ClientContext again;
      // A rank that nobody can connect to is lost soon, which cancels the call.
      again.set_wait_for_ready(true);
      again.set_deadline(absl::ToChronoTime(absl::Now() + (deadline - now_())));
      if (!latch_.Register(&again)) break;
      status = call(worker, rank, &again);
      latch_.Unregister(&again);
    }
    return status;
  });
}

std::vector<absl::Status> CollectiveCalls::RunUntilError(const std::string& name, absl::Duration timeout,
                                                         const Call& call) const {
  return RunAll(name, timeout, /*cancel_others=*/true, call);
}

std::vector<absl::Status> CollectiveCalls::RunAll(const std::string& name, absl::Duration timeout,
                                                  bool cancel_others, const Call& call) const {
  std::vector<absl::Status> statuses(workers_.size());
  std::vector<grpc::ClientContext> contexts(workers_.size());
  const CallDeadline deadline(name, timeout, way_out_, now_, &contexts);
  const Heartbeat::Wait wait(timeout);  // a call that its deadline does not end hangs
  std::atomic<bool> failed{false};
  const auto run = [&](size_t rank) {
    grpc::ClientContext& context = contexts[rank];
    if (!latch_.Register(&context)) {
      statuses[rank] = latch_.status();
      return;
    }
    absl::Status status = FromGrpcStatus(deadline.Translate(call(workers_[rank], rank, &context)));
    latch_.Unregister(&context);
    if (status.ok()) return;
    const bool is_first = !failed.exchange(true);
    if (cancel_others && is_first) {
      for (size_t other = 0; other < contexts.size(); ++other) {
        if (other != rank) contexts[other].TryCancel();
      }
    }
    // The first rank's error cancelled this call, so this call's own status is no cause.
    statuses[rank] = cancel_others && !is_first ? absl::CancelledError("cancelled with its group")
                                                : Annotate(status, workers_[rank].name);
  };
  RunTogether(workers_.size(), run);
  return statuses;
}

std::string CollectiveCalls::NameOf(const google::protobuf::Descriptor* request) {
  const google::protobuf::ServiceDescriptor* const service =
      request->file()->FindServiceByName("WorkerService");
  for (int i = 0; service != nullptr && i < service->method_count(); ++i) {
    if (service->method(i)->input_type() == request) return service->method(i)->name();
  }
  return request->name();
}

absl::Status CollectiveCalls::FirstError(const std::vector<absl::Status>& statuses) const {
  absl::Status error;
  for (const absl::Status& status : statuses) {
    if (error.ok() || (absl::IsCancelled(error) && !status.ok())) error = status;
  }
  if (!absl::IsUnavailable(error) && !absl::IsCancelled(error)) return error;
  absl::Status cause = latch_.AwaitFailure(blame_grace_);
  return cause.ok() ? error : cause;
}

}  // namespace somnus
