#pragma once
// The Execute streams of a group: one per rank, opened by the first step.
//
// Ownership: owns the streams; links and latch are borrowed and outlive it. Used by the engine's thread
// alone, except waiting_for. The latch cancels the streams when it fails, which ends a blocked call.

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "coordinator/executor/failure_latch.h"
#include "coordinator/executor/worker_link.h"

namespace somnus {

class StepStreams {
 public:
  StepStreams(const std::vector<WorkerLink>* workers, FailureLatch* latch, absl::Duration blame_grace)
      : workers_(*workers), latch_(*latch), blame_grace_(blame_grace), streams_(workers->size()) {}
  // The latch must have failed before, or all streams must have ended: nothing else ends a stream.
  ~StepStreams();
  StepStreams(const StepStreams&) = delete;

  // Writes `step` to every rank. InvalidArgument, and nothing is written, when it is larger than workers
  // accept: they would end their streams.
  absl::Status Send(const v1::StepRequest& step);
  // Reads every rank's reply to step `step_id`; returns rank 0's. Any error fails the latch.
  absl::StatusOr<v1::StepReply> Receive(int64_t step_id);
  // Tells every rank that no step follows.
  void Close();
  // The rank whose reply Receive is reading. Thread safe.
  size_t waiting_for() const { return waiting_for_.load(); }

 private:
  using Stream = grpc::ClientReaderWriter<v1::StepRequest, v1::StepReply>;
  // Members are destroyed in reverse: the stream before its context.
  struct RankStream {
    std::unique_ptr<grpc::ClientContext> context;
    std::unique_ptr<Stream> stream;  // null until it is opened
  };

  bool Open(size_t rank);
  absl::Status Broke(size_t rank);

  const std::vector<WorkerLink>& workers_;
  FailureLatch& latch_;
  const absl::Duration blame_grace_;
  std::vector<RankStream> streams_;  // by rank
  std::atomic<size_t> waiting_for_{0};
};

}  // namespace somnus
