#pragma once
// Parses the bodies of /v1/messages and /v1/messages/count_tokens, Anthropic's API: the body becomes a chat
// request (chat_body.h), and the answer of that request is written in Anthropic's shape (messages_writer.h).
// Tokenizing takes time, so this is not for an I/O thread. Thread safe.

#include "absl/strings/string_view.h"
#include "coordinator/http/api_limits.h"
#include "coordinator/openai/openai_request.h"
#include "coordinator/openai/served_model.h"

namespace somnus {

inline constexpr char kMessageIdPrefix[] = "msg_";

// Errors name the field by Anthropic's name.
GenerateOrError ParseMessagesRequest(absl::string_view body, const ServedModel& model,
                                     const ApiLimits& limits);

// Returns {"input_tokens": N}: the tokens of the prompt that the same body would have at /v1/messages, also
// where the prompt is longer than the context.
BodyOrError CountMessageTokens(absl::string_view body, const ServedModel& model, const ApiLimits& limits);

}  // namespace somnus
