#include "coordinator/grpc/grpc_services.h"

#include <google/protobuf/message.h>
#include <google/protobuf/unknown_field_set.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/resource_quota.h>

#include <algorithm>
#include <utility>

#include "base/cpus.h"
#include "coordinator/grpc/calls/write_watch.h"
#include "coordinator/grpc/control_service.h"
#include "coordinator/grpc/gateway/vllm_engine_service.h"
#include "coordinator/grpc/inference_service.h"
#include "coordinator/grpc/kv_event_service.h"
#include "coordinator/grpc/prefix_service.h"
#include "coordinator/grpc/request_decoding.h"
#include "coordinator/grpc/request_memory.h"
#include "coordinator/metrics/metrics.h"
#include "coordinator/openai/model_table.h"
#include "proto/limits.h"

namespace somnus {
namespace {

constexpr int kMaxQueues = 4;  // on which calls arrive; each queue has one or two threads that wait for calls
// For the queues' threads, for calls that are refused, and for calls of PrefixService and VllmEngine.
constexpr int kSpareThreads = 32 + PrefixServiceImpl::kMaxOpenCalls + 2 * VllmEngineService::kMaxOtherCalls;
constexpr size_t kBaseBytes = 64 << 20;  // for connections and calls, without messages
// ControlService has few callers, with short messages, but for chunks of weights.
constexpr int kMaxControlStreams = 256;  // of a connection; also bounds reflection, which counts no streams
constexpr int kControlMessageBytes = kMaxWeightChunkBytes + (64 << 10);
// A connection that has had no call for so long is closed, and so is a connection with a client that does not
// reply to pings.
constexpr absl::Duration kIdleConnection = absl::Minutes(10);
constexpr absl::Duration kPingInterval = absl::Minutes(1);
constexpr absl::Duration kPingTimeout = absl::Seconds(20);
// Clients may ping that often, with or without a call; the connection of a client that pings more often is
// closed.
constexpr absl::Duration kLeastPingInterval = absl::Seconds(10);
constexpr absl::Duration kHandshakeTimeout = absl::Seconds(10);

void SetTime(grpc::ServerBuilder* builder, const char* argument, absl::Duration time) {
  builder->AddChannelArgument(argument, static_cast<int>(absl::ToInt64Milliseconds(time)));
}

// Bounds the cost of a connection.
void BoundConnections(int max_streams, int max_header_bytes, grpc::ServerBuilder* builder) {
  builder->AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, max_streams);
  builder->AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, max_header_bytes);
  SetTime(builder, GRPC_ARG_MAX_CONNECTION_IDLE_MS, kIdleConnection);
  SetTime(builder, GRPC_ARG_KEEPALIVE_TIME_MS, kPingInterval);
  SetTime(builder, GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kPingTimeout);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  SetTime(builder, GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, kLeastPingInterval);
  SetTime(builder, GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, kHandshakeTimeout);
}

void Intercept(const std::shared_ptr<WriteWatch>& write_watch, grpc::ServerBuilder* builder) {
  std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>> interceptors;
  interceptors.push_back(NameUndecodableRequests());
  interceptors.push_back(WatchReplies(write_watch));
  interceptors.push_back(ReturnRequestMemory());
  builder->experimental().SetInterceptorCreators(std::move(interceptors));
}

class GrpcServicesImpl : public GrpcServices {
 public:
  GrpcServicesImpl(GrpcServicesOptions options, std::shared_ptr<Metrics> metrics)
      : limits_(options.limits),
        write_watch_(std::make_shared<WriteWatch>(limits_.write_timeout)),
        metrics_(std::move(metrics)),
        models_(options.starting),
        generate_calls_(limits_, write_watch_.get(), options.recorder),
        inference_(&models_, metrics_, options.api_keys, options.limits, &generate_calls_),
        gateway_(&models_, metrics_,
                 {options.version, options.api_keys, options.trusts_gateways, options.limits},
                 &generate_calls_),
        prefixes_(&models_, options.api_keys, options.limits),
        kv_events_(&models_, options.admin_api_keys, limits_.max_kv_event_watchers, write_watch_),
        control_(&models_, std::move(options)) {}

  void RegisterInference(grpc::ServerBuilder* builder) override {
    builder->RegisterService(&inference_);
    builder->RegisterService(&prefixes_);
    builder->RegisterService(&gateway_);
    Intercept(write_watch_, builder);
    const int num_threads = limits_.max_open_calls + limits_.max_kv_event_watchers + kSpareThreads;
    BoundConnections(num_threads, limits_.max_header_bytes, builder);
    builder->SetMaxReceiveMessageSize(static_cast<int>(limits_.max_grpc_message_bytes));
    grpc::ResourceQuota quota("somnus inference");
    quota.Resize(kBaseBytes + static_cast<size_t>(limits_.max_buffered_body_bytes));
    quota.SetMaxThreads(num_threads);
    builder->SetResourceQuota(quota);
    builder->SetSyncServerOption(grpc::ServerBuilder::SyncServerOption::NUM_CQS,
                                 std::min(kMaxQueues, NumAllowedCpus()));
  }
  void RegisterControl(grpc::ServerBuilder* builder) override {
    builder->RegisterService(&control_);
    builder->RegisterService(&kv_events_);
    Intercept(write_watch_, builder);
    const int num_threads =
        limits_.max_control_calls + limits_.max_transition_watchers + limits_.max_kv_event_watchers;
    BoundConnections(std::min(num_threads, kMaxControlStreams), limits_.max_header_bytes, builder);
    builder->SetMaxReceiveMessageSize(kControlMessageBytes);
    grpc::ResourceQuota quota("somnus control");
    quota.Resize(kBaseBytes);
    quota.SetMaxThreads(num_threads);
    builder->SetResourceQuota(quota);
    builder->SetSyncServerOption(grpc::ServerBuilder::SyncServerOption::NUM_CQS, 1);
  }
  void SetModels(std::vector<ServedModel> models) override {
    for (ServedModel& model : models) {
      if (model.metrics == nullptr) model.metrics = metrics_;
    }
    models_.Set(std::move(models));
  }

 private:
  const ApiLimits limits_;
  const std::shared_ptr<WriteWatch> write_watch_;
  const std::shared_ptr<Metrics> metrics_;
  ModelTable models_;
  GenerateCalls generate_calls_;
  InferenceServiceImpl inference_;
  VllmEngineService gateway_;
  PrefixServiceImpl prefixes_;
  KvEventServiceImpl kv_events_;
  ControlServiceImpl control_;
};

}  // namespace

std::unique_ptr<GrpcServices> GrpcServices::Create(GrpcServicesOptions options,
                                                   std::shared_ptr<Metrics> metrics) {
  return std::make_unique<GrpcServicesImpl>(std::move(options), std::move(metrics));
}

}  // namespace somnus
