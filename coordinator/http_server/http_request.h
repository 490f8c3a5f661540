#pragma once
// The fields of an HTTP request, read from head and body. Internal to coordinator/http_server; includes
// Boost.

// Boost 1.74's headers use std::exchange without including <utility>.
// clang-format off
#include <utility>
// clang-format on

#include <boost/beast/http/message.hpp>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "base/monotonic.h"
#include "coordinator/http/http_response.h"

namespace somnus {

struct HttpRequest {
  std::string method;
  std::string target;  // path and query, for MatchRoute of routes.h
  std::string host;    // with the port; empty: an HTTP/1.0 client sent no Host
  std::string content_type, content_encoding, authorization, id, traceparent, tracestate;
  std::string api_key;        // of the Messages routes: the header x-api-key as a bearer's Authorization
  std::string last_event_id;  // of a client that comes back to a stream of events
  std::optional<std::string> timeout, ttft;  // headers of request_times.h
  // Headers that browsers add, for cors.h and web_page_guard.h.
  std::string origin, fetch_site, referer, preflight_method, preflight_headers;
  std::string accept, if_none_match;  // of the console's routes
  bool expects_continue = false;
  int64_t num_fields = 0, num_hosts = 0;  // of the head
  MonotonicTime received;                 // when the whole request had come
  std::string body;
  bool keep_alive = false;
  bool http_1_0 = false;
  bool of_operators =
      false;  // the rules of operators' listener hold (ApiState::IsForOperators); the caller's
  HttpHeaders response_headers;  // of every response to the request, also of errors and streams
};

// Reads a request's head, which may be incomplete; keep_alive, of_operators and response_headers are the
// caller's. `root`: as in BelowRoot of request_target.h.
void ReadHead(const boost::beast::http::request_header<>& head, absl::string_view root, HttpRequest* request);

// Whether an id may stand in a response's header: not empty, printable ASCII, and at most kMaxRequestIdBytes.
bool IsSafeId(absl::string_view id);

}  // namespace somnus
