#pragma once
// Values as text: Python's str() and repr(), json.dumps, the % operator and str.format. Pure functions.

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "coordinator/jinja/value.h"

namespace somnus::jinja {

inline constexpr int64_t kMaxTextBytes = 64 << 20;  // of one conversion
inline constexpr int64_t kMaxFieldWidth = 4096;

// ResourceExhausted above kMaxTextBytes.
absl::StatusOr<std::string> ToStr(const Value& value);
absl::StatusOr<std::string> ToRepr(const Value& value);

struct JsonOptions {
  bool ensure_ascii = false;
  bool sort_keys = false;
  bool indented = false;
  std::string indent;  // of one level, when indented
  std::string item_separator = ", ", key_separator = ": ";
};
// InvalidArgument for what JSON cannot say (undefined values, functions).
absl::StatusOr<std::string> ToJson(const Value& value, const JsonOptions& options);

// "format" % argument; a dict serves %(name)s, a tuple several fields.
absl::StatusOr<std::string> PercentFormat(const std::string& format, const Value& argument);

// One value by the format specification of str.format ("", ">10", ".2f", ...).
absl::StatusOr<std::string> FormatField(const Value& value, const std::string& spec);

}  // namespace somnus::jinja
