#include "coordinator/http_server/request_gate.h"

#include "absl/strings/str_cat.h"
#include "coordinator/http/content_coding.h"
#include "coordinator/http/no_route.h"
#include "coordinator/openai/request_fields.h"

namespace somnus {
namespace {

// Anthropic's clients may show a key in either header, or in both.
bool HasKey(const ApiState& state, RouteKey key, const HttpRequest& request) {
  return state.Authorized(request.of_operators, key, request.authorization) ||
         (!request.api_key.empty() && state.Authorized(request.of_operators, key, request.api_key));
}

}  // namespace

void AddResponseHeaders(const ApiState& state, HttpRequest* request) {
  if (request->id.empty() && state.options.request_id_headers) request->id = NewResponseId("");
  if (IsSafeId(request->id)) request->response_headers.emplace_back("X-Request-Id", request->id);
  if (request->of_operators) return;
  for (auto& header : state.cors.ResponseHeaders(request->origin))
    request->response_headers.push_back(std::move(header));
}

bool IsPreflight(const ApiState& state, const HttpRequest& request) {
  return !request.of_operators && state.cors.enabled() && request.method == "OPTIONS" &&
         !request.origin.empty() && !request.preflight_method.empty();
}

std::optional<HttpResponse> RefusalOf(const ApiState& state, const HttpRequest& request, bool has_body) {
  const bool admin = request.of_operators;
  if (request.num_fields > state.options.limits.max_header_fields)
    return ErrorResponse({431, "There are too many header fields.", ""});
  if (!request.http_1_0 && request.num_hosts != 1)
    return ErrorResponse({400, "HTTP/1.1 needs one Host header.", ""});
  if (IsPreflight(state, request)) return std::nullopt;  // a browser sends a preflight without a key
  const RouteMatch match = MatchRoute(admin, request.method, request.target);
  const RouteKey key = match.spec == nullptr ? RouteKey::kListeners : match.spec->key;
  if (!HasKey(state, key, request)) return ErrorResponse({401, "Unauthorized", ""});
  const PageMarks marks = {request.host, request.origin, request.fetch_site, request.referer};
  if (const std::optional<ApiError> error = state.RefuseWebPage(admin, key, marks))
    return ErrorResponse(*error);
  if (!has_body) return std::nullopt;
  if (match.spec == nullptr) return NoRoute(admin, state.admin_port, request.method, request.target, match);
  if (ParseContentCoding(request.content_encoding).has_value()) return std::nullopt;
  HttpResponse response = ErrorResponse(
      {415, absl::StrCat("Content-Encoding must be one of ", kContentCodings, ", or identity."), ""});
  response.headers.emplace_back("Accept-Encoding", kContentCodings);
  return response;
}

}  // namespace somnus
