#include "coordinator/http/http_response.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"

namespace somnus {

HttpResponse JsonResponse(const nlohmann::ordered_json& body) {
  return {200,
          "application/json",
          body.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace),
          {}};
}

HttpResponse ErrorResponse(const ApiError& error) {
  HttpResponse response{error.status, "application/json", ErrorBody(error), {}, error};
  if (error.status == 429 || error.status == 503) {
    response.headers.emplace_back("Retry-After", absl::StrCat(absl::ToInt64Seconds(kRetryDelay)));
  }
  if (error.status == 401) response.headers.emplace_back("WWW-Authenticate", "Bearer");
  return response;
}

std::string WaitingComment(EngineState state) {
  return IsReady(state) ? kSseComment : absl::StrCat(": waiting: ", WhyNotReady(state), "\n\n");
}

HttpResponse LoadingResponse(const StateReport& starting) {
  return ErrorResponse({503, CleanMessage(starting.Line()), ""});
}

std::string ResponseHead(const HttpResponse& response, bool keep_alive, const char* framing) {
  std::string head = absl::StrCat("HTTP/1.1 ", response.status, " ", StatusPhrase(response.status), "\r\n");
  if (!response.content_type.empty()) absl::StrAppend(&head, "Content-Type: ", response.content_type, "\r\n");
  for (const auto& [name, value] : response.headers) absl::StrAppend(&head, name, ": ", value, "\r\n");
  absl::StrAppend(&head, framing, keep_alive ? "" : "Connection: close\r\n", "\r\n");
  return head;
}

std::string EventStreamHead(bool http_1_0, bool keep_alive, HttpHeaders headers) {
  HttpResponse response{200, "text/event-stream; charset=utf-8", "", {{"Cache-Control", "no-cache"}}};
  for (auto& header : headers) response.headers.push_back(std::move(header));
  return http_1_0 ? ResponseHead(response, false, "")
                  : ResponseHead(response, keep_alive, "Transfer-Encoding: chunked\r\n");
}

}  // namespace somnus
