#include "coordinator/executor/grpc_executor.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <deque>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "base/status_macros.h"
#include "coordinator/executor/collective_calls.h"
#include "coordinator/executor/failure_latch.h"
#include "coordinator/executor/group_monitor.h"
#include "coordinator/executor/group_sleep.h"
#include "coordinator/executor/step_streams.h"
#include "coordinator/executor/worker_link.h"
#include "proto/worker.grpc.pb.h"

namespace somnus {
namespace {

constexpr absl::Duration kConnectPoll = absl::Milliseconds(200);

std::vector<WorkerLink> MakeLinks(std::vector<WorkerEndpoint> endpoints) {
  std::vector<WorkerLink> links;
  for (size_t rank = 0; rank < endpoints.size(); ++rank) {
    links.push_back(MakeWorkerLink(rank, std::move(endpoints[rank])));
  }
  return links;
}

// Adds up the ranks' progress of loading, and collects their results.
class LoadSum {
 public:
  LoadSum(size_t num_ranks, const std::function<void(int64_t, int64_t)>& progress)
      : progress_(progress), loaded_(num_ranks), bytes_(num_ranks, {0, 0}) {}

  void Add(size_t rank, const v1::LoadModelEvent& event) {
    absl::MutexLock lock(&mu_);
    if (event.done()) {
      loaded_[rank] = {event.weights_bytes(), event.kv_block_bytes(), event.available_kv_cache_memory_bytes(),
                       event.graph_bytes(), absl::Microseconds(event.graph_capture_us())};
      return;
    }
    bytes_[rank] = {event.bytes_loaded(), event.bytes_total()};
    std::pair<int64_t, int64_t> sum(0, 0);
    for (const auto& [done, total] : bytes_) sum = {sum.first + done, sum.second + total};
    progress_(sum.first, sum.second);
  }
  // To be called once no rank loads any longer.
  std::vector<LoadedRank> Take() {
    absl::MutexLock lock(&mu_);
    return std::move(loaded_);
  }

 private:
  const std::function<void(int64_t, int64_t)>& progress_;
  absl::Mutex mu_;
  std::vector<LoadedRank> loaded_ ABSL_GUARDED_BY(mu_);
  std::vector<std::pair<int64_t, int64_t>> bytes_ ABSL_GUARDED_BY(mu_);
};

grpc::Status LoadRank(const WorkerLink& worker, size_t rank, const v1::LoadModelRequest& request,
                      grpc::ClientContext* context, LoadSum* sum) {
  v1::LoadModelRequest own = request;
  own.mutable_parallel()->set_rank(static_cast<int32_t>(rank));
  auto events = worker.stub->LoadModel(context, own);
  v1::LoadModelEvent event;
  bool done = false;
  while (events->Read(&event)) {
    sum->Add(rank, event);
    done = event.done();
  }
  grpc::Status status = events->Finish();
  if (status.ok() && !done)
    return grpc::Status(grpc::StatusCode::INTERNAL, "LoadModel ended without its last event");
  return status;
}

class GrpcExecutorImpl : public GrpcExecutor {
 public:
  GrpcExecutorImpl(std::vector<WorkerEndpoint> endpoints, const GrpcExecutorOptions& options)
      : options_(options),
        workers_(MakeLinks(std::move(endpoints))),
        calls_(&workers_, &latch_, options.blame_grace),
        sleep_(&calls_, &latch_, workers_.size(), options),
        streams_(&workers_, &latch_, options.blame_grace),
        monitor_(&workers_, &streams_, &latch_, options.blame_grace, options.now) {}

  ~GrpcExecutorImpl() override {
    latch_.SetCallback(nullptr);
    latch_.Fail(absl::CancelledError("the executor has ended"));  // cancels the streams
  }

  absl::Status AwaitConnections() override {
    const MonotonicTime deadline = MonotonicNow() + options_.connect_timeout;
    for (const WorkerLink& worker : workers_) RETURN_IF_ERROR(AwaitConnection(worker, deadline));
    monitor_.Start();
    return absl::OkStatus();
  }

  absl::Status ExecuteAsync(const v1::StepRequest& step) override {
    if (absl::Status status = latch_.status(); !status.ok()) return status;
    RETURN_IF_ERROR(streams_.Send(step));
    sent_.push_back(step.step_id());
    return absl::OkStatus();
  }

  absl::StatusOr<v1::StepReply> Wait(absl::Duration timeout) override {
    if (absl::Status status = latch_.status(); !status.ok()) return status;
    if (sent_.empty()) return absl::FailedPreconditionError("no step is under way");
    const int64_t step_id = sent_.front();
    sent_.pop_front();
    monitor_.AwaitStep(step_id, timeout);
    absl::StatusOr<v1::StepReply> reply = streams_.Receive(step_id);
    monitor_.StepArrived();
    return reply;
  }

  absl::StatusOr<TagBytes> Sleep(int level, const Residency& before) override {
    return sleep_.Sleep(level, before);
  }
  absl::StatusOr<TagBytes> WakeUp(const std::vector<std::string>& tags, const Residency& before) override {
    return sleep_.WakeUp(tags, before);
  }

  absl::Status Health() const override { return latch_.status(); }
  absl::Status Progress() const override {
    absl::MutexLock lock(&stall_mu_);
    return stall_;
  }
  void OnFailure(std::function<void(absl::Status)> callback) override {
    latch_.SetCallback(std::move(callback));
  }
  void Abort(const absl::Status& reason) override { latch_.Fail(reason); }
  // A lost worker is not replaced yet, so every failure is final.
  void Recover(const Residency&) override {
    absl::MutexLock lock(&recovered_mu_);
    if (on_recovered_) on_recovered_(latch_.status());
  }
  void OnRecovered(std::function<void(absl::Status)> callback) override {
    absl::MutexLock lock(&recovered_mu_);
    on_recovered_ = std::move(callback);
  }
  void ReportLoss(const absl::Status& reason) override { latch_.Fail(reason); }
  void ReportStall(const absl::Status& stall) override {
    absl::MutexLock lock(&stall_mu_);
    stall_ = stall;
  }

  absl::StatusOr<std::vector<LoadedRank>> LoadModel(
      const v1::LoadModelRequest& request, const std::function<void(int64_t, int64_t)>& progress) override {
    v1::LoadModelRequest group = request;
    ASSIGN_OR_RETURN(*group.mutable_parallel(), NewGroup(request.parallel()));
    LoadSum sum(workers_.size(), progress);
    RETURN_IF_ERROR(calls_.FirstError(calls_.RunUntilError(
        options_.load_timeout, [&](const WorkerLink& worker, size_t rank, grpc::ClientContext* context) {
          return LoadRank(worker, rank, group, context, &sum);
        })));
    return sum.Take();
  }

  absl::Status AllocateKvCache(const v1::KvCacheConfig& config) override {
    v1::AllocateKvCacheRequest request;
    *request.mutable_kv_cache() = config;
    return calls_.FirstError(calls_.RunUntilError(
        options_.lifecycle_timeout, [&](const WorkerLink& worker, size_t, grpc::ClientContext* context) {
          v1::AllocateKvCacheResponse response;
          return worker.stub->AllocateKvCache(context, request, &response);
        }));
  }

  std::vector<absl::StatusOr<v1::WorkerStatusResponse>> RankStatuses(absl::Duration timeout) override {
    std::vector<absl::StatusOr<v1::WorkerStatusResponse>> results(workers_.size());
    std::vector<v1::WorkerStatusResponse> responses(workers_.size());
    const std::vector<absl::Status> statuses =
        calls_.Run(timeout, [&](const WorkerLink& worker, size_t rank, grpc::ClientContext* context) {
          return worker.stub->GetStatus(context, v1::WorkerStatusRequest(), &responses[rank]);
        });
    for (size_t rank = 0; rank < workers_.size(); ++rank) {
      if (statuses[rank].ok()) {
        results[rank] = std::move(responses[rank]);
      } else {
        results[rank] = statuses[rank];
      }
    }
    return results;
  }

  void Shutdown(absl::Duration timeout) override {
    monitor_.Stop();
    streams_.Close();
    calls_.Run(timeout, [&](const WorkerLink& worker, size_t, grpc::ClientContext* context) {
      v1::WorkerShutdownResponse response;
      return worker.stub->Shutdown(context, v1::WorkerShutdownRequest(), &response);
    });
  }

 private:
  // Fills in what is the same for all ranks of a group.
  absl::StatusOr<v1::ParallelConfig> NewGroup(v1::ParallelConfig parallel) {
    parallel.set_world_size(static_cast<int32_t>(workers_.size()));
    parallel.clear_rank_hosts();
    for (const WorkerLink& worker : workers_) parallel.add_rank_hosts(worker.endpoint.host);
    const bool needs_id = workers_.size() > 1 && workers_[0].endpoint.device_type == v1::DEVICE_TYPE_CUDA;
    if (!needs_id) return parallel;
    v1::NewGroupResponse response;
    RETURN_IF_ERROR(calls_.FirstError(calls_.RunUntilError(
        options_.lifecycle_timeout, [&](const WorkerLink& worker, size_t rank, grpc::ClientContext* context) {
          if (rank != 0) return grpc::Status::OK;
          return worker.stub->NewGroup(context, v1::NewGroupRequest(), &response);
        })));
    parallel.set_nccl_unique_id(response.nccl_unique_id());
    return parallel;
  }

  absl::Status AwaitConnection(const WorkerLink& worker, MonotonicTime deadline) {
    // The waits are short, so that the loss of a process ends them.
    while (!worker.channel->WaitForConnected(absl::ToChronoTime(absl::Now() + kConnectPoll))) {
      RETURN_IF_ERROR(latch_.status());
      if (MonotonicNow() < deadline) continue;
      return absl::UnavailableError(absl::StrCat(worker.name, " at ", worker.endpoint.address,
                                                 " could not be reached within ",
                                                 absl::FormatDuration(options_.connect_timeout)));
    }
    return latch_.status();
  }

  const GrpcExecutorOptions options_;
  const std::vector<WorkerLink> workers_;
  FailureLatch latch_;
  const CollectiveCalls calls_;
  GroupSleep sleep_;
  StepStreams streams_;
  std::deque<int64_t> sent_;  // ids of steps not yet waited for; the engine thread's
  absl::Mutex recovered_mu_;
  std::function<void(absl::Status)> on_recovered_ ABSL_GUARDED_BY(recovered_mu_);
  mutable absl::Mutex stall_mu_;
  absl::Status stall_ ABSL_GUARDED_BY(stall_mu_);
  GroupMonitor monitor_;  // last: its thread ends before what it watches
};

}  // namespace

absl::StatusOr<std::unique_ptr<GrpcExecutor>> GrpcExecutor::Create(std::vector<WorkerEndpoint> workers,
                                                                   const GrpcExecutorOptions& options) {
  if (workers.empty()) return absl::InvalidArgumentError("a group needs at least one worker");
  return std::make_unique<GrpcExecutorImpl>(std::move(workers), options);
}

}  // namespace somnus
