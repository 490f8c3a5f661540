#pragma once
// InferenceService with PrefixService, and ControlService with KvEventService, each for a listener of its
// own: the first is for clients, the second for operators. Ownership: it owns the services, and must outlive
// the grpc::Servers that they are registered with. Thread safety: all methods are thread safe; those that
// register are for the time before the server is built.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/http/api_limits.h"
#include "coordinator/openai/served_model.h"
#include "coordinator/residency/state_report.h"

namespace grpc {
class ServerBuilder;
}

namespace somnus {

class Metrics;

struct GrpcServicesOptions {
  std::string version;
  // Non-empty: every call of the service must have the metadata "authorization: Bearer <key>".
  std::string api_key;        // InferenceService's and PrefixService's
  std::string admin_api_key;  // ControlService's and KvEventService's
  ApiLimits limits;
  std::function<StateReport()> starting;  // while models are being loaded, as of ModelTable
};

class GrpcServices {
 public:
  // `metrics` is never null.
  static std::unique_ptr<GrpcServices> Create(GrpcServicesOptions options, std::shared_ptr<Metrics> metrics);
  virtual ~GrpcServices() = default;
  // Each adds its service to a builder, sets its interceptors, and bounds its connections, its threads and
  // the memory of what it reads: gRPC parses a whole message before a handler sees it. Health and reflection
  // are the builder's owner's: call grpc::EnableDefaultHealthCheckService(true) and
  // InitProtoReflectionServerBuilderPlugin() before building.
  virtual void RegisterInference(grpc::ServerBuilder* builder) = 0;
  virtual void RegisterControl(grpc::ServerBuilder* builder) = 0;
  // Before it, calls return UNAVAILABLE. To be called once.
  virtual void SetModels(std::vector<ServedModel> models) = 0;
  void SetModel(ServedModel model);
};

inline void GrpcServices::SetModel(ServedModel model) {
  std::vector<ServedModel> models;
  models.push_back(std::move(model));
  SetModels(std::move(models));
}

}  // namespace somnus
