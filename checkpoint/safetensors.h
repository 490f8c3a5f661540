#pragma once
// safetensors: 8 bytes little-endian header length, a JSON header {name: {dtype, shape, data_offsets}},
// tensor data. Format: https://github.com/huggingface/safetensors (README, "Format").

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "checkpoint/mapped_file.h"
#include "checkpoint/tensor_table.h"

namespace somnus {

// The name of a tensor or a module as models of that kind are mostly saved. Checkpoints that were saved from
// the bare model, without the head, lack the outermost "model."; checkpoints of a wrapper (a compiled or
// distributed module, the text part of a multimodal model, a merged adapter) have further prefixes.
std::string CanonicalName(const std::string& name);

// Adds the tensors of one file for which `wanted` (null: all) returns true. As the format demands, the
// tensors must cover the data part exactly, without holes or overlaps. Any damage is InvalidArgument naming
// file, tensor and reason. The caller keeps `file` mapped.
absl::Status ReadSafetensors(const MappedFile& file, const std::function<bool(const std::string&)>& wanted,
                             TensorTable* tensors);

}  // namespace somnus
