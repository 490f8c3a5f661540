#pragma once
// Parses request bodies as JSON. Depth and number of values are checked before anything is built, so that
// neither nesting nor very many tiny values can exhaust stack or memory. Pure functions.
//
// As Python's json does, the parser takes NaN, Infinity, -Infinity and numbers beyond double's range. Such
// values become the strings "NaN", "Infinity", "-Infinity", which no number field accepts, so that the error
// names the field.

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace somnus {

struct JsonLimits {
  int32_t max_depth = 64;
  int64_t max_values = 1'000'000;
};

// Returns an object; a body that is anything else is InvalidArgument. Messages never quote the body.
absl::StatusOr<nlohmann::json> ParseJsonObject(absl::string_view body, const JsonLimits& limits);

// Returns the string at the key "model" of a body that is an object; empty: there is none. For most bodies
// nothing is built, and text after the key is not read.
std::string FindModelName(absl::string_view body, const JsonLimits& limits);

// Parses a body that ParseJsonObject accepted, and keeps the order of keys. Returns only the named members of
// the body, or all where none are named. An object keeps its first max_keys keys, because ordered_json looks
// keys up one by one.
nlohmann::ordered_json ParseInOrder(absl::string_view body, absl::Span<const absl::string_view> members,
                                    size_t max_keys);

// Appends `text` as a JSON string literal. Bytes that are not UTF-8 become U+FFFD.
void AppendJsonString(absl::string_view text, std::string* out);

}  // namespace somnus
