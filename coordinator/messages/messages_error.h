#pragma once
// Errors as Anthropic's clients expect them: {"type": "error", "error": {"type", "message"}}; and which
// requests get errors of this shape. Source: Anthropic's reference of the Messages API, "Errors". Pure
// functions; thread safe.

#include <string>

#include "absl/strings/string_view.h"
#include "coordinator/http/api_error.h"

namespace somnus {

// Whether a request's target is /v1/messages or a path below, which need not exist.
bool IsMessagesTarget(absl::string_view target);

// "invalid_request_error", "authentication_error", ...
const char* MessagesErrorType(int http_status);

// The shape has no place for the field: the message begins with the field's name.
std::string MessagesErrorBody(const ApiError& error);

// The event that ends a stream that failed.
std::string MessagesErrorEvent(const ApiError& error);

}  // namespace somnus
