#pragma once
// The state that all HTTP connections share, and the responses of routes that need no generation. No sockets.
// Thread safe.

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/string_view.h"
#include "coordinator/http/cors.h"
#include "coordinator/http/http_response.h"
#include "coordinator/http/routes.h"
#include "coordinator/http/web_page_guard.h"
#include "coordinator/http_server/api_server.h"
#include "coordinator/metrics/metrics.h"
#include "coordinator/openai/model_table.h"
#include "coordinator/operators/call_bounds.h"
#include "coordinator/operators/status_route.h"
#include "coordinator/responses/response_store.h"

namespace somnus {

class ApiState {
 public:
  ApiState(ApiServerOptions options, std::shared_ptr<Metrics> metrics);

  const ApiServerOptions options;
  const std::shared_ptr<Metrics> metrics;
  const int64_t created;                           // Unix seconds
  const CorsPolicy cors;                           // of clients' listener
  const std::shared_ptr<ResponseStore> responses;  // of all models and both listeners
  // The ports that the listeners got, for /server_info. Set before the first connection.
  uint16_t http_port = 0, admin_port = 0;
  std::atomic<int64_t> load{0};  // generation requests in progress

  void SetModels(std::vector<ServedModel> models);
  // The model that a body names; the first model where the body names none, or a model that is not served:
  // the code that parses the body reports the fault. Null while models load. Reads the body where there are
  // several models.
  SharedModel ModelOf(absl::string_view body) const;
  bool loading() const { return models_.Get() == nullptr; }
  HttpResponse LoadingResponse() const { return somnus::LoadingResponse(models_.Starting()); }
  // The model of the last name, which must be there where there are several; else an error's response.
  std::variant<SharedModel, HttpResponse> Named(const std::vector<std::string>& names) const;

  // Whether a request counts as one of operators: what comes to their listener, and, with operators_on_port,
  // what comes to clients' listener (`admin` false) and has a route of operators alone.
  bool IsForOperators(bool admin, absl::string_view method, absl::string_view target) const;

  // Whether a route that wants `key` may be used on that listener: ApiKeys::Opens. A route for
  // which clients need a key or a certificate is not open on operators' listener only because operators have
  // no key.
  bool Authorized(bool admin, RouteKey key, absl::string_view authorization) const;

  // The name of the key that `authorization` shows; empty: no key, or one without a name.
  std::string KeyNameOf(bool admin, RouteKey key, absl::string_view authorization) const {
    return KeysOf(admin, key).NameOf(authorization);
  }

  // A 403 for a request that could come from a web page, where operators' listener has no key for the route;
  // nullopt: the request may go on.
  std::optional<ApiError> RefuseWebPage(bool admin, RouteKey key, const PageMarks& marks) const;

  // The response of a route that does not block: all routes except completions, chat, (de)tokenize and the
  // routes of IsLifecycle. `admin`: as IsForOperators says.
  HttpResponse Answer(bool admin, const RouteMatch& match, absl::string_view query) const;
  // The response of "/" or of a file of the console. The strings are values of request headers.
  HttpResponse AnswerConsole(bool admin, const RouteMatch& match, absl::string_view accept,
                             absl::string_view if_none_match) const;
  // Calls AnswerLifecycle of lifecycle_routes.h or the route of the status, which block. Lifecycle calls get
  // a 503 while the model loads.
  HttpResponse AnswerLifecycle(const RouteSpec& spec, absl::string_view query, absl::string_view body) const;

 private:
  HttpResponse Models(absl::string_view name) const;
  // Tells of the model that ?model= names, else of the first. Operators get the model's settings, too.
  HttpResponse ServerInfo(bool admin, absl::string_view query) const;
  // The number of workers: of all replicas, or with include_dp=false of one replica.
  HttpResponse WorldSize(const RouteSpec& spec, absl::string_view query) const;
  // 200 when a request that arrived now would be served, by every model or by the model that ?model= names;
  // else 503 with the reason, or 404 for an unknown model.
  HttpResponse Health(absl::string_view query) const;
  // 503 when no request will ever be served again, else 200.
  HttpResponse Livez() const;
  std::optional<HttpResponse> LoopHangs() const;  // a 503 that names the loop
  std::string MetricsText() const;
  // `answer` of that model.
  HttpResponse OfModel(const std::vector<std::string>& names,
                       const std::function<HttpResponse(const ServedModel&)>& answer) const;

  // The keys that open a route of this RouteKey; empty: no key is required.
  const ApiKeys& KeysOf(bool admin, RouteKey key) const;

  const WebPageGuard guard_;
  ModelTable models_;
  mutable CallBounds call_bounds_;
  mutable StatusRoute status_;
};

}  // namespace somnus
