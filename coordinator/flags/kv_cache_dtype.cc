#include "coordinator/flags/kv_cache_dtype.h"

#include <utility>

#include "absl/strings/str_replace.h"

namespace somnus {
namespace {

// The first name of a type is the one that KvCacheDTypeName returns.
constexpr std::pair<const char*, v1::DType> kNames[] = {
    {"auto", v1::DTYPE_UNSPECIFIED}, {"bfloat16", v1::DTYPE_BFLOAT16},        {"float16", v1::DTYPE_FLOAT16},
    {"float32", v1::DTYPE_FLOAT32},  {"fp8_e4m3", v1::DTYPE_FLOAT8_E4M3},     {"fp8", v1::DTYPE_FLOAT8_E4M3},
    {"int8", v1::DTYPE_INT8},        {"int8_per_token_head", v1::DTYPE_INT8},
};

}  // namespace

absl::StatusOr<v1::DType> ParseKvCacheDType(const std::string& name) {
  const std::string plain = absl::StrReplaceAll(name, {{"-", "_"}});
  for (const auto& [known, dtype] : kNames) {
    if (plain == known) return dtype;
  }
  return absl::InvalidArgumentError(
      "is not one of auto, bfloat16, float16, float32, fp8, which is fp8_e4m3, and int8, which is "
      "int8_per_token_head; there is no other fp8 or int8 here");
}

v1::DType ResolveKvCacheDType(v1::DType requested, v1::DType model) {
  return requested != v1::DTYPE_UNSPECIFIED ? requested : model;
}

const char* KvCacheDTypeName(v1::DType dtype) {
  for (const auto& [name, known] : kNames) {
    if (dtype == known) return name;
  }
  return kNames[0].first;
}

}  // namespace somnus
