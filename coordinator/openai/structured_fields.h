#pragma once
// The fields that say what form a text must have: `response_format`, vLLM's `structured_outputs` and its
// older names `guided_json`, `guided_regex`, `guided_choice` and `guided_grammar`. Schemas and patterns go
// through the gate (structured/schema_gate.h): what cannot be enforced exactly is a 400 whose param is the
// JSON pointer of the keyword. Problems are left in the FieldReader. Internal to coordinator/openai.

#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "coordinator/openai/field_reader.h"
#include "coordinator/structured/gate_options.h"
#include "coordinator/structured/grammar.h"
#include "coordinator/structured/schema_gate.h"

namespace somnus {

// A grammar that a request asks for, and the field that asks.
struct GrammarField {
  std::string field;
  GrammarSource source;
};

// The request's schema is refused: a 400 with the keyword's JSON pointer and the code of a schema that cannot
// be enforced.
void FailSchema(FieldReader* fields, const SchemaRefusal& refusal);

// `body`: the JSON text of the request, whose order of properties is the order in which they are generated;
// empty: the order is alphabetical. Nullopt: the text is free, or an error is in `fields`.
std::optional<GrammarField> ReadStructuredOutputs(FieldReader* fields, absl::string_view body,
                                                  const GateOptions& gate);

// The brackets that CallsOrForm puts around a form at most, and around what `calls` holds.
inline constexpr int32_t kBracketsAroundForm = 4, kBracketsAroundCalls = 2;

// For answers that either call a tool or have a form: `calls` is a structural tag (forced_calls.h). Nullopt:
// no grammar is made of both, and an error is in `fields`.
std::optional<GrammarField> CallsOrForm(FieldReader* fields, const std::string& calls,
                                        const GrammarField& form);

}  // namespace somnus
