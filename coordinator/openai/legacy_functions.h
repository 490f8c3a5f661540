#pragma once
// OpenAI's first form of tools on the chat route: `functions`, `function_call`, assistants' messages with a
// `function_call`, and results in messages of the role "function". The chat route knows tools alone, so that
// the body is rewritten before the route reads the body; AnswerFormat::legacy_functions makes the answer's
// form (turn_json.h). Pure functions; thread safe. Internal to coordinator/openai.

#include <nlohmann/json_fwd.hpp>

#include "absl/strings/string_view.h"
#include "coordinator/openai/openai_request.h"

namespace somnus {

// Whether the request uses the first form: `functions` or `function_call` is given.
bool HasLegacyFunctions(const nlohmann::json& body);

// The same request in the form of tools. An answer has at most one call. `text`: the JSON text of `body`;
// objects keep their first `max_keys` keys. Errors name the field in the request's own form.
BodyOrError LegacyFunctionsToTools(const nlohmann::json& body, absl::string_view text, size_t max_keys);

// An error of the rewritten request, with the names of the first form.
ApiError InLegacyNames(ApiError error);

}  // namespace somnus
