#pragma once
// Writes a response of the Responses API, whole or as a stream, from the updates of a chat request.

#include <memory>
#include <string>

#include "coordinator/openai/openai_response.h"
#include "coordinator/responses/response_store.h"

namespace somnus {

// The parts of a request that the response needs. Immutable once a writer has the context.
struct ResponseContext {
  std::string echo;                      // as of ResponsesRequest
  std::shared_ptr<ResponseStore> store;  // null: the response is not kept
  Conversation before;                   // the next two are for the store
  std::string input;                     // messages, as of ResponsesRequest
};

// `params` and `model` must outlive the writer. The store has the response from now on, in progress. The
// response of a writer that is destroyed before the end was cancelled; where no client has learned the id,
// the response leaves the store.
std::unique_ptr<ResponseWriter> MakeResponsesWriter(const GenerateParams& params, const ServedModel& model,
                                                    std::shared_ptr<const ResponseContext> context);

}  // namespace somnus
