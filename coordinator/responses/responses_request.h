#pragma once
// Requests of POST /v1/responses. Thread safe.

#include <memory>

#include "absl/strings/string_view.h"
#include "coordinator/openai/openai_request.h"
#include "coordinator/responses/response_store.h"

namespace somnus {

// Reads a body. The result is a chat request whose answer is written as a response (responses_writer.h), and
// kept in `store` where the client does not forbid that. Errors name the fields of the body. An unknown
// previous_response_id is a 400, as with OpenAI.
GenerateOrError ParseResponsesRequest(absl::string_view body, const ServedModel& model,
                                      const ApiLimits& limits, std::shared_ptr<ResponseStore> store);

}  // namespace somnus
