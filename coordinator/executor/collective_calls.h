#pragma once
// Unary calls to the ranks of a group, all at once, in one epoch. Collect and CollectOperation are the usual
// form: one request for all ranks, and a response from each. Run, RunOperation and RunUntilError are for
// calls whose statuses count rank by rank.
//
// Thread safe: a call only reads the links, and the latch is thread safe.

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/monotonic.h"
#include "coordinator/executor/failure_latch.h"
#include "coordinator/executor/worker_link.h"

namespace somnus {

// Which ranks take part in a call, by rank. Responses of other ranks are default values.
using Ranks = std::vector<bool>;

class CollectiveCalls {
 public:
  using Stub = v1::WorkerService::Stub;
  template <typename Request, typename Response>
  using Rpc = grpc::Status (Stub::*)(grpc::ClientContext*, const Request&, Response*);
  // Completes the request for a rank. Null: all ranks get the same request.
  template <typename Request>
  using Complete = std::type_identity_t<std::function<void(size_t rank, Request*)>>;

  using Call = std::function<grpc::Status(const WorkerLink&, size_t rank, grpc::ClientContext*)>;

  // Links and latch are borrowed. A failure of the latch cancels every call. `now` measures the timeouts, and
  // stops while this process stands still (base/running_clock.h). `way_out`: as of CallDeadline.
  CollectiveCalls(int64_t group_epoch, const std::vector<WorkerLink>* workers, FailureLatch* latch,
                  absl::Duration blame_grace, MonotonicClock now, std::string way_out)
      : group_epoch_(group_epoch),
        workers_(*workers),
        latch_(*latch),
        blame_grace_(blame_grace),
        now_(std::move(now)),
        way_out_(std::move(way_out)) {}

  int64_t group_epoch() const { return group_epoch_; }
  // Returns the id of the epoch's next operation.
  uint64_t NextOperation() const { return next_operation_.fetch_add(1); }
  // Makes `request` a request of the epoch, and the epoch's next operation where the request has an id: the
  // same operation for all ranks that get the request.
  template <typename Request>
  void Stamp(Request* request) const {
    request->set_group_epoch(group_epoch_);
    if constexpr (requires { request->set_operation_id(0); }) request->set_operation_id(NextOperation());
  }

  Ranks all() const { return Ranks(workers_.size(), true); }
  // Stamps the request, sends it to `ranks`, and returns the responses by rank, or FirstError. The first
  // error cancels the other ranks' calls.
  template <typename Request, typename Response>
  absl::StatusOr<std::vector<Response>> Collect(const Ranks& ranks, absl::Duration timeout,
                                                Rpc<Request, Response> rpc,
                                                std::type_identity_t<Request> request,
                                                const Complete<Request>& complete = nullptr) const {
    return CollectBy(&CollectiveCalls::RunUntilError, ranks, timeout, rpc, std::move(request), complete);
  }
  // Does what Collect does, as RunOperation: no error cancels other calls, and a rank whose connection breaks
  // is asked again.
  template <typename Request, typename Response>
  absl::StatusOr<std::vector<Response>> CollectOperation(const Ranks& ranks, absl::Duration timeout,
                                                         Rpc<Request, Response> rpc,
                                                         std::type_identity_t<Request> request,
                                                         const Complete<Request>& complete = nullptr) const {
    return CollectBy(&CollectiveCalls::RunOperation, ranks, timeout, rpc, std::move(request), complete);
  }
  // Stamps the request, sends it to all ranks by Run, and returns each rank's response or error.
  template <typename Request, typename Response>
  std::vector<absl::StatusOr<Response>> AskEach(absl::Duration timeout, Rpc<Request, Response> rpc,
                                                std::type_identity_t<Request> request) const;

  // Runs `call` for every rank at once and returns when all have returned: one status per rank, an error with
  // the rank's name. DeadlineExceeded, with the call's `name`, after `timeout`: the rank may have executed
  // the call, or may yet do so.
  std::vector<absl::Status> Run(const std::string& name, absl::Duration timeout, const Call& call) const;
  // Does what Run does with a stamped request, which a rank executes once, however often the request comes: a
  // rank whose connection breaks is asked again, so that the rank can tell the outcome of the call.
  std::vector<absl::Status> RunOperation(const std::string& name, absl::Duration timeout,
                                         const Call& call) const;
  // Does what Run does, but the first error cancels the other ranks' calls.
  std::vector<absl::Status> RunUntilError(const std::string& name, absl::Duration timeout,
                                          const Call& call) const;

  // The error of a collective: the loss of a rank where a connection broke, else the first rank's error that
  // is not a mere cancellation. Ok when all statuses are.
  absl::Status FirstError(const std::vector<absl::Status>& statuses) const;

 private:
  using RunCalls = std::vector<absl::Status> (CollectiveCalls::*)(const std::string&, absl::Duration,
                                                                  const Call&) const;

  template <typename Request, typename Response>
  absl::StatusOr<std::vector<Response>> CollectBy(RunCalls run, const Ranks& ranks, absl::Duration timeout,
                                                  Rpc<Request, Response> rpc, Request request,
                                                  const Complete<Request>& complete) const;
  std::vector<absl::Status> RunAll(const std::string& name, absl::Duration timeout, bool cancel_others,
                                   const Call& call) const;
  // The name of the call of WorkerService that takes such a request.
  static std::string NameOf(const google::protobuf::Descriptor* request);

  const int64_t group_epoch_;
  const std::vector<WorkerLink>& workers_;
  FailureLatch& latch_;
  const absl::Duration blame_grace_;
  const MonotonicClock now_;
  const std::string way_out_;
  mutable std::atomic<uint64_t> next_operation_{1};
};

template <typename Request, typename Response>
absl::StatusOr<std::vector<Response>> CollectiveCalls::CollectBy(RunCalls run, const Ranks& ranks,
                                                                 absl::Duration timeout,
                                                                 Rpc<Request, Response> rpc, Request request,
                                                                 const Complete<Request>& complete) const {
  Stamp(&request);
  std::vector<Response> responses(workers_.size());
  const Call call = [&](const WorkerLink& worker, size_t rank, grpc::ClientContext* context) {
    if (!ranks[rank]) return grpc::Status::OK;
    if (complete == nullptr) return ((*worker.stub).*rpc)(context, request, &responses[rank]);
    Request own = request;
    complete(rank, &own);
    return ((*worker.stub).*rpc)(context, own, &responses[rank]);
  };
  const absl::Status error = FirstError((this->*run)(NameOf(Request::descriptor()), timeout, call));
  if (!error.ok()) return error;
  return responses;
}

template <typename Request, typename Response>
std::vector<absl::StatusOr<Response>> CollectiveCalls::AskEach(absl::Duration timeout,
                                                               Rpc<Request, Response> rpc,
                                                               std::type_identity_t<Request> request) const {
  Stamp(&request);
  std::vector<Response> responses(workers_.size());
  const std::vector<absl::Status> statuses =
      Run(NameOf(Request::descriptor()), timeout,
          [&](const WorkerLink& worker, size_t rank, grpc::ClientContext* context) {
            return ((*worker.stub).*rpc)(context, request, &responses[rank]);
          });
  std::vector<absl::StatusOr<Response>> results;
  for (size_t rank = 0; rank < responses.size(); ++rank) {
    if (statuses[rank].ok()) {
      results.push_back(std::move(responses[rank]));
    } else {
      results.push_back(statuses[rank]);
    }
  }
  return results;
}

}  // namespace somnus
