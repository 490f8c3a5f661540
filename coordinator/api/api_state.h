#pragma once
// What all HTTP connections share, and the responses of routes that need no generation. No sockets. Thread
// safe.

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/strings/string_view.h"
#include "coordinator/api/api_server.h"
#include "coordinator/api/http_response.h"
#include "coordinator/api/model_slot.h"
#include "coordinator/api/routes.h"
#include "coordinator/metrics/metrics.h"

namespace somnus {

class ApiState {
 public:
  ApiState(ApiServerOptions options, std::shared_ptr<Metrics> metrics);

  const ApiServerOptions options;
  const std::shared_ptr<Metrics> metrics;
  const int64_t created;  // Unix seconds
  // The ports that the listeners got, for /server_info. Set before the first connection.
  uint16_t http_port = 0, admin_port = 0;
  std::atomic<int64_t> load{0};  // generation requests in progress

  void SetModel(ServedModel model) { slot_.Set(std::move(model)); }
  std::shared_ptr<const ServedModel> model() const { return slot_.Get(); }  // null while loading

  // BearerMatches of api_key.h, with the key of clients or of operators.
  bool Authorized(bool admin, absl::string_view authorization) const;

  // The response of a route that does not block: all but completions, chat, (de)tokenize and those of
  // IsLifecycle.
  HttpResponse Answer(const RouteMatch& match) const;
  // Calls AnswerLifecycle of lifecycle_routes.h, which blocks; 503 while the model loads.
  HttpResponse AnswerLifecycle(const RouteSpec& spec, absl::string_view query, absl::string_view body) const;

 private:
  HttpResponse Models(absl::string_view name) const;
  HttpResponse ServerInfo() const;
  // 200 when a request that arrived now would be served, else 503 with the reason.
  HttpResponse Health() const;
  // 503 when no request will ever be served again, else 200.
  HttpResponse Livez() const;
  EngineStats Stats() const;

  ModelSlot slot_;
};

}  // namespace somnus
