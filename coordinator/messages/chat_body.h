#pragma once
// The body of a Messages request as the body of a chat request, which openai_request.h parses. Pure
// functions; thread safe.
//
// Fields of Anthropic become the chat route's fields of the same meaning, and a few fields of the chat route
// are passed on. Fields that change nothing here are ignored, as `cache_control` is. A field that would
// change the answer and cannot be served (images, tools that Anthropic's server runs) is a problem that names
// the field. Source: Anthropic's reference of the Messages API, and version 2.14 of the client for Python.

#include <cstdint>

#include "absl/strings/string_view.h"
#include "coordinator/http/api_limits.h"
#include "coordinator/openai/field_table.h"
#include "coordinator/openai/openai_request.h"

namespace somnus {

struct ChatBodyOptions {
  bool can_reason = false;   // a budget of thinking bounds something
  int64_t context = 0;       // tokens; max_tokens is an upper bound and may be greater
  bool counts_only = false;  // the prompt matters alone: max_tokens may be missing
  // GateOptions::max_keys of the model: the gate refuses a schema with an object of more members.
  int32_t max_schema_keys = 0;
};

// Returns the JSON text of the chat request.
BodyOrError ToChatBody(absl::string_view body, const ApiLimits& limits, const ChatBodyOptions& options);

// The fields of a body of /v1/messages, and of /v1/messages/count_tokens, for ToChatBody and /openapi.json.
const FieldTable& MessagesFieldTable();
const FieldTable& CountTokensFieldTable();

// Gives an error of the chat request the name of the Messages field.
ApiError InMessagesTerms(ApiError error);
// The Messages field of which a chat field was made; `field` itself where the name is the same.
absl::string_view MessagesField(absl::string_view field);

}  // namespace somnus
