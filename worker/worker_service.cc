#include "worker/worker_service.h"

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/monotonic.h"
#include "proto/status.h"
#include "proto/worker.grpc.pb.h"
#include "worker/worker.h"

namespace somnus {
namespace {

using StepStream = grpc::ServerReaderWriter<v1::StepReply, v1::StepRequest>;

// Steps that were read and have no reply yet. The coordinator sends one or two ahead.
constexpr int kMaxQueuedSteps = 16;
constexpr absl::Duration kCancelInterval = absl::Milliseconds(20);
constexpr absl::Duration kProgressInterval = absl::Milliseconds(50);

// Takes launched steps from the runner thread, waits for each in order, and writes its reply to the stream.
class ReplyWriter {
 public:
  explicit ReplyWriter(StepStream* stream) : stream_(stream), thread_([this] { Loop(); }) {}
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

  StepStream* const stream_;
  std::mutex mu_;  // not absl::Mutex, whose timeouts end by wall time (base/monotonic.h)
  std::condition_variable changed_;
  // Under mu_.
  std::deque<Worker::AwaitReply> steps_;
  int under_way_ = 0;
  bool closed_ = false;
  std::thread thread_;
};

// Writes progress events, at most one in kProgressInterval.
class ProgressWriter {
 public:
  explicit ProgressWriter(grpc::ServerWriter<v1::LoadModelEvent>* writer) : writer_(writer) {}

  void Report(int64_t loaded, int64_t total) {
    if (!mu_.TryLock()) return;  // another thread reports right now
    if (const MonotonicTime now = MonotonicNow(); now >= next_) {
      next_ = now + kProgressInterval;
      v1::LoadModelEvent event;
      event.set_bytes_loaded(loaded);
      event.set_bytes_total(total);
      writer_->Write(event);
    }
    mu_.Unlock();
  }

 private:
  grpc::ServerWriter<v1::LoadModelEvent>* const writer_;
  absl::Mutex mu_;
  MonotonicTime next_ ABSL_GUARDED_BY(mu_) = -absl::InfiniteDuration();
};

class Service : public v1::WorkerService::Service {
 public:
  Service(Worker* worker, std::function<void()> on_shutdown)
      : worker_(worker), on_shutdown_(std::move(on_shutdown)) {}

  grpc::Status NewGroup(grpc::ServerContext*, const v1::NewGroupRequest*,
                        v1::NewGroupResponse* response) override {
    absl::StatusOr<std::string> id = worker_->NewGroup();
    if (id.ok()) response->set_nccl_unique_id(*id);
    return ToGrpcStatus(id.status());
  }

  grpc::Status LoadModel(grpc::ServerContext*, const v1::LoadModelRequest* request,
                         grpc::ServerWriter<v1::LoadModelEvent>* writer) override {
    ProgressWriter progress(writer);
    absl::StatusOr<v1::LoadModelEvent> event =
        worker_->LoadModel(*request, [&](int64_t loaded, int64_t total) { progress.Report(loaded, total); });
    if (event.ok()) writer->Write(*event);
    return ToGrpcStatus(event.status());
  }

  grpc::Status AllocateKvCache(grpc::ServerContext*, const v1::AllocateKvCacheRequest* request,
                               v1::AllocateKvCacheResponse*) override {
    return ToGrpcStatus(worker_->AllocateKvCache(request->kv_cache()).status());
  }

  grpc::Status Execute(grpc::ServerContext* context, StepStream* stream) override {
    if (streaming_.exchange(true)) {
      return grpc::Status(grpc::StatusCode::FAILED_PRECONDITION, "Execute: a step stream is already open");
    }
    {
      ReplyWriter writer(stream);
      v1::StepRequest request;
      while (stream->Read(&request)) {
        writer.Reserve();
        worker_->ExecuteAsync(std::move(request),
                              [&writer](Worker::AwaitReply step) { writer.Push(std::move(step)); });
        request.Clear();
      }
      // Cancelled in the middle of a step: the coordinator has lost another rank, or is lost itself. This
      // rank must not wait in a collective, until NCCL notices by itself, for a rank that will not come.
      while (!writer.Drain(kCancelInterval)) {
        if (context->IsCancelled()) worker_->Abort("the coordinator has given up the group");
      }
    }
    streaming_ = false;
    return grpc::Status::OK;
  }

  grpc::Status Sleep(grpc::ServerContext*, const v1::WorkerSleepRequest* request,
                     v1::WorkerSleepResponse* response) override {
    absl::StatusOr<Worker::BytesByTag> freed = worker_->Sleep(request->level());
    if (freed.ok()) response->mutable_freed_bytes_by_tag()->insert(freed->begin(), freed->end());
    return ToGrpcStatus(freed.status());
  }

  grpc::Status WakeUp(grpc::ServerContext*, const v1::WorkerWakeUpRequest* request,
                      v1::WorkerWakeUpResponse* response) override {
    const std::vector<std::string> tags(request->tags().begin(), request->tags().end());
    absl::StatusOr<Worker::BytesByTag> mapped = worker_->WakeUp(tags);
    if (mapped.ok()) response->mutable_mapped_bytes_by_tag()->insert(mapped->begin(), mapped->end());
    return ToGrpcStatus(mapped.status());
  }

  grpc::Status GetStatus(grpc::ServerContext*, const v1::WorkerStatusRequest*,
                         v1::WorkerStatusResponse* response) override {
    *response = worker_->GetStatus();
    return grpc::Status::OK;
  }

  grpc::Status Shutdown(grpc::ServerContext*, const v1::WorkerShutdownRequest*,
                        v1::WorkerShutdownResponse*) override {
    on_shutdown_();
    return grpc::Status::OK;
  }

 private:
  Worker* const worker_;
  const std::function<void()> on_shutdown_;
  std::atomic<bool> streaming_{false};
};

}  // namespace

std::unique_ptr<grpc::Service> MakeWorkerService(Worker* worker, std::function<void()> on_shutdown) {
  return std::make_unique<Service>(worker, std::move(on_shutdown));
}

}  // namespace somnus
