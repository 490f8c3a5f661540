#pragma once
// InferenceService over a served model. Sync gRPC: each open call has a thread, which parses and tokenizes
// the request, turns outputs into text and writes the responses; at most ApiLimits::max_open_calls are open.
// A call is ended when its client does not read for write_timeout, or when more than max_stream_backlog_bytes
// of the call's outputs wait. The candidates of best_of, which wait for the last candidate, have a
// ResponseBudget. The engine's thread only queues outputs. Thread safe. Internal to coordinator/grpc.

#include <atomic>
#include <memory>
#include <string>

#include "coordinator/grpc/write_watch.h"
#include "coordinator/http/api_limits.h"
#include "coordinator/openai/model_table.h"
#include "coordinator/openai/response_budget.h"
#include "coordinator/records/request_recorder.h"
#include "proto/inference.grpc.pb.h"

namespace somnus {

class Metrics;

class InferenceServiceImpl final : public v1::InferenceService::Service {
 public:
  // `models` must outlive the service. `recorder`: of calls of Generate; may be null.
  InferenceServiceImpl(const ModelTable* models, std::shared_ptr<Metrics> metrics, std::string api_key,
                       const ApiLimits& limits, std::shared_ptr<WriteWatch> write_watch,
                       std::shared_ptr<RequestRecorder> recorder = nullptr);

  grpc::Status Generate(grpc::ServerContext* context, const v1::GenerateRequest* request,
                        grpc::ServerWriter<v1::GenerateResponse>* writer) override;
  grpc::Status Embed(grpc::ServerContext* context, const v1::EmbedRequest* request,
                     grpc::ServerWriter<v1::EmbedResponse>* writer) override;
  grpc::Status ListModels(grpc::ServerContext* context, const v1::ListModelsRequest* request,
                          v1::ListModelsResponse* response) override;

 private:
  // The three are defined for the requests and responses of Generate and Embed. Admit records the request.
  template <typename Request, typename Response>
  grpc::Status Admit(grpc::ServerContext* context, const char* method, const Request& request,
                     grpc::ServerWriter<Response>* writer);
  // Within the bounds of open calls, and with errors for what is thrown.
  template <typename Request, typename Response>
  grpc::Status Guard(grpc::ServerContext* context, const Request& request,
                     grpc::ServerWriter<Response>* writer, RequestRecord* record);
  template <typename Request, typename Response>
  grpc::Status Serve(grpc::ServerContext* context, const Request& request,
                     grpc::ServerWriter<Response>* writer, RequestRecord* record);

  const ModelTable* const models_;
  const std::shared_ptr<Metrics> metrics_;
  const std::string api_key_;
  const ApiLimits limits_;
  std::atomic<int32_t> open_calls_{0};
  ResponseBudget held_responses_;
  const std::shared_ptr<WriteWatch> write_watch_;
  const std::shared_ptr<RequestRecorder> recorder_;  // of calls of Generate; may be null
};

}  // namespace somnus
