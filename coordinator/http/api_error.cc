#include "coordinator/http/api_error.h"

#include <cstddef>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/utf8.h"
#include "coordinator/http/json_body.h"

namespace somnus {
namespace {

constexpr size_t kMaxMessageBytes = 700;  // a line of state_report.h is shorter

bool IsWordEnd(char c) {
  return absl::ascii_isspace(c) || c == '\'' || c == '"' || c == ',' || c == ';' || c == ')';
}

// Returns the length of a path or an address ("/a/b", "0x12ab34") at the start of `rest`; 0: there is none.
size_t SecretLength(absl::string_view rest, bool at_word_start) {
  size_t n = 0;
  if (at_word_start && rest[0] == '/' && rest.size() > 1 && !IsWordEnd(rest[1])) {
    while (n < rest.size() && !IsWordEnd(rest[n])) ++n;
    return n;
  }
  if (!absl::StartsWithIgnoreCase(rest, "0x")) return 0;
  n = 2;
  while (n < rest.size() && absl::ascii_isxdigit(rest[n])) ++n;
  return n >= 6 ? n : 0;
}

void AppendMissing(const v1::MissingMemory& missing, std::string* body) {
  const char* separator = ",\"missing\":[";
  for (const v1::MissingMemory::Shortage& one : missing.shortages()) {
    absl::StrAppend(body, separator, "{\"replica\":", one.replica(), ",\"rank\":", one.rank(), ",\"tag\":");
    AppendJsonString(one.tag(), body);
    *body += ",\"memory\":";
    AppendJsonString(one.memory(), body);
    absl::StrAppend(body, ",\"needed_bytes\":", one.needed_bytes(),
                    ",\"missing_bytes\":", one.missing_bytes(), "}");
    separator = ",";
  }
  *body += "]";
}

}  // namespace

std::string CleanMessage(absl::string_view text) {
  std::string clean;
  bool at_word_start = true;
  for (size_t i = 0; i < text.size() && clean.size() < kMaxMessageBytes;) {
    if (const size_t secret = SecretLength(text.substr(i), at_word_start); secret > 0) {
      clean += "[...]";
      i += secret;
      at_word_start = false;
      continue;
    }
    at_word_start = IsWordEnd(text[i]) || text[i] == '(' || text[i] == ':' || text[i] == '=';
    clean += text[i++];
  }
  std::string valid;
  DrainUtf8(&clean, &valid);  // leaves out a character that the cut has split
  return valid;
}

ApiError BadRequest(absl::string_view param, absl::string_view message) {
  return ApiError{400, std::string(message), std::string(param)};
}

ApiError UnknownModel(absl::string_view name, absl::string_view names) {
  return {404,
          absl::StrCat("The model `", CleanMessage(name.substr(0, 100)),
                       "` does not exist. The server has: ", names, "."),
          "model"};
}

ApiError FromStatus(const absl::Status& status) {
  const std::string message = CleanMessage(status.message());
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kOutOfRange:
      return {400, message, ""};
    case absl::StatusCode::kUnauthenticated:
      return {401, message, ""};
    case absl::StatusCode::kPermissionDenied:
      return {403, message, ""};
    case absl::StatusCode::kNotFound:
      return {404, message, ""};
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kAlreadyExists:
      return {409, message, ""};
    case absl::StatusCode::kResourceExhausted:
      return {429, message, ""};
    case absl::StatusCode::kUnimplemented:
      return {501, message, ""};
    case absl::StatusCode::kCancelled:  // by the server, which ends
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kFailedPrecondition:
      return {503, message, ""};
    case absl::StatusCode::kDeadlineExceeded:
      return {504, message, ""};
    default:
      return {500, message.empty() ? "internal error" : message, ""};
  }
}

const char* RejectionReason(const absl::Status& status) {
  if (absl::IsResourceExhausted(status)) return "queue_full";
  return absl::IsFailedPrecondition(status) ? "asleep" : "not_serving";
}

const char* ErrorType(int http_status) {
  switch (http_status) {
    case 400:
      return "BadRequestError";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "NotFoundError";
    case 429:
      return "RateLimitError";
    case 500:
      return "InternalServerError";
    case 501:
      return "NotImplementedError";
    case 503:
      return "ServiceUnavailableError";
    default:
      return StatusPhrase(http_status);
  }
}

const char* StatusPhrase(int http_status) {
  switch (http_status) {
    case 200:
      return "OK";
    case 204:
      return "No Content";
    case 304:
      return "Not Modified";
    case 307:
      return "Temporary Redirect";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 409:
      return "Conflict";
    case 413:
      return "Content Too Large";
    case 415:
      return "Unsupported Media Type";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 501:
      return "Not Implemented";
    case 503:
      return "Service Unavailable";
    case 504:
      return "Gateway Timeout";
    case 505:
      return "HTTP Version Not Supported";
    default:
      return "Internal Server Error";
  }
}

std::string MessageWithParam(const ApiError& error) {
  if (error.param.empty()) return error.message;
  absl::string_view problem = error.message;
  absl::ConsumePrefix(&problem, absl::StrCat(error.param, " "));
  return absl::StrCat(error.param, ": ", problem);
}

std::string ErrorBody(const ApiError& error) {
  std::string body = "{\"error\":{\"message\":";
  AppendJsonString(error.message, &body);
  body += ",\"type\":";
  AppendJsonString(ErrorType(error.status), &body);
  body += ",\"param\":";
  if (error.param.empty()) {
    body += "null";
  } else {
    AppendJsonString(error.param, &body);
  }
  body += ",\"code\":";
  if (error.code.empty()) {
    absl::StrAppend(&body, error.status);
  } else {
    AppendJsonString(error.code, &body);
  }
  if (!error.missing.shortages().empty()) AppendMissing(error.missing, &body);
  body += "}}";
  return body;
}

}  // namespace somnus
