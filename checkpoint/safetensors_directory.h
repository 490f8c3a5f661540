#pragma once
// Finds and reads the files of a Hugging Face directory that hold tensors.

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/tensor_table.h"

namespace somnus {

// Reads the tensors of `directory`: of model.safetensors; else of the shards that
// model.safetensors.index.json names, which may be in folders of the directory; else of all files that end in
// .safetensors, if no tensor is in two files and no part of a numbered set is missing. Mistral's
// consolidated.safetensors and adapters count only where the directory has no other such files.
// InvalidArgument names file and tensor; NotFound: the directory has no such file.
absl::Status ReadSafetensorsDirectory(const std::string& directory, TensorTable* tensors);

// The names, relative to `directory`, of the files that ReadSafetensorsDirectory reads, including an index.
// Opens the index alone.
absl::StatusOr<std::vector<std::string>> SafetensorsFiles(const std::string& directory);

}  // namespace somnus
