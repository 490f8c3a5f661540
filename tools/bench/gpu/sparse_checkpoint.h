#pragma once
// A checkpoint of any size that takes no space: to measure loading where there are no weights.

#include <string>

#include "absl/status/status.h"

namespace somnus {

// Into `directory`, which is there: the config.json of `model`, and model.safetensors with every tensor that
// it calls for, a header and a hole behind it that reads as zeros. The file system must know sparse files.
absl::Status WriteSparseCheckpoint(const std::string& model, const std::string& directory);

}  // namespace somnus
