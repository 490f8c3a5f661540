#pragma once
// Values as text: Python's str() and repr(), json.dumps, the % operator and str.format. Pure functions.

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "text/jinja/value.h"

namespace somnus::jinja {

inline constexpr int64_t kMaxTextBytes = 64 << 20;  // of the result of a conversion
inline constexpr int64_t kMaxFieldWidth = 4096;

// Python's str() and repr(). ResourceExhausted above kMaxTextBytes, as in the functions below.
absl::StatusOr<std::string> ToStr(const Value& value);
absl::StatusOr<std::string> ToRepr(const Value& value);

struct JsonOptions {
  bool ensure_ascii = false;
  bool sort_keys = false;
  bool indented = false;
  std::string indent;  // of one level, when indented
  std::string item_separator = ", ", key_separator = ": ";
};
// Python's json.dumps. InvalidArgument for values that JSON does not have (undefined values, functions).
absl::StatusOr<std::string> ToJson(const Value& value, const JsonOptions& options);

// Python's format % argument: the fields' values are an argument that is a tuple, the values of a dict for
// %(name)s, else the single argument.
absl::StatusOr<std::string> PercentFormat(const std::string& format, const Value& argument);

// Formats one value by a format specification of str.format ("", ">10", ".2f", ...).
absl::StatusOr<std::string> FormatField(const Value& value, const std::string& spec);

}  // namespace somnus::jinja
