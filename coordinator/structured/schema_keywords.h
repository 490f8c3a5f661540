#pragma once
// The gate's knowledge of JSON Schema's keywords: where subschemas stand, which shape a keyword's value has,
// and which keywords are refused wherever a subschema with the keyword is used. Pure functions.

#include <string>

#include "absl/strings/string_view.h"

namespace somnus {

// Where the schemas within a keyword's value stand.
enum class SchemaPosition {
  kNone,    // the value holds no schema
  kSchema,  // the value is one
  kList,    // the value is a list of schemas, or one schema ("items" up to 2019-09)
  kMap,     // the value's members are schemas
};
SchemaPosition PositionOf(absl::string_view keyword);

enum class KeywordShape {
  kAny,
  kBoolean,
  kString,
  kNumber,
  kPositive,  // a number above 0
  kBound,     // a number, or draft 4's boolean
  kCount,     // a whole number of at least 0
  kStrings,   // a list of strings
  kValues,    // a list that is not empty
  kType,      // a type's name or a list of such names
  kSchema,    // an object or a boolean
  kSchemas,   // a list of schemas that is not empty
  kSchemaOrList,
  kSchemaMap,
  kStringsMap,    // names to lists of names
  kDependencies,  // names to lists of names or to schemas
  kContent,       // an annotation since 2019-09, a restriction before
};

struct Keyword {
  KeywordShape shape = KeywordShape::kAny;
  // The keyword restricts instances by itself; others are annotations, or apply other schemas in place.
  bool asserts = false;
  // Why a schema with the keyword is refused; empty: the keyword is supported.
  std::string refusal;
};

// Returns nullptr for an unknown keyword, which JSON Schema defines to be an annotation.
const Keyword* FindKeyword(absl::string_view name);

// How a value of this shape is described to a client: "a list of strings".
absl::string_view ShapeText(KeywordShape shape);

}  // namespace somnus
