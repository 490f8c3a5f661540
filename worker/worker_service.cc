#include "worker/worker_service.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <string>
#include <utility>

#include "absl/synchronization/mutex.h"
#include "base/log.h"
#include "base/monotonic.h"
#include "base/status_macros.h"
#include "proto/status.h"
#include "proto/worker.grpc.pb.h"
#include "worker/execute_streams.h"
#include "worker/operation_log.h"
#include "worker/update_streams.h"
#include "worker/worker.h"

namespace somnus {
namespace {

constexpr absl::Duration kProgressInterval = absl::Milliseconds(50);
// A Fence waits for the device no longer than this, and replies this much before its caller gives up.
constexpr absl::Duration kMaxFencePatience = absl::Minutes(1);
constexpr absl::Duration kReplyMargin = absl::Milliseconds(50);

// How long to wait for the device. gRPC's deadline does not tell: the caller counts only time in which its
// process ran.
absl::Duration PatienceOf(const v1::FenceRequest& request) {
  if (request.patience_ms() <= 0) return kMaxFencePatience;
  return std::clamp(absl::Milliseconds(request.patience_ms()) - kReplyMargin, absl::ZeroDuration(),
                    kMaxFencePatience);
}

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
  Service(Worker* worker, std::function<void()> on_shutdown, OpenUpdatePort open_port)
      : worker_(worker),
        on_shutdown_(std::move(on_shutdown)),
        streams_(worker),
        update_streams_(worker, std::move(open_port)) {}

  grpc::Status Fence(grpc::ServerContext*, const v1::FenceRequest* request,
                     v1::FenceResponse* response) override {
    const int64_t epoch = request->group_epoch();
    absl::StatusOr<v1::WorkerSnapshot> snapshot = worker_->Fence(epoch, PatienceOf(*request), [this] {
      streams_.CancelAll();
      update_streams_.CancelAll();
    });
    if (!snapshot.ok()) return ToGrpcStatus(snapshot.status());
    update_streams_.ClosePort();
    operations_.BeginEpoch(epoch);
    *response->mutable_snapshot() = *std::move(snapshot);
    return grpc::Status::OK;
  }

  grpc::Status NewGroup(grpc::ServerContext*, const v1::NewGroupRequest* request,
                        v1::NewGroupResponse* response) override {
    absl::StatusOr<v1::NewGroupResponse> made = worker_->NewGroup(*request);
    if (made.ok()) *response = *std::move(made);
    return ToGrpcStatus(made.status());
  }

  grpc::Status LoadModel(grpc::ServerContext* context, const v1::LoadModelRequest* request,
                         grpc::ServerWriter<v1::LoadModelEvent>* writer) override {
    ProgressWriter progress(writer);
    v1::LoadModelEvent event;
    absl::Status status = Operate("LoadModel", context, *request, &event, [&] {
      return worker_->LoadModel(*request,
                                [&](int64_t loaded, int64_t total) { progress.Report(loaded, total); });
    });
    if (status.ok()) writer->Write(event);
    return ToGrpcStatus(status);
  }

  grpc::Status JoinGroup(grpc::ServerContext* context, const v1::JoinGroupRequest* request,
                         v1::JoinGroupResponse* response) override {
    using Response = absl::StatusOr<v1::JoinGroupResponse>;
    return ToGrpcStatus(Operate("JoinGroup", context, *request, response, [&]() -> Response {
      RETURN_IF_ERROR(worker_->JoinGroup(*request));
      return OfTheseWeights<v1::JoinGroupResponse>();
    }));
  }

  grpc::Status Profile(grpc::ServerContext* context, const v1::ProfileRequest* request,
                       v1::ProfileResponse* response) override {
    return ToGrpcStatus(
        Operate("Profile", context, *request, response, [&] { return worker_->Profile(*request); }));
  }

  grpc::Status AllocateKvCache(grpc::ServerContext* context, const v1::AllocateKvCacheRequest* request,
                               v1::AllocateKvCacheResponse* response) override {
    using Response = absl::StatusOr<v1::AllocateKvCacheResponse>;
    return ToGrpcStatus(Operate("AllocateKvCache", context, *request, response, [&]() -> Response {
      RETURN_IF_ERROR(worker_->AllocateKvCache(*request).status());
      return OfTheseWeights<v1::AllocateKvCacheResponse>();
    }));
  }

  grpc::Status ResizeKvCache(grpc::ServerContext* context, const v1::ResizeKvCacheRequest* request,
                             v1::ResizeKvCacheResponse* response) override {
    return ToGrpcStatus(Operate("ResizeKvCache", context, *request, response,
                                [&] { return worker_->ResizeKvCache(*request); }));
  }

  grpc::Status Execute(grpc::ServerContext* context, ExecuteStreams::Stream* stream) override {
    return streams_.Serve(context, stream);
  }

  grpc::Status Plan(grpc::ServerContext*, const v1::PlanRequest* request,
                    v1::PlanResponse* response) override {
    absl::StatusOr<v1::PlanResponse> plan = worker_->Plan(*request);
    if (plan.ok()) *response = *std::move(plan);
    return ToGrpcStatus(plan.status());
  }

  grpc::Status Prepare(grpc::ServerContext* context, const v1::PrepareRequest* request,
                       v1::PrepareResponse* response) override {
    using Response = absl::StatusOr<v1::PrepareResponse>;
    return ToGrpcStatus(Operate("Prepare", context, *request, response, [&]() -> Response {
      RETURN_IF_ERROR(worker_->Prepare(*request));
      return OfTheseWeights<v1::PrepareResponse>();
    }));
  }

  grpc::Status Commit(grpc::ServerContext* context, const v1::CommitRequest* request,
                      v1::CommitResponse* response) override {
    using Response = absl::StatusOr<v1::CommitResponse>;
    return ToGrpcStatus(Operate("Commit", context, *request, response, [&]() -> Response {
      ASSIGN_OR_RETURN(v1::CommitResponse done, worker_->Commit(*request));
      done.set_weights_version(worker_->weights_version());
      return done;
    }));
  }

  grpc::Status Abort(grpc::ServerContext* context, const v1::AbortRequest* request,
                     v1::AbortResponse* response) override {
    using Response = absl::StatusOr<v1::AbortResponse>;
    return ToGrpcStatus(Operate("Abort", context, *request, response, [&]() -> Response {
      RETURN_IF_ERROR(worker_->AbortTransition(*request));
      return OfTheseWeights<v1::AbortResponse>();
    }));
  }

  grpc::Status Prefetch(grpc::ServerContext*, const v1::PrefetchRequest* request,
                        v1::PrefetchResponse* response) override {
    absl::StatusOr<v1::PrefetchResponse> prefetch = worker_->Prefetch(*request);
    if (prefetch.ok()) *response = *std::move(prefetch);
    return ToGrpcStatus(prefetch.status());
  }

  grpc::Status SelfCheck(grpc::ServerContext* context, const v1::SelfCheckRequest* request,
                         v1::SelfCheckResponse* response) override {
    return ToGrpcStatus(
        Operate("SelfCheck", context, *request, response, [&] { return worker_->SelfCheck(*request); }));
  }

  grpc::Status ReloadWeights(grpc::ServerContext* context, const v1::WorkerReloadWeightsRequest* request,
                             v1::WorkerReloadWeightsResponse* response) override {
    return ToGrpcStatus(Operate("ReloadWeights", context, *request, response,
                                [&] { return worker_->ReloadWeights(*request); }));
  }

  grpc::Status BeginWeightUpdate(grpc::ServerContext* context, const v1::BeginWeightUpdateRequest* request,
                                 v1::BeginWeightUpdateResponse* response) override {
    using Response = absl::StatusOr<v1::BeginWeightUpdateResponse>;
    return ToGrpcStatus(Operate("BeginWeightUpdate", context, *request, response, [&]() -> Response {
      RETURN_IF_ERROR(worker_->BeginWeightUpdate(*request));
      auto response = OfTheseWeights<v1::BeginWeightUpdateResponse>();
      if (const std::string& token = request->update_port_token(); token.empty()) {
        update_streams_.ClosePort();  // of an update that nobody held it open for
      } else {
        absl::StatusOr<v1::UpdatePort> port = update_streams_.OpenPort(request->update_id(), token);
        if (port.ok()) {
          *response.mutable_update_port() = *std::move(port);
        } else {
          LogInfo("no port for a direct update: {}", std::string(port.status().message()));
        }
      }
      return response;
    }));
  }

  grpc::Status UpdateWeights(grpc::ServerContext* context, UpdateStreams::Reader* reader,
                             v1::WorkerUpdateWeightsResponse* response) override {
    return update_streams_.Serve(context, reader, response);
  }

  grpc::Status FinishWeightUpdate(grpc::ServerContext* context, const v1::FinishWeightUpdateRequest* request,
                                  v1::FinishWeightUpdateResponse* response) override {
    using Response = absl::StatusOr<v1::FinishWeightUpdateResponse>;
    return ToGrpcStatus(Operate("FinishWeightUpdate", context, *request, response, [&]() -> Response {
      RETURN_IF_ERROR(worker_->FinishWeightUpdate(*request));
      return OfTheseWeights<v1::FinishWeightUpdateResponse>();
    }));
  }

  grpc::Status SetAdapters(grpc::ServerContext* context, const v1::SetAdaptersRequest* request,
                           v1::SetAdaptersResponse* response) override {
    return ToGrpcStatus(
        Operate("SetAdapters", context, *request, response, [&] { return worker_->SetAdapters(*request); }));
  }

  grpc::Status ReadAdapters(grpc::ServerContext* context, const v1::ReadAdaptersRequest* request,
                            v1::ReadAdaptersResponse*) override {
    return ToGrpcStatus(worker_->ReadAdapters(*request, [context] { return context->IsCancelled(); }));
  }

  grpc::Status ChecksumWeights(grpc::ServerContext* context, const v1::ChecksumWeightsRequest* request,
                               v1::ChecksumWeightsResponse* response) override {
    absl::StatusOr<v1::ChecksumWeightsResponse> sums =
        worker_->ChecksumWeights(*request, [context] { return context->IsCancelled(); });
    if (sums.ok()) *response = *std::move(sums);
    return ToGrpcStatus(sums.status());
  }

  grpc::Status GetStatus(grpc::ServerContext*, const v1::WorkerStatusRequest* request,
                         v1::WorkerStatusResponse* response) override {
    const absl::Status status = worker_->CheckEpoch(request->group_epoch());
    if (status.ok()) *response = worker_->GetStatus();
    return ToGrpcStatus(status);
  }

  grpc::Status Shutdown(grpc::ServerContext*, const v1::WorkerShutdownRequest* request,
                        v1::WorkerShutdownResponse*) override {
    const absl::Status status = worker_->CheckShutdown(request->group_epoch());
    if (status.ok()) on_shutdown_();
    return ToGrpcStatus(status);
  }

 private:
  // Does the operation by `work`, which returns a Response or an error, or fills in the recorded result of
  // the same one.
  template <typename Request, typename Response, typename Work>
  absl::Status Operate(const char* call, grpc::ServerContext* context, const Request& request,
                       Response* response, const Work& work) {
    RETURN_IF_ERROR(worker_->CheckEpoch(request.group_epoch()));
    const OperationLog::Operation operation = {request.group_epoch(), request.operation_id(), call};
    const auto serialized = [&work]() -> absl::StatusOr<std::string> {
      const absl::StatusOr<Response> done = work();
      RETURN_IF_ERROR(done.status());
      return done->SerializeAsString();
    };
    ASSIGN_OR_RETURN(const std::string result,
                     operations_.Run(
                         operation, [context] { return context->IsCancelled(); }, serialized));
    return response->ParseFromString(result) ? absl::OkStatus() : absl::InternalError("bad operation record");
  }

  template <typename Response>
  Response OfTheseWeights() const {
    Response response;
    response.set_weights_version(worker_->weights_version());
    return response;
  }

  Worker* const worker_;
  const std::function<void()> on_shutdown_;
  ExecuteStreams streams_;
  UpdateStreams update_streams_;
  OperationLog operations_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeWorkerService(Worker* worker, std::function<void()> on_shutdown,
                                                 OpenUpdatePort open_port) {
  return std::make_unique<Service>(worker, std::move(on_shutdown), std::move(open_port));
}

}  // namespace somnus
