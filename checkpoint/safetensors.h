#pragma once
// safetensors: 8 bytes little-endian header length, a JSON header {name: {dtype, shape, data_offsets}},
// tensor data. Format: https://github.com/huggingface/safetensors (README, "Format").

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "checkpoint/mapped_file.h"
#include "checkpoint/tensor_table.h"

namespace somnus {

// Adds the tensors of one file for which `wanted` (null: all) returns true. As the format demands, the
// tensors must cover the data part exactly, without holes or overlaps. Any damage is InvalidArgument naming
// file, tensor and reason. The caller keeps `file` mapped.
absl::Status ReadSafetensors(const MappedFile& file, const std::function<bool(const std::string&)>& wanted,
                             TensorTable* tensors);

// Reads model.safetensors, or the shards named by model.safetensors.index.json, from `directory`.
absl::Status ReadSafetensorsDirectory(const std::string& directory, TensorTable* tensors);

// The names of the files that it reads: model.safetensors, or the index and its shards. Opens the index
// alone.
absl::StatusOr<std::vector<std::string>> SafetensorsFiles(const std::string& directory);

}  // namespace somnus
