#include "checkpoint/gguf/gguf_file.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "absl/strings/str_cat.h"
#include "base/utf8.h"

namespace somnus {
namespace {

template <typename T>
T Load(absl::string_view bytes) {
  T value;
  std::memcpy(&value, bytes.data(), sizeof(value));
  return value;
}

// The integer in `bytes`; nullopt for another type or beyond int64_t.
std::optional<int64_t> DecodeInt(GgufType type, absl::string_view bytes) {
  switch (type) {
    case GgufType::kUint8:
      return Load<uint8_t>(bytes);
    case GgufType::kInt8:
      return Load<int8_t>(bytes);
    case GgufType::kUint16:
      return Load<uint16_t>(bytes);
    case GgufType::kInt16:
      return Load<int16_t>(bytes);
    case GgufType::kUint32:
      return Load<uint32_t>(bytes);
    case GgufType::kInt32:
      return Load<int32_t>(bytes);
    case GgufType::kInt64:
      return Load<int64_t>(bytes);
    case GgufType::kUint64: {
      const auto value = Load<uint64_t>(bytes);
      if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return std::nullopt;
      return static_cast<int64_t>(value);
    }
    default:
      return std::nullopt;
  }
}

bool IsInteger(GgufType type) {
  return GgufScalarBytes(type) > 0 && type != GgufType::kBool && type != GgufType::kFloat32 &&
         type != GgufType::kFloat64;
}

}  // namespace

size_t GgufScalarBytes(GgufType type) {
  switch (type) {
    case GgufType::kUint8:
    case GgufType::kInt8:
    case GgufType::kBool:
      return 1;
    case GgufType::kUint16:
    case GgufType::kInt16:
      return 2;
    case GgufType::kUint32:
    case GgufType::kInt32:
    case GgufType::kFloat32:
      return 4;
    case GgufType::kUint64:
    case GgufType::kInt64:
    case GgufType::kFloat64:
      return 8;
    default:
      return 0;
  }
}

absl::Status GgufFile::Bad(absl::string_view key, absl::string_view reason) const {
  return absl::InvalidArgumentError(absl::StrCat(name_, ": key ", key, ": ", reason));
}

absl::Status GgufFile::Unsupported(absl::string_view key, absl::string_view reason) const {
  return absl::UnimplementedError(absl::StrCat(name_, ": key ", key, ": ", reason, " is not supported"));
}

const GgufValue* GgufFile::Find(absl::string_view key) const {
  const auto it = metadata_.find(key);
  return it == metadata_.end() ? nullptr : &it->second;
}

absl::StatusOr<int64_t> GgufFile::Int(absl::string_view key, std::optional<int64_t> otherwise) const {
  const GgufValue* value = Find(key);
  if (value == nullptr) {
    if (otherwise.has_value()) return *otherwise;
    return Bad(key, "missing");
  }
  const std::optional<int64_t> number = DecodeInt(value->type, value->bytes);
  if (!number.has_value()) return Bad(key, "not an integer");
  return *number;
}

absl::StatusOr<double> GgufFile::Double(absl::string_view key, double otherwise) const {
  const GgufValue* value = Find(key);
  if (value == nullptr) return otherwise;
  double number = std::numeric_limits<double>::quiet_NaN();
  if (value->type == GgufType::kFloat32) number = Load<float>(value->bytes);
  if (value->type == GgufType::kFloat64) number = Load<double>(value->bytes);
  if (const auto integer = DecodeInt(value->type, value->bytes)) number = static_cast<double>(*integer);
  if (!std::isfinite(number)) return Bad(key, "not a finite number");
  return number;
}

absl::StatusOr<bool> GgufFile::Bool(absl::string_view key, bool otherwise) const {
  const GgufValue* value = Find(key);
  if (value == nullptr) return otherwise;
  if (value->type != GgufType::kBool) return Bad(key, "not a bool");
  return Load<uint8_t>(value->bytes) != 0;
}

absl::StatusOr<std::string> GgufFile::String(absl::string_view key,
                                             std::optional<std::string> otherwise) const {
  const GgufValue* value = Find(key);
  if (value == nullptr) {
    if (otherwise.has_value()) return *otherwise;
    return Bad(key, "missing");
  }
  if (value->type != GgufType::kString) return Bad(key, "not a string");
  if (!IsUtf8(value->bytes)) return Bad(key, "not valid UTF-8");
  return std::string(value->bytes);
}

absl::StatusOr<std::vector<std::string>> GgufFile::Strings(absl::string_view key) const {
  const GgufValue* value = Find(key);
  if (value == nullptr) return Bad(key, "missing");
  if (value->type != GgufType::kArray || value->element_type != GgufType::kString) {
    return Bad(key, "not an array of strings");
  }
  std::vector<std::string> strings;
  strings.reserve(value->count);  // the parser has seen that many in the file
  absl::string_view rest = value->bytes;
  for (uint64_t i = 0; i < value->count; ++i) {
    const auto length = Load<uint64_t>(rest);
    const absl::string_view text = rest.substr(sizeof(length), length);
    if (!IsUtf8(text)) return Bad(key, absl::StrCat("element ", i, " is not valid UTF-8"));
    strings.emplace_back(text);
    rest.remove_prefix(sizeof(length) + length);
  }
  return strings;
}

absl::StatusOr<std::vector<int64_t>> GgufFile::Ints(absl::string_view key) const {
  const GgufValue* value = Find(key);
  if (value == nullptr) return Bad(key, "missing");
  // A list of yes and no is a list of 1 and 0.
  const GgufType element = value->element_type == GgufType::kBool ? GgufType::kUint8 : value->element_type;
  if (value->type != GgufType::kArray || !IsInteger(element)) return Bad(key, "not an array of integers");
  const size_t bytes = GgufScalarBytes(element);
  std::vector<int64_t> ints;
  ints.reserve(value->count);
  for (uint64_t i = 0; i < value->count; ++i) {
    const auto number = DecodeInt(element, value->bytes.substr(i * bytes, bytes));
    if (!number.has_value()) return Bad(key, absl::StrCat("element ", i, " is out of range"));
    ints.push_back(*number);
  }
  return ints;
}

absl::StatusOr<std::vector<float>> GgufFile::Floats(absl::string_view key) const {
  const GgufValue* value = Find(key);
  if (value == nullptr) return Bad(key, "missing");
  if (value->type != GgufType::kArray || value->element_type != GgufType::kFloat32) {
    return Bad(key, "not an array of 32-bit floats");
  }
  std::vector<float> floats(value->count);
  if (!floats.empty()) std::memcpy(floats.data(), value->bytes.data(), floats.size() * sizeof(float));
  return floats;
}

}  // namespace somnus
