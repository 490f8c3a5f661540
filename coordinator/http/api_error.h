#pragma once
// Errors as OpenAI's clients expect them: {"error": {"message", "type", "param", "code"}}; where memory is
// missing, "missing" says which memory.

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "proto/transition.pb.h"

namespace somnus {

// After how long a client may try again where a queue is full: Retry-After over HTTP, RetryInfo over gRPC.
inline constexpr absl::Duration kRetryDelay = absl::Seconds(1);

struct ApiError {
  int status = 500;                // HTTP
  std::string message;             // for the client: no addresses, no paths
  std::string param;               // the offending field; empty: none
  std::string code = {};           // for programs; empty: the status
  v1::MissingMemory missing = {};  // of a sleep or a wake-up that lacks memory
};

ApiError BadRequest(absl::string_view param, absl::string_view message);
// A 404 for an unknown model. `names`: all served models, as ModelNames of model_table.h lists them.
ApiError UnknownModel(absl::string_view name, absl::string_view names);
// Maps an engine's or a tokenizer's status to an HTTP status; the message goes through CleanMessage.
ApiError FromStatus(const absl::Status& status);
// Why the engine did not accept a request, as metrics name it: "queue_full", "asleep" or "not_serving".
const char* RejectionReason(const absl::Status& status);

// vLLM's names: "BadRequestError", "NotFoundError", ...
const char* ErrorType(int http_status);
const char* StatusPhrase(int http_status);

// Returns "field: problem", for protocols that have no place for `param` beside the message. The field's name
// comes once.
std::string MessageWithParam(const ApiError& error);

std::string ErrorBody(const ApiError& error);

// Returns `text`, cut to about 500 bytes, with everything that looks like an address or a path replaced by
// "[...]". The result is valid UTF-8 for any `text`.
std::string CleanMessage(absl::string_view text);

}  // namespace somnus
