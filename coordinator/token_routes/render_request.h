#pragma once
// POST /v1/chat/completions/render and /v1/completions/render: the request that would be sent to the engine,
// without sending it. Pure functions; thread safe.

#include "absl/strings/string_view.h"
#include "coordinator/http/api_limits.h"
#include "coordinator/openai/openai_request.h"
#include "coordinator/openai/served_model.h"

namespace somnus {

// Returns a request of /inference/v1/generate that is answered with the tokens that the chat request `body`
// would be answered with. Errors are as of the chat route, and a 400 for beam searches and best_of above n,
// which such requests cannot name.
BodyOrError RenderChatRequest(absl::string_view body, const ServedModel& model, const ApiLimits& limits);

// The same for a completion request: a list with one request for each prompt.
BodyOrError RenderCompletionRequest(absl::string_view body, const ServedModel& model,
                                    const ApiLimits& limits);

}  // namespace somnus
