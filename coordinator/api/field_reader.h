#pragma once
// Typed access to a request's fields. The first problem is kept with the field's name; null counts as not
// given, where vLLM lets it. Lax where its pydantic is: 8.0 and "8" are integers; but a boolean is not a
// number.

#include <cstdint>
#include <limits>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "coordinator/api/api_error.h"

namespace somnus {

class FieldReader {
 public:
  // `object` must outlive the reader.
  explicit FieldReader(const nlohmann::json& object) : object_(object) {}

  // Given, if only as null.
  bool Has(const char* name) const;
  // nullptr: not given, or null.
  const nlohmann::json* Find(const char* name) const;

  // Most fields may be null; this one may not.
  void NotNull(const char* name);
  // As Int, but no string may spell the number.
  std::optional<int64_t> StrictInt(const char* name, int64_t min, int64_t max);
  std::optional<int64_t> Int(const char* name, int64_t min = std::numeric_limits<int64_t>::min(),
                             int64_t max = std::numeric_limits<int64_t>::max());
  std::optional<double> Number(const char* name, double min, double max);
  std::optional<bool> Bool(const char* name);
  std::optional<std::string> String(const char* name, size_t max_bytes);
  // Token ids in [0, vocab_size).
  std::optional<std::vector<int32_t>> TokenIds(const char* name, int32_t vocab_size, size_t max_count);
  // A string or a list of strings, none empty.
  std::optional<std::vector<std::string>> Strings(const char* name, bool lone_string, size_t max_count,
                                                  size_t max_bytes);

  void Fail(absl::string_view param, absl::string_view message);
  bool ok() const { return !error_.has_value(); }
  const ApiError& error() const { return *error_; }

 private:
  const nlohmann::json& object_;
  std::optional<ApiError> error_;
};

// A JSON number, or a string that spells one, as an integer; nullopt: not one, or out of int64's range.
std::optional<int64_t> AsInt(const nlohmann::json& value);
// May be NaN or infinite.
std::optional<double> AsNumber(const nlohmann::json& value);

}  // namespace somnus
