#pragma once
// A GGUF file's metadata as a ModelConfig.

#include "absl/status/statusor.h"
#include "checkpoint/family.h"
#include "checkpoint/gguf/gguf_file.h"
#include "checkpoint/model_config.h"
#include "checkpoint/tensor_table.h"

namespace somnus {

// The family that general.architecture names; Unimplemented for a family that this version does not support.
absl::StatusOr<const Family*> FindGgufFamily(const GgufFile& gguf);

// The configuration, from metadata and from which tensors there are. Unimplemented: an option that this
// version does not support; InvalidArgument: missing or contradictory keys. Both name the key.
absl::StatusOr<ModelConfig> ReadGgufConfig(const Family& family, const GgufFile& gguf,
                                           const TensorTable& tensors);

}  // namespace somnus
