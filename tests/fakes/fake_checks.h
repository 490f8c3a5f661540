#pragma once
// The self-checks of a FakeWorkerService, with results that a test sets. Thread safe.

#include <grpcpp/grpcpp.h>

#include <atomic>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "proto/status.h"
#include "proto/worker.grpc.pb.h"

namespace somnus {

class FakeChecks : public v1::WorkerService::Service {
 public:
  // Streams of updates stay unread, as by a worker with a device that hangs.
  void HoldStreams() { hold_streams_ = true; }

  void SetCheck(const v1::SelfCheckResponse& response, const absl::Status& status = absl::OkStatus()) {
    absl::MutexLock lock(&check_mu_);
    check_ = response;
    check_status_ = status;
  }
  int num_checks() const {
    absl::MutexLock lock(&check_mu_);
    return num_checks_;
  }

  grpc::Status SelfCheck(grpc::ServerContext*, const v1::SelfCheckRequest*,
                         v1::SelfCheckResponse* response) override {
    absl::MutexLock lock(&check_mu_);
    ++num_checks_;
    *response = check_;
    return ToGrpcStatus(check_status_);
  }

 protected:
  using UpdateReader = grpc::ServerReader<v1::WorkerUpdateWeightsRequest>;
  void PassStream(grpc::ServerContext* context) const {
    while (hold_streams_ && !context->IsCancelled()) absl::SleepFor(absl::Milliseconds(1));
  }

 private:
  std::atomic<bool> hold_streams_{false};
  mutable absl::Mutex check_mu_;
  v1::SelfCheckResponse check_ ABSL_GUARDED_BY(check_mu_);
  absl::Status check_status_ ABSL_GUARDED_BY(check_mu_);
  int num_checks_ ABSL_GUARDED_BY(check_mu_) = 0;
};

}  // namespace somnus
