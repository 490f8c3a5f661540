#pragma once
// The ids of tool calls: how new ids are made, and how the ids of a conversation become ids that the family's
// chat template accepts. Thread safe.

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "absl/strings/string_view.h"
#include "text/tools/tool_format.h"
#include "text/tools/turn_grammar.h"

namespace somnus {

// `earlier_calls`: the number of calls in the conversation before this turn, from which Kimi's ids count on.
// The number counts for every choice of a response alike.
MakeCallId CallIdMaker(CallIdStyle style, int64_t earlier_calls);

// The number of calls in a conversation: an array of messages in OpenAI's shape.
int64_t CountCalls(const nlohmann::ordered_json& messages);

// Gives the calls of a conversation ids of the style, and the same ids to the messages with the calls'
// results, so that the template accepts a conversation that another model has begun. Ids that have the style
// stay; kRandom takes any id. Malformed messages are left alone: the request's parser judges them.
void NormalizeCallIds(CallIdStyle style, nlohmann::ordered_json* messages);

}  // namespace somnus
