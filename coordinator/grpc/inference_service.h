#pragma once
// InferenceService over a served model. Sync gRPC: each open call has a thread, which parses and tokenizes
// the request, turns outputs into text and writes the responses; at most ApiLimits::max_open_calls are open.
// A call is ended when its client does not read for write_timeout, or when more than max_stream_backlog_bytes
// of the call's outputs wait. The candidates of best_of, which wait for the last candidate, have a
// ResponseBudget. The engine's thread only queues outputs. Thread safe. Internal to coordinator/grpc.

#include <memory>
#include <string>

#include "coordinator/grpc/calls/generate_call.h"
#include "coordinator/http/api_keys.h"
#include "coordinator/http/api_limits.h"
#include "coordinator/openai/model_table.h"
#include "proto/inference.grpc.pb.h"

namespace somnus {

class Metrics;

class InferenceServiceImpl final : public v1::InferenceService::Service {
 public:
  // `models` and `generate_calls` must outlive the service.
  InferenceServiceImpl(const ModelTable* models, std::shared_ptr<Metrics> metrics, ApiKeys api_keys,
                       const ApiLimits& limits, GenerateCalls* generate_calls);

  grpc::Status Generate(grpc::ServerContext* context, const v1::GenerateRequest* request,
                        grpc::ServerWriter<v1::GenerateResponse>* writer) override;
  grpc::Status Embed(grpc::ServerContext* context, const v1::EmbedRequest* request,
                     grpc::ServerWriter<v1::EmbedResponse>* writer) override;
  grpc::Status ListModels(grpc::ServerContext* context, const v1::ListModelsRequest* request,
                          v1::ListModelsResponse* response) override;

 private:
  // Both are defined for the requests and responses of Generate and Embed. Admit keeps the bound of open
  // calls, and makes errors of what is thrown.
  template <typename Request, typename Response>
  grpc::Status Admit(grpc::ServerContext* context, const Request& request,
                     grpc::ServerWriter<Response>* writer, RequestRecord* record);
  template <typename Request, typename Response>
  grpc::Status Serve(grpc::ServerContext* context, const Request& request,
                     grpc::ServerWriter<Response>* writer, RequestRecord* record);

  const ModelTable* const models_;
  const std::shared_ptr<Metrics> metrics_;
  const ApiKeys api_keys_;
  const ApiLimits limits_;
  GenerateCalls* const generate_calls_;
};

}  // namespace somnus
