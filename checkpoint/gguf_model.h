#pragma once
// What a GGUF file's metadata means: family, configuration, tensor names, further files, tokenizer.

#include <string>

#include "absl/status/statusor.h"
#include "checkpoint/family.h"
#include "checkpoint/gguf_file.h"
#include "checkpoint/model_config.h"
#include "checkpoint/tensor_table.h"
#include "checkpoint/tokenizer_data.h"

namespace somnus {

// The family that general.architecture names; Unimplemented for one that this version does not know.
absl::StatusOr<const Family*> FindGgufFamily(const GgufFile& gguf);

// The configuration, from metadata and from which tensors there are. Unimplemented: an option that this
// version does not know; InvalidArgument: missing or contradictory keys. Both name the key.
absl::StatusOr<ModelConfig> ReadGgufConfig(const Family& family, const GgufFile& gguf,
                                           const TensorTable& tensors);

// Fills the table with the file's tensors under Hugging Face's names.
absl::Status AddGgufTensors(const Family& family, const GgufFile& gguf, const MappedFile& file,
                            TensorTable* tensors);

// Marks the q and k projections that are stored in llama.cpp's order (TensorInfo::permuted_head_dim).
void MarkPermutedHeads(const ModelConfig& config, TensorTable* tensors);

// Adds the tensors of the other files of a model that `first`, at `path`, is the first part of; a file that
// is whole by itself has none. Returns the model's name: the file's, without extension and part number.
absl::StatusOr<std::string> AddGgufSplits(const Family& family, const std::string& path,
                                          const GgufFile& first, TensorTable* tensors);

// "blk.3.attn_q.weight" -> "model.layers.3.self_attn.q_proj.weight"; names that the family does not have stay
// as they are.
std::string CanonicalGgufName(const Family& family, const std::string& name);

// Unimplemented for a tokenizer model other than byte-level BPE ("gpt2") and for unknown pre-tokenizers.
absl::StatusOr<TokenizerData> ReadGgufTokenizer(const GgufFile& gguf);

}  // namespace somnus
