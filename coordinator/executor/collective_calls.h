#pragma once
// Unary calls to all ranks of a group at once, in one epoch. Thread safe: links are only read, and the latch
// is thread safe.

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/monotonic.h"
#include "coordinator/executor/failure_latch.h"
#include "coordinator/executor/worker_link.h"

namespace somnus {

class CollectiveCalls {
 public:
  using Call = std::function<grpc::Status(const WorkerLink&, size_t rank, grpc::ClientContext*)>;

  // Links and latch are borrowed. A failure of the latch cancels every call. `now` measures the timeouts: a
  // time that does not go on while this process stands still (base/running_clock.h).
  CollectiveCalls(int64_t group_epoch, const std::vector<WorkerLink>* workers, FailureLatch* latch,
                  absl::Duration blame_grace, MonotonicClock now)
      : group_epoch_(group_epoch),
        workers_(*workers),
        latch_(*latch),
        blame_grace_(blame_grace),
        now_(std::move(now)) {}

  int64_t group_epoch() const { return group_epoch_; }
  // Returns the id of the epoch's next operation.
  uint64_t NextOperation() const { return next_operation_.fetch_add(1); }
  // Makes `request` the epoch's next operation, the same operation for every rank.
  template <typename Request>
  void Stamp(Request* request) const {
    request->set_group_epoch(group_epoch_);
    request->set_operation_id(NextOperation());
  }

  // Runs `call` for every rank at once and returns when all have returned: one status per rank, an error with
  // the rank's name. DeadlineExceeded after `timeout`: the rank may have executed the call, or may yet do so.
  std::vector<absl::Status> Run(absl::Duration timeout, const Call& call) const;
  // Does what Run does with a stamped request, which a rank executes once, however often the rank is asked: a
  // rank whose connection breaks is asked again, so that the rank can tell the outcome of the call.
  std::vector<absl::Status> RunOperation(absl::Duration timeout, const Call& call) const;
  // Does what Run does, but the first error cancels the other ranks' calls.
  std::vector<absl::Status> RunUntilError(absl::Duration timeout, const Call& call) const;

  // The error of a collective: the loss of a rank where a connection broke, else the first rank's error that
  // is not a mere cancellation. Ok when all statuses are.
  absl::Status FirstError(const std::vector<absl::Status>& statuses) const;

 private:
  std::vector<absl::Status> RunAll(absl::Duration timeout, bool cancel_others, const Call& call) const;

  const int64_t group_epoch_;
  const std::vector<WorkerLink>& workers_;
  FailureLatch& latch_;
  const absl::Duration blame_grace_;
  const MonotonicClock now_;
  mutable std::atomic<uint64_t> next_operation_{1};
};

}  // namespace somnus
