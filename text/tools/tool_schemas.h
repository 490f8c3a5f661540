#pragma once
// The tools of a request, and which types their parameters have: formats that write values as bare text need
// the schema to tell a number from a string. Immutable; thread safe.

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace somnus {

struct ToolSpec {
  std::string name;
  nlohmann::ordered_json parameters;  // a JSON schema; null: no parameters
  bool strict = false;
};

// A set of JSON types, as bits. Nothing is known of an empty set.
using ValueTypes = uint32_t;
inline constexpr ValueTypes kStringType = 1, kNumberType = 2, kBooleanType = 4, kArrayType = 8,
                            kObjectType = 16, kNullType = 32;

class ToolSchemas {
 public:
  // `keeps_schemas`: for TypesAt. Time and depth of the search are bounded: parameters behind the bound have
  // unknown types.
  explicit ToolSchemas(const std::vector<ToolSpec>& tools, bool keeps_schemas = false);

  // The types that the schema of the tool's parameter allows; empty where the tool or the parameter is not
  // known.
  ValueTypes TypesOf(absl::string_view tool, absl::string_view parameter) const;
  // Likewise of a value within a parameter; `path` begins with the parameter. A name within an array stands
  // for an item. Empty, too, where the schemas are not kept.
  ValueTypes TypesAt(absl::string_view tool, const std::vector<std::string>& path) const;

 private:
  std::map<std::string, std::map<std::string, ValueTypes, std::less<>>, std::less<>> types_;
  std::map<std::string, nlohmann::ordered_json, std::less<>> schemas_;  // by tool; empty unless kept
};

// Returns the JSON text of a value that a model wrote as bare text. Text that fits none of the types becomes
// a string, so that nothing is lost. Without types the text is a string.
std::string JsonOfText(absl::string_view text, ValueTypes types, int max_depth);

}  // namespace somnus
