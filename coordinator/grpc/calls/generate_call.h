#pragma once
// A Generate or Embed call: the request of a client, and the loop that hands the outputs of the request to
// the writer of a protocol. For the call's own thread, except Abort. Internal to coordinator/grpc.

#include <grpcpp/server_context.h>
#include <grpcpp/support/status.h>

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/functional/function_ref.h"
#include "coordinator/grpc/calls/bell.h"
#include "coordinator/grpc/calls/call_slots.h"
#include "coordinator/grpc/calls/write_watch.h"
#include "coordinator/http/api_limits.h"
#include "coordinator/openai/client_request.h"
#include "coordinator/openai/model_table.h"
#include "coordinator/openai/openai_request.h"
#include "coordinator/openai/response_budget.h"
#include "coordinator/records/request_recorder.h"
#include "proto/inference.pb.h"

namespace somnus {

class Metrics;

// The Generate and Embed calls of all services share the bounds and the recorder of calls, which may be null.
// Thread safe.
struct GenerateCalls {
  GenerateCalls(const ApiLimits& limits, WriteWatch* watch, std::shared_ptr<RequestRecorder> call_recorder)
      : slots(limits.max_open_calls),
        held_responses(limits.max_response_bytes, limits.max_buffered_response_bytes),
        write_watch(watch),
        recorder(std::move(call_recorder)) {}

  // Runs `serve`, and records the call. `method` and `service` name the call.
  grpc::Status Record(grpc::ServerContext* context, const char* method, const char* service,
                      absl::FunctionRef<grpc::Status(RequestRecord*)> serve) const;

  CallSlots slots;
  ResponseBudget held_responses;
  WriteWatch* const write_watch;  // not owned
  const std::shared_ptr<RequestRecorder> recorder;
};

// Makes the messages of a protocol out of a request's outputs.
class GenerateWriter {
 public:
  virtual ~GenerateWriter() = default;

  // Takes an output into the next message, and writes messages that are full. False: the client has left.
  virtual bool Add(ChoiceUpdate update) = 0;
  // Writes what waits. `last`: no output follows. False: the client has left.
  virtual bool Flush(bool last) = 0;
  // The bytes of outputs that wait for the end of the request.
  virtual int64_t held_bytes() const { return 0; }
};

class GenerateCall {
 public:
  // `context` and `write_watch` must outlive the call.
  GenerateCall(grpc::ServerContext* context, SharedModel model, GenerateParams params,
               const ApiLimits& limits, WriteWatch* write_watch);
  GenerateCall(const GenerateCall&) = delete;
  GenerateCall& operator=(const GenerateCall&) = delete;

  // Submits the request.
  grpc::Status Start();
  // Hands all outputs to `writer`, until the request is done or the client has left. `held_field`: the field
  // by which a client makes the request hold less. `record` gets the request's summary.
  grpc::Status Run(ResponseBudget* budget, const char* held_field, GenerateWriter* writer,
                   RequestRecord* record);
  // For the writer: runs `write` under the watch. False: the client has left.
  bool Write(absl::FunctionRef<bool()> write) { return write_watch_->Run(*context_, request_, write); }
  // The choices end with kAbort. Any thread.
  void Abort() { request_.Abort(); }

  const ServedModel& model() const { return *model_; }
  const GenerateParams& params() const { return params_; }
  const ClientRequest& request() const { return request_; }

 private:
  // Hands over the outputs that have come.
  grpc::Status HandOver(GenerateWriter* writer);

  grpc::ServerContext* const context_;
  const SharedModel model_;
  GenerateParams params_;  // before request_, which borrows them
  WriteWatch* const write_watch_;
  const std::shared_ptr<Bell> bell_ = std::make_shared<Bell>();
  ClientRequest request_;
};

// Finds the model of a request, reads the fields, and compiles the grammar, if the request has one. Returns
// the error for the client, which `metrics` counts where no model is loaded.
grpc::Status OpenRequest(const grpc::ServerContext& context, const v1::GenerateRequest& request,
                         const ModelTable& models, Metrics* metrics, const ApiLimits& limits,
                         SharedModel* model, GenerateParams* params);
grpc::Status OpenRequest(const grpc::ServerContext& context, const v1::EmbedRequest& request,
                         const ModelTable& models, Metrics* metrics, const ApiLimits& limits,
                         SharedModel* model, GenerateParams* params);

}  // namespace somnus
