#pragma once
// A whole HTTP response, and how errors become responses. No sockets. Thread safe.

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/http/api_error.h"
#include "coordinator/residency/engine_state.h"
#include "coordinator/residency/state_report.h"

namespace somnus {

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  std::string body;
  HttpHeaders headers;
  std::optional<ApiError> error = {};  // of ErrorResponse: `body` in OpenAI's shape says the same
};

// 200 with `body`; bytes that are not UTF-8 become U+FFFD.
HttpResponse JsonResponse(const nlohmann::ordered_json& body);
HttpResponse ErrorResponse(const ApiError& error);
// 503: the models are being loaded.
HttpResponse LoadingResponse(const StateReport& starting);

// Server-sent events: a comment, which clients ignore, so that proxies do not close a silent stream.
inline constexpr char kSseComment[] = ": keep-alive\n\n";
// The comment for a stream that waits, with the reason: ": waiting: The engine is asleep; ...".
std::string WaitingComment(EngineState state);
// Returns status line and headers of a stream of events. The body comes in chunks; HTTP/1.0 has no chunks, so
// the end of the connection ends the body.
std::string EventStreamHead(bool http_1_0, bool keep_alive, HttpHeaders headers);

// Returns status line and headers. `framing`: the header lines that tell where the body ends.
std::string ResponseHead(const HttpResponse& response, bool keep_alive, const char* framing);

}  // namespace somnus
