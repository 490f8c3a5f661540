#pragma once
// The values of --kv-cache-dtype: vLLM's names for the type of a KV cache's elements. Pure functions.

#include <string>

#include "absl/status/statusor.h"
#include "proto/model.pb.h"

namespace somnus {

// "auto" is DTYPE_UNSPECIFIED, "fp8" means "fp8_e4m3" and "int8" means "int8_per_token_head"; a hyphen counts
// as an underscore. InvalidArgument lists the names.
absl::StatusOr<v1::DType> ParseKvCacheDType(const std::string& name);

// Returns `requested`, or the type of the model where nothing was requested.
v1::DType ResolveKvCacheDType(v1::DType requested, v1::DType model);

// Returns "bfloat16", "fp8_e4m3", "int8", ...; "auto" for types that the flag does not name.
const char* KvCacheDTypeName(v1::DType dtype);

}  // namespace somnus
