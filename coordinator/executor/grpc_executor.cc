#include "coordinator/executor/grpc_executor.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "coordinator/executor/failure_latch.h"
#include "coordinator/executor/worker_link.h"
#include "proto/status.h"
#include "proto/worker.grpc.pb.h"

namespace somnus {
namespace {

constexpr absl::Duration kMonitorInterval = absl::Milliseconds(200);

using BytesByTag = std::map<std::string, int64_t>;

class GrpcExecutorImpl : public GrpcExecutor {
 public:
  GrpcExecutorImpl(std::vector<WorkerEndpoint> endpoints, const GrpcExecutorOptions& options)
      : options_(options) {
    for (size_t rank = 0; rank < endpoints.size(); ++rank) {
      workers_.push_back(MakeWorkerLink(rank, std::move(endpoints[rank]), options));
    }
  }

  ~GrpcExecutorImpl() override {
    latch_.SetCallback(nullptr);
    latch_.Fail(absl::CancelledError("the executor has ended"));  // cancels the streams
    {
      absl::MutexLock lock(&monitor_mu_);
      stop_monitor_ = true;
    }
    if (monitor_.joinable()) monitor_.join();
    for (WorkerLink& worker : workers_) {
      if (worker.steps == nullptr) continue;
      worker.steps->Finish();
      latch_.Unregister(worker.step_context.get());
    }
  }

  absl::Status AwaitConnections() override {
    const absl::Time deadline = absl::Now() + options_.connect_timeout;
    for (const WorkerLink& worker : workers_) RETURN_IF_ERROR(AwaitConnection(worker, deadline));
    monitor_ = std::thread([this] { Monitor(); });
    return absl::OkStatus();
  }

  absl::Status ExecuteAsync(const v1::StepRequest& step) override {
    if (absl::Status status = latch_.status(); !status.ok()) return status;
    for (WorkerLink& worker : workers_) {
      if (worker.steps == nullptr && !OpenSteps(&worker)) return latch_.status();
      if (!worker.steps->Write(step)) return StreamBroke(worker);
    }
    sent_.push_back(step.step_id());
    return absl::OkStatus();
  }

  absl::StatusOr<v1::StepReply> Wait(absl::Duration timeout) override {
    if (absl::Status status = latch_.status(); !status.ok()) return status;
    if (sent_.empty()) return absl::FailedPreconditionError("no step is under way");
    const int64_t step_id = sent_.front();
    sent_.pop_front();
    SetDeadline(step_id, timeout);
    absl::StatusOr<v1::StepReply> reply = ReadReplies(step_id);
    SetDeadline(0, absl::InfiniteDuration());
    return reply;
  }

  absl::StatusOr<BytesByTag> Sleep(int level) override {
    v1::WorkerSleepRequest request;
    request.set_level(level);
    std::vector<v1::WorkerSleepResponse> responses(workers_.size());
    std::vector<absl::Status> statuses =
        Collective(options_.lifecycle_timeout, false, [&](size_t rank, auto* context) {
          return workers_[rank].stub->Sleep(context, request, &responses[rank]);
        });
    absl::Status error = First(statuses);
    if (!error.ok()) {
      v1::WorkerWakeUpRequest wake;
      RollBack(statuses, "wake up", [&](size_t rank, grpc::ClientContext* context) {
        v1::WorkerWakeUpResponse response;
        return workers_[rank].stub->WakeUp(context, wake, &response);
      });
      return error;
    }
    sleep_level_ = level;
    BytesByTag bytes;
    for (const auto& response : responses) {
      for (const auto& [tag, count] : response.freed_bytes_by_tag()) bytes[tag] += count;
    }
    return bytes;
  }

  absl::StatusOr<BytesByTag> WakeUp(const std::vector<std::string>& tags) override {
    v1::WorkerWakeUpRequest request;
    request.mutable_tags()->Add(tags.begin(), tags.end());
    std::vector<v1::WorkerWakeUpResponse> responses(workers_.size());
    std::vector<absl::Status> statuses =
        Collective(options_.lifecycle_timeout, false, [&](size_t rank, auto* context) {
          return workers_[rank].stub->WakeUp(context, request, &responses[rank]);
        });
    absl::Status error = First(statuses);
    if (!error.ok()) {
      v1::WorkerSleepRequest sleep;
      sleep.set_level(sleep_level_);
      RollBack(statuses, "put back to sleep", [&](size_t rank, grpc::ClientContext* context) {
        v1::WorkerSleepResponse response;
        return workers_[rank].stub->Sleep(context, sleep, &response);
      });
      return error;
    }
    BytesByTag bytes;
    for (const auto& response : responses) {
      for (const auto& [tag, count] : response.mapped_bytes_by_tag()) bytes[tag] += count;
    }
    return bytes;
  }

  absl::Status Health() const override { return latch_.status(); }
  void OnFailure(std::function<void(absl::Status)> callback) override {
    latch_.SetCallback(std::move(callback));
  }
  void Abort(const absl::Status& reason) override { latch_.Fail(reason); }
  void ReportLoss(const absl::Status& reason) override { latch_.Fail(reason); }

  absl::StatusOr<std::vector<LoadedRank>> LoadModel(
      const v1::LoadModelRequest& request, const std::function<void(int64_t, int64_t)>& progress) override {
    std::vector<LoadedRank> loaded(workers_.size());
    std::vector<std::pair<int64_t, int64_t>> bytes(workers_.size(), {0, 0});
    absl::Mutex mu;
    const auto on_event = [&](size_t rank, const v1::LoadModelEvent& event) {
      if (event.done()) {
        loaded[rank] = {event.weights_bytes(), event.kv_block_bytes(), event.available_kv_bytes()};
        return;
      }
      absl::MutexLock lock(&mu);
      bytes[rank] = {event.bytes_loaded(), event.bytes_total()};
      std::pair<int64_t, int64_t> sum(0, 0);
      for (const auto& [done, total] : bytes) sum = {sum.first + done, sum.second + total};
      progress(sum.first, sum.second);
    };
    ASSIGN_OR_RETURN(const v1::ParallelConfig parallel, NewGroup(request.parallel()));
    absl::Status error =
        First(Collective(options_.load_timeout, true, [&](size_t rank, grpc::ClientContext* context) {
          v1::LoadModelRequest own = request;
          *own.mutable_parallel() = parallel;
          own.mutable_parallel()->set_rank(static_cast<int32_t>(rank));
          auto events = workers_[rank].stub->LoadModel(context, own);
          v1::LoadModelEvent event;
          bool done = false;
          while (events->Read(&event)) {
            on_event(rank, event);
            done = event.done();
          }
          grpc::Status status = events->Finish();
          if (status.ok() && !done)
            return grpc::Status(grpc::StatusCode::INTERNAL, "LoadModel ended without its last event");
          return status;
        }));
    if (!error.ok()) return error;
    return loaded;
  }

  absl::Status AllocateKvCache(const v1::KvCacheConfig& config) override {
    v1::AllocateKvCacheRequest request;
    *request.mutable_kv_cache() = config;
    return First(Collective(options_.lifecycle_timeout, true, [&](size_t rank, grpc::ClientContext* context) {
      v1::AllocateKvCacheResponse response;
      return workers_[rank].stub->AllocateKvCache(context, request, &response);
    }));
  }

  std::vector<absl::StatusOr<v1::WorkerStatusResponse>> RankStatuses(absl::Duration timeout) override {
    std::vector<absl::StatusOr<v1::WorkerStatusResponse>> answers(workers_.size());
    std::vector<v1::WorkerStatusResponse> responses(workers_.size());
    std::vector<absl::Status> statuses =
        Collective(timeout, false, [&](size_t rank, grpc::ClientContext* context) {
          return workers_[rank].stub->GetStatus(context, v1::WorkerStatusRequest(), &responses[rank]);
        });
    for (size_t rank = 0; rank < workers_.size(); ++rank) {
      if (statuses[rank].ok()) {
        answers[rank] = std::move(responses[rank]);
      } else {
        answers[rank] = statuses[rank];
      }
    }
    return answers;
  }

  void Shutdown(absl::Duration timeout) override {
    {
      // From here on a broken connection is what was asked for.
      absl::MutexLock lock(&monitor_mu_);
      stop_monitor_ = true;
    }
    for (WorkerLink& worker : workers_) {
      if (worker.steps != nullptr) worker.steps->WritesDone();
    }
    Collective(timeout, false, [&](size_t rank, grpc::ClientContext* context) {
      v1::WorkerShutdownResponse response;
      return workers_[rank].stub->Shutdown(context, v1::WorkerShutdownRequest(), &response);
    });
  }

 private:
  // What is the same for all ranks of a group.
  absl::StatusOr<v1::ParallelConfig> NewGroup(v1::ParallelConfig parallel) {
    parallel.set_world_size(static_cast<int32_t>(workers_.size()));
    parallel.clear_rank_hosts();
    for (const WorkerLink& worker : workers_) parallel.add_rank_hosts(worker.endpoint.host);
    const bool needs_id = workers_.size() > 1 && workers_[0].endpoint.device_type == v1::DEVICE_TYPE_CUDA;
    if (!needs_id) return parallel;
    v1::NewGroupResponse response;
    RETURN_IF_ERROR(
        First(Collective(options_.lifecycle_timeout, true, [&](size_t rank, grpc::ClientContext* context) {
          if (rank != 0) return grpc::Status::OK;
          return workers_[0].stub->NewGroup(context, v1::NewGroupRequest(), &response);
        })));
    parallel.set_nccl_unique_id(response.nccl_unique_id());
    return parallel;
  }

  absl::Status AwaitConnection(const WorkerLink& worker, absl::Time deadline) {
    // In short waits, so that the loss of a process is heard.
    while (!worker.channel->WaitForConnected(
        absl::ToChronoTime(std::min(deadline, absl::Now() + kMonitorInterval)))) {
      RETURN_IF_ERROR(latch_.status());
      if (absl::Now() < deadline) continue;
      return absl::UnavailableError(absl::StrCat(worker.name, " at ", worker.endpoint.address,
                                                 " could not be reached within ",
                                                 absl::FormatDuration(options_.connect_timeout)));
    }
    return latch_.status();
  }

  bool OpenSteps(WorkerLink* worker) {
    worker->step_context = std::make_unique<grpc::ClientContext>();
    if (!latch_.Register(worker->step_context.get())) return false;
    worker->steps = worker->stub->Execute(worker->step_context.get());
    return true;
  }

  absl::StatusOr<v1::StepReply> ReadReplies(int64_t step_id) {
    v1::StepReply first;
    for (size_t rank = 0; rank < workers_.size(); ++rank) {
      WorkerLink& worker = workers_[rank];
      waiting_for_.store(rank);
      v1::StepReply reply;
      if (!worker.steps->Read(&reply)) return StreamBroke(worker);
      if (reply.error_code() != 0) {
        const absl::Status error(static_cast<absl::StatusCode>(reply.error_code()), reply.error_message());
        return Blame(Annotate(error, absl::StrCat(worker.name, " failed step ", step_id)));
      }
      if (reply.step_id() != step_id) {
        return Blame(absl::InternalError(
            absl::StrCat(worker.name, " answered step ", reply.step_id(), " where ", step_id, " was due")));
      }
      if (rank == 0) first = std::move(reply);
    }
    return first;
  }

  absl::Status StreamBroke(const WorkerLink& worker) {
    return Blame(absl::UnavailableError(absl::StrCat(worker.name, " closed its step stream")));
  }

  // Makes the failure final and answers its cause: the loss of a process, should it become known now, else
  // `status`.
  absl::Status Blame(const absl::Status& status) {
    absl::Status cause = latch_.AwaitFailure(options_.blame_grace);
    if (!cause.ok()) return cause;
    latch_.Fail(status);
    return latch_.status();
  }

  // Runs `call` for every rank at once and answers when all have. `cancel_others`: the first error ends the
  // rest.
  template <typename Call>
  std::vector<absl::Status> Collective(absl::Duration timeout, bool cancel_others, const Call& call) {
    std::vector<absl::Status> statuses(workers_.size());
    std::vector<grpc::ClientContext> contexts(workers_.size());
    std::atomic<bool> failed{false};
    const auto run = [&](size_t rank) {
      grpc::ClientContext& context = contexts[rank];
      context.set_deadline(absl::ToChronoTime(absl::Now() + timeout));
      if (!latch_.Register(&context)) {
        statuses[rank] = latch_.status();
        return;
      }
      absl::Status status = FromGrpcStatus(call(rank, &context));
      latch_.Unregister(&context);
      if (status.ok()) return;
      const bool is_first = !failed.exchange(true);
      if (cancel_others && is_first) {
        for (size_t other = 0; other < contexts.size(); ++other) {
          if (other != rank) contexts[other].TryCancel();
        }
      }
      // Cancelled by the first one's error: not a cause.
      statuses[rank] = cancel_others && !is_first ? absl::CancelledError("cancelled with its group")
                                                  : Annotate(status, workers_[rank].name);
    };
    std::vector<std::thread> threads;
    for (size_t rank = 1; rank < workers_.size(); ++rank) threads.emplace_back(run, rank);
    run(0);
    for (std::thread& thread : threads) thread.join();
    return statuses;
  }

  // The error of a collective: the loss of a rank where a connection broke, else the first rank's that is a
  // cause.
  absl::Status First(const std::vector<absl::Status>& statuses) {
    absl::Status error;
    for (const absl::Status& status : statuses) {
      if (error.ok() || (absl::IsCancelled(error) && !status.ok())) error = status;
    }
    if (!absl::IsUnavailable(error) && !absl::IsCancelled(error)) return error;
    absl::Status cause = latch_.AwaitFailure(options_.blame_grace);
    return cause.ok() ? error : cause;
  }

  // Undoes a collective on every rank that did it. A rank where even that fails makes the group unusable.
  template <typename Call>
  void RollBack(const std::vector<absl::Status>& statuses, const char* what, const Call& undo) {
    if (!latch_.status().ok()) return;
    std::vector<absl::Status> undone =
        Collective(options_.lifecycle_timeout, false, [&](size_t rank, grpc::ClientContext* context) {
          return statuses[rank].ok() ? undo(rank, context) : grpc::Status::OK;
        });
    for (const absl::Status& status : undone) {
      if (!status.ok())
        latch_.Fail(Annotate(status, absl::StrCat("could not be ", what, " after another rank failed")));
    }
  }

  void SetDeadline(int64_t step_id, absl::Duration timeout) {
    absl::MutexLock lock(&monitor_mu_);
    waiting_step_ = step_id;
    step_timeout_ = timeout;
    deadline_ = timeout == absl::InfiniteDuration() ? absl::InfiniteFuture() : absl::Now() + timeout;
  }

  void Monitor() {
    absl::MutexLock lock(&monitor_mu_);
    while (!stop_monitor_) {
      monitor_mu_.AwaitWithTimeout(absl::Condition(&stop_monitor_), kMonitorInterval);
      if (stop_monitor_) return;
      absl::Status failure = CheckDeadline();
      for (const WorkerLink& worker : workers_) {
        if (!failure.ok()) break;
        if (worker.channel->GetState(false) != GRPC_CHANNEL_READY) {
          failure =
              absl::UnavailableError(absl::StrCat(worker.name, " lost its connection to the coordinator"));
        }
      }
      if (failure.ok()) continue;
      monitor_mu_.Unlock();
      // Leaves a local process' exit status the time to become known: it says more than a broken connection.
      if (absl::IsUnavailable(failure)) {
        (void)Blame(failure);
      } else {
        latch_.Fail(failure);
      }
      monitor_mu_.Lock();
      return;
    }
  }

  absl::Status CheckDeadline() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(monitor_mu_) {
    if (absl::Now() < deadline_) return absl::OkStatus();
    return absl::DeadlineExceededError(absl::StrCat(workers_[waiting_for_.load()].name,
                                                    " did not answer step ", waiting_step_, " within ",
                                                    absl::FormatDuration(step_timeout_)));
  }

  const GrpcExecutorOptions options_;
  std::vector<WorkerLink> workers_;  // the vector never changes; `steps` is the engine thread's
  FailureLatch latch_;
  std::deque<int64_t> sent_;
  int sleep_level_ = 1;
  std::atomic<size_t> waiting_for_{0};

  absl::Mutex monitor_mu_;
  bool stop_monitor_ ABSL_GUARDED_BY(monitor_mu_) = false;
  int64_t waiting_step_ ABSL_GUARDED_BY(monitor_mu_) = 0;
  absl::Duration step_timeout_ ABSL_GUARDED_BY(monitor_mu_);
  absl::Time deadline_ ABSL_GUARDED_BY(monitor_mu_) = absl::InfiniteFuture();
  std::thread monitor_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<GrpcExecutor>> GrpcExecutor::Create(std::vector<WorkerEndpoint> workers,
                                                                   const GrpcExecutorOptions& options) {
  if (workers.empty()) return absl::InvalidArgumentError("a group needs at least one worker");
  return std::make_unique<GrpcExecutorImpl>(std::move(workers), options);
}

}  // namespace somnus
