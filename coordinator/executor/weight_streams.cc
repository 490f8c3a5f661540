#include "coordinator/executor/weight_streams.h"

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/heartbeat.h"
#include "proto/status.h"

namespace somnus {

struct WeightStreams::Streams {
  // Members are destroyed in reverse: the writer before the context and the response.
  struct Rank {
    grpc::ClientContext context;
    v1::WorkerUpdateWeightsResponse response;
    std::unique_ptr<grpc::ClientWriter<v1::WorkerUpdateWeightsRequest>> writer;  // null: the latch has failed
    bool ended = false;                                                          // `status` is how
    absl::Status status;
  };

  Streams(size_t num_ranks, FailureLatch* latch_in) : ranks(num_ranks), latch(*latch_in) {}
  ~Streams() {
    Cancel();
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
      if (ranks[rank].writer == nullptr) continue;
      (void)Finish(rank, "");
      latch.Unregister(&ranks[rank].context);
    }
  }
  void Cancel() {
    cancelled = true;
    for (Rank& rank : ranks) rank.context.TryCancel();
  }
  // Waits for the end of the rank's stream. To be called once all has been written, or after an error.
  absl::Status Finish(size_t rank, const std::string& name) {
    Rank& stream = ranks[rank];
    if (stream.writer == nullptr) return latch.status();
    if (!std::exchange(stream.ended, true))
      stream.status = Annotate(FromGrpcStatus(stream.writer->Finish()), name);
    return stream.status;
  }

  v1::WorkerUpdateWeightsRequest FirstRequest(int64_t group_epoch) const {
    v1::WorkerUpdateWeightsRequest request;
    request.set_group_epoch(group_epoch);
    request.set_update_id(update_id);
    return request;
  }

  std::vector<Rank> ranks;
  FailureLatch& latch;
  std::string update_id;
  bool begun = false;  // the first message was sent
  std::atomic<bool> cancelled{false};
  mutable absl::Mutex mu;
  std::optional<size_t> busy_rank ABSL_GUARDED_BY(mu);  // for which Send or Close waits
  MonotonicTime busy_since ABSL_GUARDED_BY(mu);
  std::optional<size_t> stuck_rank ABSL_GUARDED_BY(mu);  // for which the streams were cancelled
  absl::Duration stuck_for ABSL_GUARDED_BY(mu);
};

// Send or Close waits for a rank.
class WeightStreams::Busy {
 public:
  Busy(Streams* streams, size_t rank, MonotonicTime now) : streams_(*streams) {
    absl::MutexLock lock(&streams_.mu);
    streams_.busy_rank = rank;
    streams_.busy_since = now;
  }
  ~Busy() {
    absl::MutexLock lock(&streams_.mu);
    streams_.busy_rank.reset();
  }
  Busy(const Busy&) = delete;

 private:
  Streams& streams_;
  // CancelWhereStuck ends the wait, and the failure of the group does.
  const Heartbeat::Wait wait_{absl::InfiniteDuration()};
};

WeightStreams::WeightStreams(const std::vector<WorkerLink>* workers, FailureLatch* latch, int64_t group_epoch,
                             MonotonicClock now)
    : workers_(*workers), latch_(*latch), group_epoch_(group_epoch), now_(std::move(now)) {}

WeightStreams::~WeightStreams() = default;

std::shared_ptr<WeightStreams::Streams> WeightStreams::streams() const {
  absl::MutexLock lock(&mu_);
  return streams_;
}

void WeightStreams::Open(const std::string& update_id, bool hold_ports) {
  Cancel();
  auto streams = std::make_shared<Streams>(workers_.size(), &latch_);
  streams->update_id = update_id;
  for (size_t rank = 0; rank < workers_.size(); ++rank) {
    Streams::Rank& stream = streams->ranks[rank];
    if (!latch_.Register(&stream.context)) continue;
    stream.writer = workers_[rank].stub->UpdateWeights(&stream.context, &stream.response);
    // Where that fails, Send or Close tells why.
    if (hold_ports) stream.writer->Write(streams->FirstRequest(group_epoch_));
  }
  streams->begun = hold_ports;
  absl::MutexLock lock(&mu_);
  streams_ = std::move(streams);
}

absl::Status WeightStreams::Send(const std::string& update_id, v1::WeightChunk chunk) {
  const std::shared_ptr<Streams> open = streams();
  // The sender of an update that a loss has ended may not know of the loss yet when the next update has
  // begun.
  if (open == nullptr || open->update_id != update_id)
    return absl::FailedPreconditionError("the update of the weights is not under way");
  v1::WorkerUpdateWeightsRequest request;
  if (!std::exchange(open->begun, true)) request = open->FirstRequest(group_epoch_);
  *request.mutable_chunk() = std::move(chunk);
  for (size_t rank = 0; rank < open->ranks.size(); ++rank) {
    Streams::Rank& stream = open->ranks[rank];
    const Busy busy(open.get(), rank, now_());
    if (stream.writer == nullptr || !stream.writer->Write(request)) return Break(open, rank);
  }
  return absl::OkStatus();
}

absl::StatusOr<ReceivedWeights> WeightStreams::WhatHasCome(const Streams& ended) const {
  const auto of_rank = [&](size_t rank) {
    const v1::WorkerUpdateWeightsResponse& response = ended.ranks[rank].response;
    return ReceivedWeights{response.num_tensors(), response.num_bytes(), response.checksum()};
  };
  const ReceivedWeights first = of_rank(0);
  for (size_t rank = 1; rank < ended.ranks.size(); ++rank) {
    const ReceivedWeights own = of_rank(rank);
    if (own == first) continue;
    return absl::DataLossError(absl::StrCat(workers_[rank].name, " has got ", own.num_tensors, " tensors of ",
                                            own.num_bytes, " bytes, and not those ", first.num_tensors,
                                            " tensors of ", first.num_bytes, " bytes that rank 0 has got"));
  }
  return first;
}

absl::StatusOr<ReceivedWeights> WeightStreams::Close() {
  const std::shared_ptr<Streams> open = streams();
  if (open == nullptr || open->cancelled)
    return absl::CancelledError("the update of the weights was given up");
  if (!open->begun) {  // no rank has heard of the update, or has anything to wait for
    Forget(open);
    return ReceivedWeights();
  }
  for (Streams::Rank& rank : open->ranks) {
    if (rank.writer != nullptr) rank.writer->WritesDone();
  }
  for (size_t rank = 0; rank < open->ranks.size(); ++rank) {
    const Busy busy(open.get(), rank, now_());
    if (absl::Status status = open->Finish(rank, workers_[rank].name); !status.ok()) {
      const absl::Status stuck = Stuck(*open);
      open->Cancel();
      Forget(open);
      return stuck.ok() ? status : stuck;
    }
  }
  Forget(open);
  return WhatHasCome(*open);
}

// A port closes with the stream that holds the port; ranks that have not begun the update refuse their
// stream.
void WeightStreams::ClosePorts(const std::string& update_id) {
  Open(update_id, /*hold_ports=*/true);
  const std::shared_ptr<Streams> open = streams();
  for (Streams::Rank& rank : open->ranks) {
    if (rank.writer != nullptr) rank.writer->WritesDone();
  }
  for (size_t rank = 0; rank < open->ranks.size(); ++rank) {
    const Busy busy(open.get(), rank, now_());
    (void)open->Finish(rank, workers_[rank].name);
  }
  Forget(open);
}

// The stream of `rank` has ended with an error, which cancels all other streams.
absl::Status WeightStreams::Break(const std::shared_ptr<Streams>& open, size_t rank) {
  absl::Status status = open->Finish(rank, workers_[rank].name);
  if (const absl::Status stuck = Stuck(*open); !stuck.ok()) status = stuck;
  open->Cancel();
  Forget(open);
  if (const absl::Status lost = latch_.status(); !lost.ok()) return lost;
  return status.ok() ? absl::InternalError(absl::StrCat(workers_[rank].name, " ended the update early"))
                     : status;
}

absl::Status WeightStreams::Stuck(const Streams& open) const {
  absl::MutexLock lock(&open.mu);
  if (!open.stuck_rank.has_value()) return absl::OkStatus();
  return absl::DeadlineExceededError(absl::StrCat(workers_[*open.stuck_rank].name,
                                                  " has taken nothing of the update for ",
                                                  absl::FormatDuration(open.stuck_for)));
}

void WeightStreams::CancelWhereStuck(absl::Duration most) {
  const std::shared_ptr<Streams> open = streams();
  if (open == nullptr) return;
  {
    absl::MutexLock lock(&open->mu);
    if (!open->busy_rank.has_value() || open->stuck_rank.has_value() || now_() - open->busy_since <= most)
      return;
    open->stuck_rank = open->busy_rank;
    open->stuck_for = most;
  }
  open->Cancel();
}

void WeightStreams::Forget(const std::shared_ptr<Streams>& streams) {
  absl::MutexLock lock(&mu_);
  if (streams_ == streams) streams_ = nullptr;
}

void WeightStreams::Cancel() {
  absl::MutexLock lock(&mu_);
  if (streams_ != nullptr) streams_->Cancel();
}

}  // namespace somnus
