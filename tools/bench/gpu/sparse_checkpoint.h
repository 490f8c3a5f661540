#pragma once
// Writes a checkpoint of any size that takes no space, to measure loading where there are no weights.

#include <string>

#include "absl/status/status.h"

namespace somnus {

// Writes into `directory`, which must exist: the config.json of `model`, and a model.safetensors with every
// tensor that the config calls for: a header, followed by a hole that reads as zeros. The file system must
// support sparse files. Unavailable when a file cannot be written.
absl::Status WriteSparseCheckpoint(const std::string& model, const std::string& directory);

}  // namespace somnus
