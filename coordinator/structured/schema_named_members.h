#pragma once
// vLLM's option disable_additional_properties of structured outputs. A pure function.

#include <nlohmann/json.hpp>

namespace somnus {

// Returns the schema with `additionalProperties: false` in every subschema that names properties or patterns
// of properties and says nothing of further ones, and with `items: false` beside `prefixItems` alone.
// Recurses as deep as the schema does: GateSchema has taken `schema`, whose depth is bounded.
nlohmann::ordered_json WithNamedMembersOnly(nlohmann::ordered_json schema);

}  // namespace somnus
