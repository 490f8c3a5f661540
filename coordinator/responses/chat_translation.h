#pragma once
// From a request of the Responses API to a chat request, and from the errors of the chat request back. Pure
// functions.

#include <string>
#include <variant>

#include "absl/strings/string_view.h"
#include "coordinator/http/api_error.h"
#include "coordinator/http/json_body.h"
#include "coordinator/openai/field_table.h"
#include "coordinator/responses/response_store.h"

namespace somnus {

struct ResponsesRequest {
  std::string messages;      // of `input`, as AppendMessages writes them
  std::string instructions;  // a message for this request alone; empty: none
  std::string chat_fields;   // of the chat request besides the messages: `"name":value` with commas between
  std::string echo;          // the members of a response that repeat the request, written as chat_fields
  std::string previous_id;   // of the response that the request goes on with; empty: none
  bool store = false;
};
using ResponsesRequestOrError = std::variant<ResponsesRequest, ApiError>;

// Reads a body, whose objects may have `max_keys` members each: GateOptions::max_keys of the model.
// `can_store`: the server keeps responses; otherwise a request must not ask for that. Fields that OpenAI has
// and this server does not are refused; unknown fields are ignored. Sampling fields are left to the chat
// route, which checks the values.
ResponsesRequestOrError ReadResponsesRequest(absl::string_view body, const JsonLimits& limits, bool can_store,
                                             int32_t max_keys);

// The body of the chat request. `before`: the turns of the conversation so far.
std::string ChatBody(const ResponsesRequest& request, const Conversation& before);

// The fields of a body, for ReadResponsesRequest and /openapi.json.
const FieldTable& ResponsesFieldTable();

// An error of the chat request with the names of the Responses API.
ApiError InResponsesNames(ApiError error);

}  // namespace somnus
