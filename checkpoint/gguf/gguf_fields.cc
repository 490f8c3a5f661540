#include "checkpoint/gguf/gguf_fields.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"

namespace somnus {

GgufFields::GgufFields(const GgufFile& gguf, std::string arch) : gguf_(gguf), arch_(std::move(arch)) {}

std::string GgufFields::Key(absl::string_view key) const { return absl::StrCat(arch_, ".", key); }

int32_t GgufFields::Size(absl::string_view key, std::optional<int64_t> otherwise) {
  const auto value = gguf_.Int(Key(key), otherwise);
  if (!value.ok()) return Fail(value.status());
  if (*value <= 0 || *value > std::numeric_limits<int32_t>::max()) {
    return Fail(gguf_.Bad(Key(key), absl::StrCat(*value, " is out of range")));
  }
  return static_cast<int32_t>(*value);
}

int32_t GgufFields::SizePerLayer(absl::string_view key, std::optional<int64_t> otherwise) {
  const GgufValue* value = gguf_.Find(Key(key));
  if (value == nullptr || value->type != GgufType::kArray) return Size(key, otherwise);
  const auto numbers = gguf_.Ints(Key(key));
  if (!numbers.ok()) return Fail(numbers.status());
  if (numbers->empty()) return Fail(gguf_.Bad(Key(key), "an empty array"));
  const int64_t first = numbers->front();
  if (std::any_of(numbers->begin(), numbers->end(), [first](int64_t n) { return n != first; })) {
    return Fail(gguf_.Unsupported(Key(key), "a size that differs between layers"));
  }
  if (first <= 0 || first > std::numeric_limits<int32_t>::max())
    return Fail(gguf_.Bad(Key(key), "out of range"));
  return static_cast<int32_t>(first);
}

int32_t GgufFields::SizeOrNone(absl::string_view key) {
  const auto value = gguf_.Int(Key(key), 0);
  return value.ok() && *value == 0 ? 0 : Size(key, 0);
}

int32_t GgufFields::SizeTimes(absl::string_view key, int64_t otherwise, int32_t factor) {
  constexpr int64_t kMost = 1 << 28;
  const int64_t product = int64_t{Size(key, otherwise)} * factor;
  if (product > kMost) return Fail(gguf_.Bad(Key(key), "too many"));
  return static_cast<int32_t>(product);
}

bool GgufFields::Bool(absl::string_view key, bool otherwise) {
  const auto value = gguf_.Bool(Key(key), otherwise);
  if (!value.ok()) Fail(value.status());
  return value.ok() ? *value : otherwise;
}

double GgufFields::Double(absl::string_view key, double otherwise) {
  const auto value = gguf_.Double(Key(key), otherwise);
  if (!value.ok()) Fail(value.status());
  return value.ok() ? *value : otherwise;
}

double GgufFields::PositiveDouble(absl::string_view key, double otherwise) {
  const double value = Double(key, otherwise);
  if (value > 0 && std::isfinite(value)) return value;
  Fail(gguf_.Bad(Key(key), "not above zero"));
  return otherwise;
}

int32_t GgufFields::Fail(absl::Status status) {
  if (status_.ok()) status_ = std::move(status);
  return 1;
}

}  // namespace somnus
