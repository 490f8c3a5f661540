#pragma once
// --kv-cache-dtype: vLLM's names of what a KV cache holds. Pure functions.

#include <string>

#include "absl/status/statusor.h"
#include "proto/model.pb.h"

namespace somnus {

// "auto" is DTYPE_UNSPECIFIED, "fp8" the same as "fp8_e4m3"; hyphens and underscores are the same.
// InvalidArgument lists the names.
absl::StatusOr<v1::DType> ParseKvCacheDType(const std::string& name);

// What a cache of that flag holds under a model of this type.
v1::DType ResolveKvCacheDType(v1::DType requested, v1::DType model);

// "bfloat16", "fp8_e4m3", ...
const char* KvCacheDTypeName(v1::DType dtype);

}  // namespace somnus
