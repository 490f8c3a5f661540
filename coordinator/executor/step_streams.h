#pragma once
// The Execute streams of a group in one epoch: one per rank, opened by the first step.
//
// All streams complete on one queue, on which the engine's thread itself waits: a hand-over between threads
// costs more than the message, and the error of any rank is read while other ranks wait in a collective.
//
// Ownership: owns the streams; links and latch are borrowed and outlive it. Used by one thread, except
// MissingRanks. A failure of the latch cancels the streams, which ends a blocked call.

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <atomic>
#include <cstdint>
#include <deque>
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
  // `sampling_rank`: samples, awaits the masks, and replies with tokens: rank 0 of the last stage.
  StepStreams(const std::vector<WorkerLink>* workers, FailureLatch* latch, absl::Duration blame_grace,
              size_t sampling_rank = 0);
  // The latch must have failed before, or all streams must have ended: nothing else ends a stream.
  ~StepStreams();
  StepStreams(const StepStreams&) = delete;

  // Writes `step` to every rank. InvalidArgument, and nothing is written, when `step` is larger than workers
  // accept: the workers would end their streams. Any other error has failed the latch.
  absl::Status Send(const v1::StepRequest& step);
  // Writes the masks of a step that was sent to the sampling rank, in messages of at most about kStepBytes.
  // Errors as Send.
  absl::Status SendMasks(int64_t group_epoch, v1::StepMasks masks);
  // Reads every rank's reply to step `step_id`; returns the sampling rank's, with all ranks' expert_loads.
  // Any error fails the latch, and so do ranks that computed with different versions of the weights.
  absl::StatusOr<v1::StepReply> Receive(int64_t step_id);
  // Tells every rank that no step follows.
  void Close();
  // The ranks that have replied to fewer steps than the rest, or all when no rank is ahead. Thread safe.
  std::vector<size_t> MissingRanks() const;

 private:
  enum class Operation { kStart, kWrite, kRead, kWritesDone, kFinish };
  static constexpr size_t kNumOperations = 5;
  // A step is encoded once for all ranks, so the streams take bytes.
  using StepStub = grpc::TemplatedGenericStub<grpc::ByteBuffer, v1::StepReply>;
  struct RankStream;
  // The queue's event when an operation has ended.
  struct Tag {
    RankStream* stream;
    Operation operation;
  };
  // Members are destroyed in reverse: the stream before its context.
  struct RankStream {
    size_t rank = 0;
    std::unique_ptr<grpc::ClientContext> context;
    std::unique_ptr<grpc::ClientAsyncReaderWriter<grpc::ByteBuffer, v1::StepReply>> stream;
    Tag tags[kNumOperations];
    bool pending[kNumOperations] = {};  // by Operation: started, and not ended
    bool broken = false;                // an operation has failed: the stream is over
    v1::StepReply incoming;             // filled by the pending read
    std::deque<v1::StepReply> replies;
    std::atomic<int64_t> num_replies{0};
    grpc::Status final_status;

    // gRPC takes one message at a time, the end of all messages included.
    bool writable() const {
      return !pending[static_cast<size_t>(Operation::kStart)] &&
             !pending[static_cast<size_t>(Operation::kWrite)];
    }
  };

  bool Open();
  void* Begin(RankStream* rank, Operation operation);
  void Read(RankStream* rank);
  // Waits for the end of the next operation, and notes the end. False once the queue is empty and shut down.
  bool Next();
  // Waits until `done()`; Blame names the first rank whose stream breaks, or whose reply is an error, before.
  template <typename Done>
  absl::Status Await(const Done& done);
  absl::Status CheckReplies() const;
  absl::Status TakeReplies(int64_t step_id, v1::StepReply* sampled);

  const std::vector<WorkerLink>& workers_;
  FailureLatch& latch_;
  const absl::Duration blame_grace_;
  const size_t sampling_rank_;
  grpc::CompletionQueue queue_;
  std::vector<std::unique_ptr<RankStream>> streams_;  // by rank
  bool open_ = false;
};

}  // namespace somnus
