#pragma once
// From the items of the Responses API (`input`, and the output of earlier responses) to chat messages. Pure
// functions.
//
// Reasoning, a text and calls in a row were a single turn of the model, and become a single message of the
// assistant.

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "coordinator/http/api_error.h"

namespace somnus {

// Appends the messages of `input`, a text or a list of items, to the list `messages`. An error names the
// item's field: input[2].type.
std::optional<ApiError> ReadInput(const nlohmann::ordered_json& input, nlohmann::ordered_json* messages);

// Appends the JSON of the objects in the list `messages`, with commas between the objects and behind the text
// that `out` has.
void AppendMessages(const nlohmann::ordered_json& messages, std::string* out);

}  // namespace somnus
