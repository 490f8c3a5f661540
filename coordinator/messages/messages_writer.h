#pragma once
// Writes the answers of /v1/messages: a message with blocks, or the stream's events from message_start to
// message_stop. Source: Anthropic's reference of the Messages API and of its streams.
//
// Each run of reasoning, of text and each call is a block, in the order in which the model wrote; the whole
// message and the stream have the same blocks. Not thread safe.

#include <memory>

#include "coordinator/openai/openai_response.h"

namespace somnus {

// `params` must be ParseMessagesRequest's; `params` and `model` must outlive the writer.
std::unique_ptr<ResponseWriter> MakeMessagesWriter(const GenerateParams& params, const ServedModel& model);

}  // namespace somnus
