#pragma once
// The UpdateWeights streams of one update: one per rank, each of which gets every chunk.
//
// A chunk is written to one rank after the other; a rank that takes no more holds back the sender, and so the
// client. Ownership: links and latch are borrowed and outlive it; a failure of the latch ends a Send. Thread
// safety: Open, Send and Close are for one thread at a time; Cancel is for any.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "base/monotonic.h"
#include "coordinator/executor/failure_latch.h"
#include "coordinator/executor/worker_link.h"
#include "coordinator/residency/weights.h"
#include "proto/worker.pb.h"

namespace somnus {

class WeightStreams {
 public:
  WeightStreams(const std::vector<WorkerLink>* workers, FailureLatch* latch, int64_t group_epoch,
                MonotonicClock now);
  ~WeightStreams();
  WeightStreams(const WeightStreams&) = delete;

  // Opens streams, and cancels the streams of an earlier update. With `hold_ports` the new streams hold the
  // ranks' update ports open as long as the streams last, whether or not chunks are sent here.
  void Open(const std::string& update_id, bool hold_ports);
  // FailedPrecondition: that update has no streams open. Any other error is the first rank's error, with the
  // rank's name; the streams have ended.
  absl::Status Send(const std::string& update_id, v1::WeightChunk chunk);
  // Ends the streams, and waits until every rank has taken all chunks. Returns the received tensors, which
  // must be the same on all ranks. DataLoss: ranks received different tensors.
  absl::StatusOr<ReceivedWeights> Close();
  // Closes the ranks' update ports after a BeginWeightUpdate that failed on some ranks. Waits until the ports
  // are closed.
  void ClosePorts(const std::string& update_id);
  // Ends the streams: Send and Close return Cancelled.
  void Cancel();
  // Ends the streams where a rank has held Send or Close back for longer than `most`: Send and Close return
  // DeadlineExceeded with the rank's name. On any thread, again and again.
  void CancelWhereStuck(absl::Duration most);

 private:
  struct Streams;
  std::shared_ptr<Streams> streams() const;
  class Busy;
  absl::Status Stuck(const Streams& open) const;
  absl::Status Break(const std::shared_ptr<Streams>& open, size_t rank);
  void Forget(const std::shared_ptr<Streams>& streams);
  absl::StatusOr<ReceivedWeights> WhatHasCome(const Streams& ended) const;

  const std::vector<WorkerLink>& workers_;
  FailureLatch& latch_;
  const int64_t group_epoch_;
  const MonotonicClock now_;
  mutable absl::Mutex mu_;
  std::shared_ptr<Streams> streams_ ABSL_GUARDED_BY(mu_);  // null: none are open
};

}  // namespace somnus
