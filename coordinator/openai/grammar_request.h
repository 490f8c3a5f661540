#pragma once
// From the form that a request asks for to the constraint of its tokens: the grammar is compiled off the
// caller's thread, or is in the model's cache. Internal to coordinator/openai and the listeners.

#include <functional>
#include <optional>

#include "coordinator/http/api_error.h"
#include "coordinator/openai/openai_request.h"
#include "coordinator/openai/served_model.h"

namespace somnus {

// Nullopt: `params` has its constraint, or needs none.
using GrammarDone = std::function<void(std::optional<ApiError>)>;

// Whether SetConstraint has to wait for a grammar.
inline bool AwaitsGrammar(const GenerateParams& params) { return params.grammar.has_value(); }

// Sets the constraint. Calls `done` exactly once, on any thread, also within the call; `done` must not block.
// `params` and `model` must live until then. Errors: 400 where the grammar is wrong, or takes too much time
// or memory to compile; 503 where the server has too many grammars to compile.
void SetConstraint(const ServedModel& model, GenerateParams* params, GrammarDone done);
// SetConstraint for a caller that may wait.
std::optional<ApiError> AwaitConstraint(const ServedModel& model, GenerateParams* params);

}  // namespace somnus
