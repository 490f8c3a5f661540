#pragma once
// Errors as OpenAI's clients expect them: {"error": {"message", "type", "param", "code"}}.

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace somnus {

struct ApiError {
  int status = 500;     // HTTP
  std::string message;  // for the client: no addresses, no paths
  std::string param;    // the offending field; empty: none
};

ApiError BadRequest(absl::string_view param, absl::string_view message);
// What an engine's or a tokenizer's status means to a client. Messages of internal errors are cleaned of
// addresses and paths.
ApiError FromStatus(const absl::Status& status);

// vLLM's names: "BadRequestError", "NotFoundError", ...
const char* ErrorType(int http_status);
const char* StatusPhrase(int http_status);

// "field: problem", for where there is no place beside the message for `param`. The field's name comes once.
std::string MessageWithParam(const ApiError& error);

std::string ErrorBody(const ApiError& error);

// `text` with everything that looks like an address or a path replaced by "[...]", at most 500 bytes, valid
// UTF-8.
std::string CleanMessage(absl::string_view text);

}  // namespace somnus
