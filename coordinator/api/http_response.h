#pragma once
// A whole HTTP response, and how errors become one. No sockets. Thread safe.

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

HttpResponse ErrorResponse(const ApiError& error);

// Returns status line and headers. `framing`: the header lines that tell where the body ends.
std::string ResponseHead(const HttpResponse& response, bool keep_alive, const char* framing);

}  // namespace somnus
