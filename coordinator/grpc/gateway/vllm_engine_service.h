#pragma once
// The engine's side of the gateways' protocol (proto/vllm_engine.proto) over the first served model, on
// clients' listener. Sync gRPC: each open call has a thread. Thread safe. Internal to coordinator/grpc.

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/functional/function_ref.h"
#include "coordinator/grpc/calls/call_slots.h"
#include "coordinator/grpc/calls/generate_call.h"
#include "coordinator/grpc/gateway/load_report.h"
#include "coordinator/grpc/gateway/open_calls.h"
#include "coordinator/grpc/gateway/wire.h"
#include "coordinator/http/api_keys.h"
#include "coordinator/http/api_limits.h"
#include "coordinator/openai/model_table.h"

namespace somnus {

class Metrics;

struct GatewayOptions {
  std::string version;
  ApiKeys api_keys;  // as of InferenceService; HealthCheck needs none, like /readyz
  // The callers are gateways alone, which may read the prompts of all clients (SubscribeKvEvents) and empty
  // the prefix cache (FlushCache).
  bool trusts_callers = false;
  ApiLimits limits;
};

class VllmEngineService final : public ::vllm::grpc::engine::VllmEngine::Service {
 public:
  // Calls of GetTokenizer and of FlushCache that may be open, of each; RESOURCE_EXHAUSTED above.
  static constexpr int32_t kMaxOtherCalls = 4;

  // `models` and `generate_calls` must outlive the service.
  VllmEngineService(const ModelTable* models, std::shared_ptr<Metrics> metrics, GatewayOptions options,
                    GenerateCalls* generate_calls);

  grpc::Status Generate(grpc::ServerContext* context, const gateway::wire::GenerateRequest* request,
                        grpc::ServerWriter<gateway::wire::GenerateResponse>* writer) override;
  grpc::Status Embed(grpc::ServerContext* context, const gateway::wire::EmbedRequest* request,
                     gateway::wire::EmbedResponse* response) override;
  grpc::Status HealthCheck(grpc::ServerContext* context, const gateway::wire::HealthCheckRequest* request,
                           gateway::wire::HealthCheckResponse* response) override;
  grpc::Status FlushCache(grpc::ServerContext* context, const gateway::common::FlushCacheRequest* request,
                          gateway::common::FlushCacheResponse* response) override;
  grpc::Status StartProfile(grpc::ServerContext* context, const gateway::common::StartProfileRequest* request,
                            gateway::common::ProfileResponse* response) override;
  grpc::Status StopProfile(grpc::ServerContext* context, const gateway::common::StopProfileRequest* request,
                           gateway::common::ProfileResponse* response) override;
  grpc::Status Abort(grpc::ServerContext* context, const gateway::wire::AbortRequest* request,
                     gateway::wire::AbortResponse* response) override;
  grpc::Status GetModelInfo(grpc::ServerContext* context, const gateway::wire::GetModelInfoRequest* request,
                            gateway::wire::GetModelInfoResponse* response) override;
  grpc::Status GetServerInfo(grpc::ServerContext* context, const gateway::wire::GetServerInfoRequest* request,
                             gateway::wire::GetServerInfoResponse* response) override;
  grpc::Status GetLoads(grpc::ServerContext* context, const gateway::wire::GetLoadsRequest* request,
                        gateway::wire::GetLoadsResponse* response) override;
  grpc::Status GetTokenizer(grpc::ServerContext* context, const gateway::common::GetTokenizerRequest* request,
                            grpc::ServerWriter<gateway::common::GetTokenizerChunk>* writer) override;
  grpc::Status SubscribeKvEvents(grpc::ServerContext* context,
                                 const gateway::common::SubscribeKvEventsRequest* request,
                                 grpc::ServerWriter<gateway::common::KvEventBatch>* writer) override;

 private:
  // The key is right, and there is a model.
  grpc::Status Open(grpc::ServerContext* context, SharedModel* model) const;
  // Runs `serve`, which answers a call of `method`, within the bound of open calls and for callers with the
  // key, makes an error of what is thrown, and records the call.
  grpc::Status Guarded(grpc::ServerContext* context, const char* method,
                       absl::FunctionRef<grpc::Status(RequestRecord*)> serve);
  // Computes a request of our own for a gateway, which may abort the request by its request_id. `make_writer`
  // returns the writer of the call's responses, in a unique_ptr. `held_field`: as of GenerateCall::Run.
  template <typename Request, typename MakeWriter>
  grpc::Status Serve(grpc::ServerContext* context, const Request& request, const char* held_field,
                     RequestRecord* record, const MakeWriter& make_writer);

  const ModelTable* const models_;
  const std::shared_ptr<Metrics> metrics_;
  const GatewayOptions options_;
  GenerateCalls* const generate_calls_;
  CallSlots tokenizers_{kMaxOtherCalls};
  CallSlots flushes_{kMaxOtherCalls};
  CallSlots watchers_;
  gateway::OpenCalls open_calls_;
  gateway::RateMeter generated_;  // tokens
  const MonotonicTime start_ = MonotonicNow();
  std::atomic<int64_t> last_receive_us_{0};  // Unix time of the last Generate; 0: none
};

}  // namespace somnus
