#pragma once
// Unary calls to all ranks of a group at once. Thread safe: it only reads the links, and the latch is.

#include <grpcpp/grpcpp.h>

#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "coordinator/executor/failure_latch.h"
#include "coordinator/executor/worker_link.h"

namespace somnus {

class CollectiveCalls {
 public:
  using Call = std::function<grpc::Status(const WorkerLink&, size_t rank, grpc::ClientContext*)>;

  // Both are borrowed. A failure of the latch cancels every call.
  CollectiveCalls(const std::vector<WorkerLink>* workers, FailureLatch* latch, absl::Duration blame_grace)
      : workers_(*workers), latch_(*latch), blame_grace_(blame_grace) {}

  // Runs `call` for every rank at once and returns when all have returned: one status per rank, an error with
  // the rank's name. DeadlineExceeded after `timeout`: then nobody knows whether the rank did it.
  std::vector<absl::Status> Run(absl::Duration timeout, const Call& call) const;
  // As Run, but the first error cancels the other ranks' calls.
  std::vector<absl::Status> RunUntilError(absl::Duration timeout, const Call& call) const;

  // The error of a collective: the loss of a rank where a connection broke, else the first rank's that is a
  // cause. Ok when all are.
  absl::Status FirstError(const std::vector<absl::Status>& statuses) const;

 private:
  std::vector<absl::Status> RunAll(absl::Duration timeout, bool cancel_others, const Call& call) const;

  const std::vector<WorkerLink>& workers_;
  FailureLatch& latch_;
  const absl::Duration blame_grace_;
};

}  // namespace somnus
