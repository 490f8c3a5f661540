#include "coordinator/openai/field_reader.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace somnus {

using Json = nlohmann::json;

std::optional<int64_t> AsInt(const Json& value) {
  if (value.is_number_unsigned()) {
    const uint64_t v = value.get<uint64_t>();
    if (v > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return std::nullopt;
    return static_cast<int64_t>(v);
  }
  if (value.is_number_integer()) return value.get<int64_t>();
  if (value.is_number_float()) {
    const double v = value.get<double>();
    // Above 2^53 several integers are the same double.
    if (!(std::fabs(v) <= 9007199254740992.0) || v != std::floor(v)) return std::nullopt;
    return static_cast<int64_t>(v);
  }
  if (!value.is_string()) return std::nullopt;
  const absl::string_view text = value.get_ref<const std::string&>();
  const std::pair<absl::string_view, absl::string_view> parts = absl::StrSplit(text, absl::MaxSplits('.', 1));
  const bool whole = parts.second.find_first_not_of('0') == absl::string_view::npos;  // "8.0", as pydantic
  int64_t parsed;
  if (whole && absl::SimpleAtoi(parts.first, &parsed)) return parsed;
  return std::nullopt;
}

std::optional<double> AsNumber(const Json& value) {
  if (value.is_number()) return value.get<double>();
  double parsed;
  if (value.is_string() && absl::SimpleAtod(value.get_ref<const std::string&>(), &parsed)) return parsed;
  return std::nullopt;
}

void FieldReader::Expect(const char* name, std::initializer_list<FieldType> types) {
  if (table_ == nullptr) return;
  const FieldSpec* const spec = table_->Find(name);
  if (spec != nullptr && std::find(types.begin(), types.end(), spec->type) != types.end()) return;
  Fail(ApiError{500, absl::StrCat("the table of fields is wrong about ", name), name});
}

void FieldReader::Expect(const char* name) {
  if (table_ == nullptr || table_->Find(name) != nullptr) return;
  Fail(ApiError{500, absl::StrCat("the table of fields has no ", name), name});
}

bool FieldReader::Has(const char* name) {
  Expect(name);
  return object_.contains(name);
}

const Json* FieldReader::Find(const char* name) {
  Expect(name);
  return Get(name);
}

const Json* FieldReader::Get(const char* name) const {
  const auto it = object_.find(name);
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

void FieldReader::CheckNulls() {
  if (table_ == nullptr) return;
  for (const FieldSpec& spec : table_->specs()) {
    if (spec.not_null) NotNull(spec.name);
  }
}

void FieldReader::Fail(absl::string_view param, absl::string_view message) {
  Fail(BadRequest(param, message));
}

void FieldReader::Fail(ApiError error) {
  if (!error_.has_value()) error_ = std::move(error);
}

void FieldReader::NotNull(const char* name) {
  Expect(name);
  const auto it = object_.find(name);
  if (it != object_.end() && it->is_null()) Fail(name, absl::StrCat(name, " must not be null"));
}

std::optional<int64_t> FieldReader::StrictInt(const char* name, int64_t min, int64_t max) {
  Expect(name, {FieldType::kInteger});
  const Json* value = Get(name);
  if (value == nullptr || value->is_number()) return ReadInt(name, min, max);
  Fail(name, absl::StrCat(name, " must be an integer"));
  return std::nullopt;
}

std::optional<int64_t> FieldReader::Int(const char* name, int64_t min, int64_t max) {
  Expect(name, {FieldType::kInteger});
  return ReadInt(name, min, max);
}

std::optional<int64_t> FieldReader::ReadInt(const char* name, int64_t min, int64_t max) {
  const Json* value = Get(name);
  if (value == nullptr) return std::nullopt;
  const std::optional<int64_t> parsed = AsInt(*value);
  if (!parsed.has_value()) {
    Fail(name, absl::StrCat(name, " must be an integer of at most 64 bits"));
  } else if (*parsed < min) {
    Fail(name, absl::StrCat(name, " must be at least ", min));
  } else if (*parsed > max) {
    Fail(name, absl::StrCat(name, " must be at most ", max));
  } else {
    return parsed;
  }
  return std::nullopt;
}

std::optional<double> FieldReader::Number(const char* name, double min, double max) {
  Expect(name, {FieldType::kNumber});
  const Json* value = Get(name);
  if (value == nullptr) return std::nullopt;
  const std::optional<double> parsed = AsNumber(*value);
  if (!parsed.has_value()) {
    Fail(name, absl::StrCat(name, " must be a number"));
  } else if (!std::isfinite(*parsed)) {
    Fail(name, absl::StrCat(name, " must be finite"));
  } else if (*parsed < min || *parsed > max) {
    Fail(name, absl::StrCat(name, " must be in [", min, ", ", max, "]"));
  } else {
    return parsed;
  }
  return std::nullopt;
}

std::optional<bool> FieldReader::Bool(const char* name) {
  Expect(name, {FieldType::kBoolean});
  const Json* value = Get(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_boolean()) return value->get<bool>();
  if (value->is_number()) {
    const std::optional<int64_t> number = AsInt(*value);
    if (number == 0) return false;
    if (number == 1) return true;
  } else if (value->is_string()) {
    const std::string& text = value->get_ref<const std::string&>();
    for (const char* word : {"true", "yes", "on", "y", "t", "1"}) {
      if (absl::EqualsIgnoreCase(text, word)) return true;
    }
    for (const char* word : {"false", "no", "off", "n", "f", "0"}) {
      if (absl::EqualsIgnoreCase(text, word)) return false;
    }
  }
  Fail(name, absl::StrCat(name, " must be true or false"));
  return std::nullopt;
}

std::optional<std::string> FieldReader::String(const char* name, size_t max_bytes) {
  Expect(name, {FieldType::kString});
  const Json* value = Get(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) {
    Fail(name, absl::StrCat(name, " must be a string"));
    return std::nullopt;
  }
  if (value->get_ref<const std::string&>().size() > max_bytes) {
    Fail(name, absl::StrCat(name, " is longer than ", max_bytes, " bytes"));
    return std::nullopt;
  }
  return value->get<std::string>();
}

std::optional<std::vector<int32_t>> FieldReader::TokenIds(const char* name, int32_t vocab_size,
                                                          size_t max_count) {
  Expect(name, {FieldType::kTokenIds});
  const Json* value = Get(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_array() || value->size() > max_count) {
    Fail(name, absl::StrCat(name, " must be a list of at most ", max_count, " token ids"));
    return std::nullopt;
  }
  std::vector<int32_t> ids;
  ids.reserve(value->size());
  for (const Json& item : *value) {
    const std::optional<int64_t> id = AsInt(item);
    if (!id.has_value() || *id < 0 || *id >= vocab_size) {
      Fail(name, absl::StrCat(name, " must hold token ids in [0, ", vocab_size, ")"));
      return std::nullopt;
    }
    ids.push_back(static_cast<int32_t>(*id));
  }
  return ids;
}

std::optional<std::vector<std::string>> FieldReader::Strings(const char* name, bool lone_string,
                                                             size_t max_count, size_t max_bytes) {
  Expect(name, {lone_string ? FieldType::kTexts : FieldType::kStrings});
  const Json* value = Get(name);
  if (value == nullptr) return std::nullopt;
  const Json lone = lone_string && value->is_string() ? Json::array({*value}) : Json();
  const Json& items = lone.is_null() ? *value : lone;
  if (!items.is_array() || items.size() > max_count) {
    Fail(name, absl::StrCat(name, " must be ", lone_string ? "a string or " : "", "a list of at most ",
                            max_count, " strings"));
    return std::nullopt;
  }
  std::vector<std::string> strings;
  for (const Json& item : items) {
    if (!item.is_string() || item.get_ref<const std::string&>().empty() ||
        item.get_ref<const std::string&>().size() > max_bytes) {
      Fail(name, absl::StrCat(name, " must hold non-empty strings of at most ", max_bytes, " bytes"));
      return std::nullopt;
    }
    strings.push_back(item.get<std::string>());
  }
  return strings;
}

}  // namespace somnus
