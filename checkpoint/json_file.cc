#include "checkpoint/json_file.h"

#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "checkpoint/json_reader.h"

namespace somnus {

using nlohmann::json;

namespace {

// Replaces NaN, Infinity and -Infinity outside of strings by empty strings of the same length, which no
// getter takes for a number. The text need not be valid JSON.
std::string WithoutNonFinite(absl::string_view text) {
  std::string copy(text);
  bool in_string = false;
  for (size_t i = 0; i < copy.size(); ++i) {
    if (in_string && copy[i] == '\\') {
      ++i;  // what is escaped
    } else if (copy[i] == '"') {
      in_string = !in_string;
    } else if (!in_string) {
      for (const absl::string_view word : {"NaN", "Infinity", "-Infinity"}) {
        if (absl::string_view(copy).substr(i, word.size()) != word) continue;
        copy.replace(i, word.size(), word.size(), ' ').replace(i, 2, "\"\"");
        i += word.size() - 1;
        break;
      }
    }
  }
  return copy;
}

}  // namespace

absl::StatusOr<json> ParseJsonObject(absl::string_view file, absl::string_view text) {
  const std::string finite = WithoutNonFinite(WithoutByteOrderMark(text));
  text = finite;
  // The strict reader goes first: the strict reader bounds the nesting and locates an error.
  JsonReader reader(text);
  if (reader.Skip() && !reader.AtEnd()) reader.Fail("something follows the value");
  if (!reader.ok())
    return absl::InvalidArgumentError(absl::StrCat(file, ": not valid JSON: ", reader.error()));
  json value = json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (!value.is_object()) return absl::InvalidArgumentError(absl::StrCat(file, ": not a JSON object"));
  return value;
}

JsonFields::JsonFields(std::string file, const json& object, std::string prefix)
    : file_(std::move(file)), prefix_(std::move(prefix)), object_(object) {}

const json* JsonFields::Find(absl::string_view key) const {
  const auto it = object_.find(std::string(key));
  return it == object_.end() ? nullptr : &*it;
}

const json* JsonFields::Get(absl::string_view key) const {
  const json* value = Find(key);
  return value == nullptr || value->is_null() ? nullptr : value;
}

bool JsonFields::Has(absl::string_view key) const { return Get(key) != nullptr; }

absl::Status JsonFields::Bad(absl::string_view key, absl::string_view reason) const {
  return absl::InvalidArgumentError(absl::StrCat(file_, ": ", prefix_, key, ": ", reason));
}

absl::Status JsonFields::Unsupported(absl::string_view key, absl::string_view reason) const {
  return absl::UnimplementedError(absl::StrCat(file_, ": ", prefix_, key, ": ", reason, " is not supported"));
}

bool JsonFields::Bool(absl::string_view key, bool otherwise) {
  const json* value = Get(key);
  if (value == nullptr) return otherwise;
  if (value->is_boolean()) return value->get<bool>();
  Note(Bad(key, "not true or false"));
  return otherwise;
}

std::string JsonFields::String(absl::string_view key, absl::string_view otherwise) {
  const json* value = Get(key);
  if (value != nullptr && value->is_string()) return value->get<std::string>();
  if (value != nullptr) Note(Bad(key, "not a string"));
  return std::string(otherwise);
}

std::optional<double> JsonFields::OptionalDouble(absl::string_view key) {
  const json* value = Get(key);
  if (value == nullptr) return std::nullopt;
  const double number = value->is_number() ? value->get<double>() : NAN;
  if (std::isfinite(number)) return number;
  Note(Bad(key, "not a finite number"));
  return std::nullopt;
}

double JsonFields::Double(absl::string_view key, double otherwise) {
  return OptionalDouble(key).value_or(otherwise);
}

int64_t JsonFields::Int(absl::string_view key, int64_t otherwise, int64_t min, int64_t max) {
  const std::optional<double> value = OptionalDouble(key);
  if (!value.has_value()) return otherwise;
  // Python writes some integers as floats (131072.0); doubles are exact far beyond any size here.
  if (*value == std::floor(*value) && *value >= static_cast<double>(min) &&
      *value <= static_cast<double>(max)) {
    return static_cast<int64_t>(*value);
  }
  Note(Bad(key, absl::StrCat(*value, " is not an integer from ", min, " to ", max)));
  return otherwise;
}

int32_t JsonFields::Size(absl::string_view key) {
  if (!Has(key)) Note(Bad(key, "missing"));
  return Size(key, 1);
}

int32_t JsonFields::Size(absl::string_view key, int32_t otherwise) {
  return static_cast<int32_t>(Int(key, otherwise, 1, std::numeric_limits<int32_t>::max()));
}

std::vector<int32_t> JsonFields::Ids(absl::string_view key) {
  constexpr size_t kMaxIds = 1024;
  const json* value = Get(key);
  if (value == nullptr) return {};
  const json list = value->is_array() ? *value : json::array({*value});
  std::vector<int32_t> ids;
  for (const json& id : list) {
    const double number = id.is_number_integer() ? id.get<double>() : -1;
    if (ids.size() == kMaxIds || number < 0 || number > std::numeric_limits<int32_t>::max()) {
      // -1 is written by some models for "none".
      if (id.is_number_integer() && number == -1) continue;
      Note(Bad(key, "not a token id or a short list of them"));
      return {};
    }
    ids.push_back(static_cast<int32_t>(number));
  }
  return ids;
}

const json& JsonFields::Object(absl::string_view key) {
  static const json* const kEmpty = new json(json::object());
  const json* value = Get(key);
  if (value == nullptr) return *kEmpty;
  if (value->is_object()) return *value;
  Note(Bad(key, "not an object"));
  return *kEmpty;
}

}  // namespace somnus
