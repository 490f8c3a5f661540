#pragma once
// InferenceService with PrefixService and the gateways' VllmEngine, and ControlService with KvEventService,
// each group for a listener of its own: the first group is for clients, the second for operators. Ownership:
// this object owns the services, and must outlive the grpc::Servers that have the services registered. Thread
// safety: all methods are thread safe; the methods that register must be called before the server is built.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/http/api_keys.h"
#include "coordinator/http/api_limits.h"
#include "coordinator/openai/served_model.h"
#include "coordinator/records/request_recorder.h"
#include "coordinator/residency/state_report.h"

namespace grpc {
class ServerBuilder;
}

namespace somnus {

class Metrics;

struct GrpcServicesOptions {
  std::string version;
  // Non-empty: every call of the service must have the metadata "authorization: Bearer <key>".
  ApiKeys api_keys;              // InferenceService's, PrefixService's and VllmEngine's
  ApiKeys admin_api_keys;        // ControlService's and KvEventService's
  bool trusts_gateways = false;  // as of GatewayOptions
  ApiLimits limits;
  std::shared_ptr<RequestRecorder> recorder;  // of calls that compute tokens; may be null
  std::function<StateReport()> starting;      // while models are being loaded, as of ModelTable
};

class GrpcServices {
 public:
  // `metrics` is never null.
  static std::unique_ptr<GrpcServices> Create(GrpcServicesOptions options, std::shared_ptr<Metrics> metrics);
  virtual ~GrpcServices() = default;
  // Each adds its service to a builder, sets its interceptors, and bounds the connections, the threads and
  // the memory of messages: gRPC parses a whole message before a handler sees the message. The builder's
  // owner adds health and reflection: call grpc::EnableDefaultHealthCheckService(true) and
  // InitProtoReflectionServerBuilderPlugin() before building.
  virtual void RegisterInference(grpc::ServerBuilder* builder) = 0;
  virtual void RegisterControl(grpc::ServerBuilder* builder) = 0;
  // Until then calls return UNAVAILABLE. To be called once.
  virtual void SetModels(std::vector<ServedModel> models) = 0;
  void SetModel(ServedModel model);
};

inline void GrpcServices::SetModel(ServedModel model) {
  std::vector<ServedModel> models;
  models.push_back(std::move(model));
  SetModels(std::move(models));
}

}  // namespace somnus
