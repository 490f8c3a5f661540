#include "worker/execute_streams.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/heartbeat.h"
#include "base/status_macros.h"
#include "proto/status.h"
#include "proto/worker.grpc.pb.h"
#include "worker/worker.h"

namespace somnus {
namespace {

// Steps that were read and have no reply yet. The coordinator sends a step for each stage of a pipeline, of
// up to 64 stages, and the masks of the oldest step may follow all of these steps: a reader that stopped
// before would never bring the masks, for which the last stage waits.
constexpr int kMaxQueuedSteps = 64;
// One stream is in use; the other streams belong to lost coordinators and older epochs, and are ending.
constexpr size_t kMaxStepStreams = 8;
constexpr absl::Duration kCancelInterval = absl::Milliseconds(20);

v1::StepReply ErrorReply(int64_t step_id, const absl::Status& status) {
  v1::StepReply reply;
  reply.set_step_id(step_id);
  reply.set_error_code(status.raw_code());
  reply.set_error_message(std::string(status.message()));
  return reply;
}

// Takes launched steps from the runner thread, waits for each in order, and writes its reply to the stream.
class ReplyWriter {
 public:
  explicit ReplyWriter(ExecuteStreams::Stream* stream) : stream_(stream), thread_([this] { Loop(); }) {}
  ~ReplyWriter() {
    {
      const std::lock_guard<std::mutex> lock(mu_);
      closed_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  // Reserves place for one reply; blocks while kMaxQueuedSteps are under way.
  void Reserve() {
    std::unique_lock<std::mutex> lock(mu_);
    changed_.wait(lock, [this] { return under_way_ < kMaxQueuedSteps; });
    ++under_way_;
  }
  void Push(Worker::AwaitReply step) {
    {
      const std::lock_guard<std::mutex> lock(mu_);
      steps_.push_back(std::move(step));
    }
    changed_.notify_all();
  }
  // True when, within `patience`, every reserved reply has been pushed and written (or dropped, on a broken
  // stream).
  bool Drain(absl::Duration patience) {
    std::unique_lock<std::mutex> lock(mu_);
    return changed_.wait_for(lock, absl::ToChronoNanoseconds(patience), [this] { return under_way_ == 0; });
  }

 private:
  void Loop() {
    const Heartbeat heartbeat("", "replies to steps");
    // The coordinator may take its time to send steps and to read replies; `step` announces its own bound.
    const Heartbeat::Wait rest(absl::InfiniteDuration());
    while (true) {
      Worker::AwaitReply step;
      {
        std::unique_lock<std::mutex> lock(mu_);
        changed_.wait(lock, [this] { return !steps_.empty() || closed_; });
        if (steps_.empty()) return;
        step = std::move(steps_.front());
        steps_.pop_front();
      }
      stream_->Write(step());  // false: the coordinator is gone, which the reader notices too
      {
        const std::lock_guard<std::mutex> lock(mu_);
        --under_way_;
      }
      changed_.notify_all();
    }
  }

  ExecuteStreams::Stream* const stream_;
  std::mutex mu_;  // not absl::Mutex, whose timeouts end by wall time (base/monotonic.h)
  std::condition_variable changed_;
  // Under mu_.
  std::deque<Worker::AwaitReply> steps_;
  int under_way_ = 0;
  bool closed_ = false;
  std::thread thread_;
};

}  // namespace

// Keeps a stream in the list while it is served.
class ExecuteStreams::Registration {
 public:
  Registration(ExecuteStreams* streams, grpc::ServerContext* context) : streams_(streams) {
    absl::MutexLock lock(&streams_->mu_);
    admitted_ = streams_->open_.size() < kMaxStepStreams;
    self_ = streams_->open_.insert(streams_->open_.end(), {context, 0});
  }
  ~Registration() {
    absl::MutexLock lock(&streams_->mu_);
    streams_->open_.erase(self_);
  }
  bool admitted() const { return admitted_; }
  OpenStreams::iterator self() const { return self_; }

 private:
  ExecuteStreams* const streams_;
  OpenStreams::iterator self_;
  bool admitted_ = false;
};

grpc::Status ExecuteStreams::Serve(grpc::ServerContext* context, Stream* stream) {
  const Registration registration(this, context);
  if (!registration.admitted()) {
    return grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED,
                        absl::StrCat("Execute: ", kMaxStepStreams, " step streams are open"));
  }
  return ToGrpcStatus(ServeSteps(registration.self(), stream));
}

absl::Status ExecuteStreams::ServeSteps(OpenStreams::iterator self, Stream* stream) {
  absl::Status refused;
  int64_t epoch = 0;
  ReplyWriter writer(stream);
  v1::StepRequest request;
  while (refused.ok() && stream->Read(&request)) {
    refused = Admit(self, request);
    if (refused.ok() && request.step_id() == 0 && request.has_masks()) {
      refused = worker_->AddMasks(request.group_epoch(), std::move(*request.mutable_masks()));
      if (!refused.ok()) break;
      request.Clear();
      continue;
    }
    writer.Reserve();
    if (refused.ok()) {
      epoch = request.group_epoch();
      worker_->ExecuteAsync(std::move(request),
                            [&writer](Worker::AwaitReply step) { writer.Push(std::move(step)); });
      request.Clear();
    } else {
      writer.Push([&refused, id = request.step_id()] { return ErrorReply(id, refused); });
    }
  }
  // Cancelled in the middle of a step: the coordinator has lost another rank, or is lost itself. This rank
  // must not wait in a collective, until NCCL notices by itself, for a rank that will not come.
  while (!writer.Drain(kCancelInterval)) {
    if (self->context->IsCancelled()) worker_->AbortUpTo(epoch, "the coordinator has given up the group");
  }
  return refused;
}

absl::Status ExecuteStreams::Admit(OpenStreams::iterator self, const v1::StepRequest& step) {
  const int64_t epoch = step.group_epoch();
  RETURN_IF_ERROR(worker_->CheckEpoch(epoch));
  absl::MutexLock lock(&mu_);
  if (self->epoch == epoch) return absl::OkStatus();
  if (self->epoch != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("group_epoch: the step is of epoch ", epoch, ", its stream of epoch ", self->epoch));
  }
  if (std::any_of(open_.begin(), open_.end(), [&](const Open& open) { return open.epoch == epoch; })) {
    return absl::FailedPreconditionError(
        absl::StrCat("Execute: a step stream of epoch ", epoch, " is already open"));
  }
  self->epoch = epoch;
  return absl::OkStatus();
}

void ExecuteStreams::CancelAll() {
  absl::MutexLock lock(&mu_);
  for (const Open& open : open_) open.context->TryCancel();
}

}  // namespace somnus
