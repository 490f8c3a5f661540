#pragma once
// The gate in front of the grammar engine: "honest before fast". xgrammar 0.2.9 compiles many keywords of
// JSON Schema without enforcing them. The gate reads a schema, decides what every keyword and combination
// means, and writes an equal schema in the part of JSON Schema that xgrammar enforces exactly; a schema for
// which it finds none is refused with the keyword that is in the way. docs/structured_outputs.md lists what
// is enforced, rewritten and refused. Pure functions; thread safe.

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <variant>

#include "absl/strings/string_view.h"
#include "coordinator/structured/gate_options.h"

namespace somnus {

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

// Refuses a JSON text whose size, nesting or number of values exceeds a schema's bounds, before a parser
// reads it. `what` names the text in the message.
std::optional<SchemaRefusal> CheckJsonText(absl::string_view text, absl::string_view what,
                                           const GateOptions& options);

using PatternOrRefusal = std::variant<std::string, SchemaRefusal>;

// Returns a regular expression for xgrammar whose strings are those that `pattern` matches as a whole
// (structured_outputs.regex). The refusal's pointer is empty.
PatternOrRefusal GateRegex(absl::string_view pattern, const GateOptions& options);

// Gates every schema and pattern within a structural tag, whose brackets around a schema count with the
// schema's. The bounds of a schema's values, work and output hold for the tag as a whole, and the values are
// counted before anything else. A refusal's pointer is relative to the tag.
SchemaOrRefusal GateStructuralTag(const nlohmann::ordered_json& tag, const GateOptions& options);

}  // namespace somnus
