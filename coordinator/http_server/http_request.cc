#include "coordinator/http_server/http_request.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "coordinator/console/console.h"
#include "coordinator/http/api_key.h"
#include "coordinator/http/request_target.h"
#include "coordinator/messages/messages_error.h"
#include "coordinator/openai/openai_request.h"
#include "coordinator/openai/request_times.h"

namespace somnus {
namespace {

namespace http = boost::beast::http;

// Returns the value of a header field; the values of a repeated field are joined to a list with commas.
std::optional<std::string> FieldValue(const http::fields& head, const char* name) {
  std::optional<std::string> value;
  const auto range = head.equal_range(name);
  for (auto it = range.first; it != range.second; ++it)
    value = absl::StrCat(value.has_value() ? *value + ", " : "", std::string(it->value()));
  return value;
}

}  // namespace

void ReadHead(const http::request_header<>& head, absl::string_view root, HttpRequest* request) {
  request->method = std::string(head.method_string());  // empty while the first line is not complete
  RequestTarget target = ParseTarget({head.target().data(), head.target().size()});
  request->target = BelowRoot(root, std::move(target.path_and_query));
  request->host = target.authority.empty() ? std::string(head[http::field::host]) : target.authority;
  request->content_type = std::string(head[http::field::content_type]);
  request->content_encoding = FieldValue(head, "Content-Encoding").value_or("");
  request->authorization = std::string(head[http::field::authorization]);
  if (IsMessagesTarget(request->target)) {
    request->api_key = BearerOf(FieldValue(head, "X-Api-Key").value_or(""));
    if (request->authorization.empty()) request->authorization = request->api_key;
  }
  request->id = std::string(head["X-Request-Id"]);
  request->traceparent = FieldValue(head, "traceparent").value_or("");
  request->tracestate = FieldValue(head, "tracestate").value_or("");
  request->last_event_id = std::string(head["Last-Event-ID"]);
  request->timeout = FieldValue(head, kTimeoutHeader);
  request->ttft = FieldValue(head, kTtftHeader);
  request->origin = FieldValue(head, "Origin").value_or("");
  request->fetch_site = FieldValue(head, "Sec-Fetch-Site").value_or("");
  request->referer = FieldValue(head, "Referer").value_or("");
  request->preflight_method = std::string(head["Access-Control-Request-Method"]);
  request->preflight_headers = FieldValue(head, "Access-Control-Request-Headers").value_or("");
  if (IsConsoleTarget(request->target)) {
    request->accept = FieldValue(head, "Accept").value_or("");
    request->if_none_match = FieldValue(head, "If-None-Match").value_or("");
  }
  request->expects_continue = absl::EqualsIgnoreCase(std::string(head[http::field::expect]), "100-continue");
  request->num_fields = std::distance(head.begin(), head.end());
  request->num_hosts = static_cast<int64_t>(head.count(http::field::host));
  request->http_1_0 = head.version() == 10;
}

bool IsSafeId(absl::string_view id) {
  return !id.empty() && id.size() <= kMaxRequestIdBytes && std::all_of(id.begin(), id.end(), [](char c) {
    return absl::ascii_isprint(static_cast<unsigned char>(c));
  });
}

}  // namespace somnus
