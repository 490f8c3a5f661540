#pragma once
// Which routes there are, and the answers of those that need no generation. No sockets. Thread safe.

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "coordinator/api/api_error.h"
#include "coordinator/api/api_key.h"
#include "coordinator/api/api_server.h"
#include "coordinator/api/model_slot.h"
#include "coordinator/metrics/metrics.h"

namespace somnus {

enum class Route {
  kModels,
  kModel,
  kCompletions,
  kChat,
  kTokenize,
  kDetokenize,
  kHealth,
  kReadyz,
  kLivez,
  kPing,
  kVersion,
  kServerInfo,
  kLoad,
  kMetrics,
  kSleep,
  kWakeUp,
  kIsSleeping,
  kResetPrefixCache,
};

struct RouteSpec {
  Route route;
  const char* path;
  bool get, post;
  bool inference, admin;  // on which listeners
  bool needs_key;
  bool json_body;
  bool counted;  // in http_requests_total
};

struct RouteMatch {
  int status = 404;                 // 200, 307 (trailing slash), 404 or 405
  const RouteSpec* spec = nullptr;  // with 200
  std::string detail;               // 307: the location; 405: the allowed methods; kModel: the model's name
};

RouteMatch MatchRoute(bool admin, absl::string_view method, absl::string_view target);

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  std::string body;
  std::vector<std::pair<std::string, std::string>> headers;
};

HttpResponse ErrorResponse(const ApiError& error);

// What all connections share.
class ApiState {
 public:
  ApiState(ApiServerOptions options, std::shared_ptr<Metrics> metrics);

  const ApiServerOptions options;
  const std::shared_ptr<Metrics> metrics;
  const int64_t created;  // Unix seconds
  // Where the listeners ended up, for /server_info. Set before the first connection.
  uint16_t http_port = 0, admin_port = 0;
  std::atomic<int64_t> load{0};  // generation requests in progress

  void SetModel(ServedModel model) { slot_.Set(std::move(model)); }
  std::shared_ptr<const ServedModel> model() const { return slot_.Get(); }  // null while loading

  // "Bearer <key>", compared in constant time; true when no key is set.
  bool Authorized(absl::string_view authorization) const;

  // Answers that do not block: everything but completions, chat, (de)tokenize, sleep, wake_up, reset.
  HttpResponse Answer(const RouteMatch& match) const;
  // /sleep, /wake_up and /reset_prefix_cache; blocks until all ranks have answered. A parameter of the query
  // or a field of the body that the route does not know is a 400: nothing is done in part.
  HttpResponse AnswerLifecycle(const RouteSpec& spec, absl::string_view query, absl::string_view body) const;

 private:
  HttpResponse Models(absl::string_view name) const;
  HttpResponse ServerInfo() const;
  // 200 when a request that came now would be served, else 503 with the reason.
  HttpResponse Health() const;
  // 200 unless nothing will be served any more.
  HttpResponse Livez() const;
  EngineStats Stats() const;

  ModelSlot slot_;
};

// Values of `name` in a query string, percent-decoded, in order.
std::vector<std::string> QueryValues(absl::string_view query, absl::string_view name);

}  // namespace somnus
