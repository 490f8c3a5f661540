#pragma once
// A GGUF file's tensors under their Hugging Face names.

#include <string>

#include "absl/status/status.h"
#include "checkpoint/family.h"
#include "checkpoint/gguf/gguf_file.h"
#include "checkpoint/mapped_file.h"
#include "checkpoint/tensor_table.h"

namespace somnus {

// Fills the table with the file's tensors under Hugging Face's names.
absl::Status AddGgufTensors(const Family& family, const GgufFile& gguf, const MappedFile& file,
                            TensorTable* tensors);

// "blk.3.attn_q.weight" -> "model.layers.3.self_attn.q_proj.weight"; other names stay unchanged.
std::string CanonicalGgufName(const Family& family, const std::string& name);

}  // namespace somnus
