#include "coordinator/messages/messages_error.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "coordinator/http/json_body.h"

namespace somnus {

bool IsMessagesTarget(absl::string_view target) {
  return absl::ConsumePrefix(&target, "/v1/messages") &&
         (target.empty() || target[0] == '/' || target[0] == '?');
}

const char* MessagesErrorType(int http_status) {
  switch (http_status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 413:
      return "request_too_large";
    case 429:
      return "rate_limit_error";
    case 503:
      return "overloaded_error";
    case 504:
      return "timeout_error";
    default:
      return http_status < 500 ? "invalid_request_error" : "api_error";
  }
}

std::string MessagesErrorBody(const ApiError& error) {
  std::string body = R"({"type":"error","error":{"type":)";
  AppendJsonString(MessagesErrorType(error.status), &body);
  body += ",\"message\":";
  AppendJsonString(MessageWithParam(error), &body);
  return body + "}}";
}

std::string MessagesErrorEvent(const ApiError& error) {
  return absl::StrCat("event: error\ndata: ", MessagesErrorBody(error), "\n\n");
}

}  // namespace somnus
