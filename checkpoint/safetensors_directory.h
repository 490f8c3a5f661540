#pragma once
// Which files of a Hugging Face directory hold its tensors, and the reading of all of them.

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/tensor_table.h"

namespace somnus {

// Reads the tensors of `directory`: those of model.safetensors; else of the shards that
// model.safetensors.index.json names, which may be in folders of the directory; else of all files that end in
// .safetensors, if no tensor is in two of them and no part of a numbered set is missing. Mistral's
// consolidated.safetensors and adapters count only where there is nothing else. InvalidArgument names file
// and tensor; NotFound: there is none of them.
absl::Status ReadSafetensorsDirectory(const std::string& directory, TensorTable* tensors);

// The names, relative to `directory`, of the files that it reads, an index with them. Opens the index alone.
absl::StatusOr<std::vector<std::string>> SafetensorsFiles(const std::string& directory);

}  // namespace somnus
