#pragma once
// What a GGUF file's metadata means: configuration, tensor names, further files, tokenizer.

#include <string>

#include "absl/status/statusor.h"
#include "checkpoint/gguf_file.h"
#include "checkpoint/model_config.h"
#include "checkpoint/tensor_table.h"
#include "checkpoint/tokenizer_data.h"

namespace somnus {

// The configuration, from metadata and from which tensors there are. Unimplemented: an architecture or option
// that this version does not know; InvalidArgument: missing or contradictory keys. Both name the key.
absl::StatusOr<ModelConfig> ReadGgufConfig(const GgufFile& gguf, const TensorTable& tensors);

// Fills the table with the file's tensors under Hugging Face's names.
absl::Status AddGgufTensors(const GgufFile& gguf, const MappedFile& file, TensorTable* tensors);

// Adds the tensors of the other files of a model that `first`, at `path`, is the first part of; a file that
// is whole by itself has none. Answers the model's name: the file's, without extension and part number.
absl::StatusOr<std::string> AddGgufSplits(const std::string& path, const GgufFile& first,
                                          TensorTable* tensors);

// "blk.3.attn_q.weight" -> "model.layers.3.self_attn.q_proj.weight"; names that mean nothing here stay as
// they are.
std::string CanonicalGgufName(const std::string& name);

// Unimplemented for a tokenizer model other than byte-level BPE ("gpt2") and for unknown pre-tokenizers.
absl::StatusOr<TokenizerData> ReadGgufTokenizer(const GgufFile& gguf);

}  // namespace somnus
