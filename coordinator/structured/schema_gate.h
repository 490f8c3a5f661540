#pragma once
// The gate in front of the grammar engine: "honest before fast". xgrammar 0.2.9 compiles many keywords of
// JSON Schema without enforcing them. The gate reads a schema, decides what every keyword and combination
// means, and writes an equal schema in the part of JSON Schema that xgrammar enforces exactly; a schema for
// which it finds none is refused with the keyword that is in the way. docs/structured_outputs.md lists what
// is enforced, rewritten and refused. Pure functions; thread safe.

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <variant>

#include "absl/strings/string_view.h"
#include "coordinator/structured/schema_regex_parser.h"

namespace somnus {

// Bounds of a schema's size and of the work on it. A schema beyond a bound is refused.
struct GateOptions {
  int64_t max_bytes = 1 << 20;       // text of a schema
  int32_t max_depth = 64;            // nesting of the schema's JSON
  int32_t max_values = 50'000;       // JSON values in the schema
  int32_t max_keys = 4096;           // keys of an object, and values of an enum
  int32_t max_name_bytes = 512;      // a property's name
  int32_t max_cases = 512;           // alternatives of one subschema, once combinations are multiplied out
  int32_t max_definitions = 20'000;  // different combinations of subschemas
  int64_t max_steps = 2'000'000;     // units of work, a few microseconds at most each
  int32_t max_regex_terms = 200'000;
  int32_t max_regex_states = 400;       // automaton of a combination of patterns
  int32_t max_pattern_bytes = 1 << 18;  // a pattern that the gate writes
  int64_t max_output_bytes = 4 << 20;   // the schema that the gate writes
  RegexLimits regex;
};

// Why a schema is refused: error.param, and what the message says.
struct SchemaRefusal {
  std::string pointer;  // JSON pointer of the keyword within the schema; empty: the schema as a whole
  std::string keyword;
  std::string message;
};
// error.code of a refusal
inline constexpr absl::string_view kUnsupportedSchema = "unsupported_schema";

using SchemaOrRefusal = std::variant<nlohmann::ordered_json, SchemaRefusal>;

// Returns a schema whose instances are those of `schema`, which xgrammar enforces exactly without a strict
// mode. Properties keep their order, and are to be generated in that order.
SchemaOrRefusal GateSchema(const nlohmann::ordered_json& schema, const GateOptions& options);

// The same for the text of a schema.
SchemaOrRefusal GateSchemaText(absl::string_view text, const GateOptions& options);

using PatternOrRefusal = std::variant<std::string, SchemaRefusal>;

// Returns a regular expression for xgrammar whose strings are those that `pattern` matches as a whole
// (structured_outputs.regex). The refusal's pointer is empty.
PatternOrRefusal GateRegex(absl::string_view pattern, const GateOptions& options);

// Gates every schema and pattern within a structural tag. A refusal's pointer is relative to the tag.
SchemaOrRefusal GateStructuralTag(const nlohmann::ordered_json& tag, const GateOptions& options);

}  // namespace somnus
