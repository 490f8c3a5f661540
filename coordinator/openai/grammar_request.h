#pragma once
// From the form that a request asks for to the constraint of its tokens: the grammar is compiled off the
// caller's thread, or is in the model's cache. Internal to coordinator/openai and the listeners.

#include <functional>
#include <memory>
#include <optional>
#include <variant>

#include "coordinator/http/api_error.h"
#include "coordinator/metrics/grammar_numbers.h"
#include "coordinator/openai/openai_request.h"
#include "coordinator/openai/served_model.h"
#include "coordinator/request/token_constraint.h"

namespace somnus {

// For /metrics.
GrammarNumbers CountGrammars(const GrammarCache& grammars);

// A null constraint: every token may come. Errors: 400 where the grammar is wrong, or takes too much time or
// memory to compile; 503 where the server has too many grammars to compile.
using ConstraintOrError = std::variant<std::shared_ptr<const TokenConstraint>, ApiError>;

// Whether the constraint of the request takes time.
inline bool AwaitsGrammar(const GenerateParams& params) { return params.grammar.has_value(); }

// Makes the constraint of the request. Calls `done` exactly once, on any thread, also within the call; `done`
// must not block. Keeps nothing of `model` and `params` but copies.
void MakeConstraint(const ServedModel& model, const GenerateParams& params,
                    std::function<void(ConstraintOrError)> done);
// MakeConstraint for a caller that may wait: sets params->constraint. Nullopt: no error.
std::optional<ApiError> AwaitConstraint(const ServedModel& model, GenerateParams* params);

}  // namespace somnus
