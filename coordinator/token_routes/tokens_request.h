#pragma once
// POST /inference/v1/generate, vLLM's route of token ids in and out: the completion route without text. Pure
// functions; thread safe.

#include "absl/strings/string_view.h"
#include "coordinator/http/api_limits.h"
#include "coordinator/openai/field_table.h"
#include "coordinator/openai/openai_request.h"
#include "coordinator/openai/served_model.h"

namespace somnus {

// Before the request's own id, as with vLLM.
inline constexpr char kTokensIdPrefix[] = "generate-tokens-";

// Reads {request_id, token_ids, sampling_params, model, stream, stream_options, cache_salt, priority}.
// The members of sampling_params are the fields of vLLM's SamplingParams, with the meaning of the completion
// route's fields of the same names. An error names a member as "sampling_params.top_p".
GenerateOrError ParseTokensRequest(absl::string_view body, const ServedModel& model, const ApiLimits& limits);

// The fields of such a body, and of its sampling_params.
const FieldTable& TokensFieldTable();
const FieldTable& SamplingFieldTable();

}  // namespace somnus
