#pragma once
// A request body becomes JSON, safely: depth and number of values are bounded before anything is built, so
// that neither nesting nor masses of tiny values can exhaust stack or memory.
//
// Like Python's json it takes NaN, Infinity, -Infinity and numbers beyond double's range; they arrive as the
// strings "NaN", "Infinity", "-Infinity", which no number field accepts, so that the error names the field.

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

// An object; anything else is InvalidArgument. Messages never quote the body.
absl::StatusOr<nlohmann::json> ParseJsonObject(absl::string_view body, const JsonLimits& limits);

// A body that ParseJsonObject took, its objects' keys in the order they came in; only these members of it, or
// all where none are named. An object keeps its first max_keys keys: ordered_json looks them up one by one.
nlohmann::ordered_json ParseInOrder(absl::string_view body, absl::Span<const absl::string_view> members,
                                    size_t max_keys);

// Appends `text` as a JSON string literal. Bytes that are no UTF-8 become U+FFFD.
void AppendJsonString(absl::string_view text, std::string* out);

}  // namespace somnus
