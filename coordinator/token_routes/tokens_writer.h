#pragma once
// Writes the answers of /inference/v1/generate: token ids, log-probabilities, no text.

#include <memory>

#include "coordinator/openai/openai_request.h"
#include "coordinator/openai/openai_response.h"

namespace somnus {

// Whole: {request_id, choices: [{index, logprobs, finish_reason, stop_reason, token_ids}], prompt_logprobs,
// usage, kv_transfer_params: null}. Streamed: events with request_id and the additions to one choice, and
// [DONE]. `params` and `model` must outlive the writer.
std::unique_ptr<ResponseWriter> MakeTokensWriter(const GenerateParams& params, const ServedModel& model);

}  // namespace somnus
