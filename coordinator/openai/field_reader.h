#pragma once
// Typed access to a request's fields. Each reading function returns nullopt when the field is not given or
// has a problem; the first problem is kept with the field's name. null counts as not given, except after
// NotNull. As vLLM's pydantic, the reader takes 8.0 and "8" for integers; but a boolean is not a number.

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "coordinator/http/api_error.h"
#include "coordinator/openai/field_table.h"

namespace somnus {

class FieldReader {
 public:
  // `object` must outlive the reader.
  explicit FieldReader(const nlohmann::json& object) : object_(object) {}
  // Reads the fields of the table alone, each as its type says: reading another field, or a field otherwise,
  // is a problem with status 500, so that no field can be forgotten in the table.
  FieldReader(const nlohmann::json& object, const FieldTable& table) : object_(object), table_(&table) {}

  // Whether the field is given, also as null.
  bool Has(const char* name);
  // Returns nullptr for a field that is not given or null.
  const nlohmann::json* Find(const char* name);

  // null is a problem for the fields of which the table says so.
  void CheckNulls();
  // null is a problem for this field.
  void NotNull(const char* name);
  // As Int, but a string that spells the number is a problem.
  std::optional<int64_t> StrictInt(const char* name, int64_t min, int64_t max);
  std::optional<int64_t> Int(const char* name, int64_t min = std::numeric_limits<int64_t>::min(),
                             int64_t max = std::numeric_limits<int64_t>::max());
  std::optional<double> Number(const char* name, double min, double max);
  std::optional<bool> Bool(const char* name);
  std::optional<std::string> String(const char* name, size_t max_bytes);
  // Token ids in [0, vocab_size).
  std::optional<std::vector<int32_t>> TokenIds(const char* name, int32_t vocab_size, size_t max_count);
  // A list of strings that are not empty, or, with `lone_string`, a single such string.
  std::optional<std::vector<std::string>> Strings(const char* name, bool lone_string, size_t max_count,
                                                  size_t max_bytes);

  // Notes a problem of field `param`, unless a problem was noted before.
  void Fail(absl::string_view param, absl::string_view message);
  void Fail(ApiError error);
  bool ok() const { return !error_.has_value(); }
  const ApiError& error() const { return *error_; }  // only when !ok()

 private:
  // Notes a problem where the table has no such field, or one of another type.
  void Expect(const char* name, std::initializer_list<FieldType> types);
  void Expect(const char* name);  // of any type
  const nlohmann::json* Get(const char* name) const;
  std::optional<int64_t> ReadInt(const char* name, int64_t min, int64_t max);

  const nlohmann::json& object_;
  const FieldTable* const table_ = nullptr;  // null: any field may be read
  std::optional<ApiError> error_;
};

// Returns a JSON number, or a string that spells one, as an integer; nullopt: not a whole number, or out of
// int64's range.
std::optional<int64_t> AsInt(const nlohmann::json& value);
// The same as a double, which may be NaN or infinite.
std::optional<double> AsNumber(const nlohmann::json& value);

}  // namespace somnus
