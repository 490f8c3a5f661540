#pragma once
// The deadline of calls to workers, in time in which this process ran: a coordinator that was stopped blames
// no worker for a reply that waits unread. gRPC's own deadlines go on meanwhile, and cannot be moved, so a
// thread of the object cancels calls that have no deadline of gRPC. Where no thread can be started, the calls
// have gRPC's deadline.

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "base/monotonic.h"

namespace somnus {

class CallDeadline {
 public:
  // `call`: the name of the calls; `way_out`: of a deadline that is too short. Both are for messages.
  // `contexts`: of calls that begin after this and end before the object does; borrowed. `now`: RunningNow,
  // but for tests.
  CallDeadline(std::string call, absl::Duration timeout, std::string way_out, MonotonicClock now,
               std::vector<grpc::ClientContext>* contexts);
  ~CallDeadline();
  CallDeadline(const CallDeadline&) = delete;

  // The status of a call with a deadline: DEADLINE_EXCEEDED with the name of the call where the object or
  // gRPC has ended the call, else `status`.
  grpc::Status Translate(const grpc::Status& status) const;

 private:
  void Watch(MonotonicTime deadline);

  const std::string call_;
  const absl::Duration timeout_;
  const std::string way_out_;
  const MonotonicClock now_;
  std::vector<grpc::ClientContext>& contexts_;
  StopSignal ended_;
  std::atomic<bool> passed_{false};
  std::thread thread_;
};

}  // namespace somnus
