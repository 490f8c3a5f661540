#pragma once
// tokenizer.ggml.* of a GGUF file's metadata.

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/gguf/gguf_file.h"
#include "checkpoint/tokenizer_data.h"

namespace somnus {

// NotFound when the file has no tokenizer.
absl::Status FindGgufTokenizer(const GgufFile& gguf);

// The errors of FindGgufTokenizer; Unimplemented for a tokenizer model other than byte-level BPE ("gpt2") and
// SentencePiece's BPE ("llama"), and for unknown pre-tokenizers.
absl::StatusOr<TokenizerData> ReadGgufTokenizer(const GgufFile& gguf);

}  // namespace somnus
