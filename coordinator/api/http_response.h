#pragma once
// A whole HTTP response, and how errors become one. No sockets. Thread safe.

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/api/api_error.h"

namespace somnus {

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  std::string body;
  std::vector<std::pair<std::string, std::string>> headers;
};

// 200 with `body`; bytes that are not UTF-8 become U+FFFD.
HttpResponse JsonResponse(const nlohmann::ordered_json& body);
HttpResponse ErrorResponse(const ApiError& error);
// 503: the model is loading.
HttpResponse LoadingResponse();

// Returns status line and headers. `framing`: the header lines that tell where the body ends.
std::string ResponseHead(const HttpResponse& response, bool keep_alive, const char* framing);

}  // namespace somnus
