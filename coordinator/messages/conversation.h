#pragma once
// The conversation of a Messages request as the messages of a chat request. Pure functions; thread safe.
//
// Anthropic's turns hold blocks: results of tools are blocks of the user's turn and become messages of the
// role "tool" here, calls and thinking are blocks of the assistant's turn and become tool_calls and
// reasoning_content. Turns of the same role that follow each other are one turn, as with Anthropic.

#include <nlohmann/json.hpp>

#include "coordinator/openai/field_reader.h"

namespace somnus {

struct Conversation {
  nlohmann::ordered_json messages = nlohmann::ordered_json::array();
  bool continues = false;  // the last turn is the assistant's, and the answer goes on with its text
};

// `system` and `messages` are the request's members, null where not given. A problem is left in `fields`,
// with the path of the block as the field.
Conversation ReadConversation(const nlohmann::ordered_json& system, const nlohmann::ordered_json& messages,
                              FieldReader* fields);

}  // namespace somnus
