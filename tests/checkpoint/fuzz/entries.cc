#include "tests/checkpoint/fuzz/entries.h"

#include <algorithm>
#include <vector>

#include "base/check.h"
#include "base/status_macros.h"
#include "checkpoint/dequantize.h"
#include "checkpoint/gguf/gguf_config.h"
#include "checkpoint/gguf/gguf_file.h"
#include "checkpoint/gguf/gguf_tensors.h"
#include "checkpoint/hf_config.h"
#include "checkpoint/mapped_file.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/tensor_table.h"
#include "checkpoint/tokenizer/gguf_tokenizer.h"
#include "checkpoint/tokenizer/hf_tokenizer.h"
#include "checkpoint/tokenizer/sentencepiece_model.h"

namespace somnus {
namespace {

absl::string_view TextOf(const uint8_t* data, size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

// Reads both ends of every tensor: accepted bytes must be in the file.
void TouchTensors(const TensorTable& tensors) {
  for (const TensorInfo* tensor : tensors.All()) {
    const BlockSize block = BlockSizeOf(tensor->type);
    const int64_t elements = static_cast<int64_t>(tensor->bytes) / block.bytes * block.elements;
    const int64_t some = std::min<int64_t>(elements, 300);
    std::vector<float> values(some);
    DequantizeRange(tensor->type, tensor->data, 0, some, values.data());
    DequantizeRange(tensor->type, tensor->data, elements - some, elements, values.data());
    for (const int64_t dim : tensor->shape) SOMNUS_CHECK(dim >= 0);
  }
}

}  // namespace

absl::Status FuzzSafetensors(const uint8_t* data, size_t size) {
  const auto file = MappedFile::Borrow("fuzz.safetensors", TextOf(data, size));
  TensorTable tensors;
  RETURN_IF_ERROR(ReadSafetensors(*file, nullptr, &tensors));
  TouchTensors(tensors);
  return absl::OkStatus();
}

absl::Status FuzzGguf(const uint8_t* data, size_t size) {
  const auto file = MappedFile::Borrow("fuzz.gguf", TextOf(data, size));
  ASSIGN_OR_RETURN(const GgufFile gguf, GgufFile::Parse(*file));
  const auto tokenizer = ReadGgufTokenizer(gguf);
  ASSIGN_OR_RETURN(const Family* family, FindGgufFamily(gguf));
  TensorTable tensors;
  RETURN_IF_ERROR(AddGgufTensors(*family, gguf, *file, &tensors));
  TouchTensors(tensors);
  ASSIGN_OR_RETURN(const ModelConfig config, ReadGgufConfig(*family, gguf, tensors));
  RETURN_IF_ERROR(CheckTensors(config, tensors));
  return tokenizer.status();
}

absl::Status FuzzConfig(const uint8_t* data, size_t size) {
  const absl::string_view text = TextOf(data, size);
  const size_t cut = std::min(text.find('\0'), size);
  const auto config = ParseHfConfig(text.substr(0, cut), text.substr(std::min(cut + 1, size)));
  return config.status();
}

absl::Status FuzzTokenizer(const uint8_t* data, size_t size) {
  const absl::string_view text = TextOf(data, size);
  const size_t cut = std::min(text.find('\0'), size);
  const absl::string_view rest = text.substr(std::min(cut + 1, size));
  TokenizerData tokenizer, legacy;
  ParseVocabJson("vocab.json", rest, &legacy).IgnoreError();
  ParseMergesText("merges.txt", rest, &legacy).IgnoreError();
  RETURN_IF_ERROR(ParseTokenizerJson("tokenizer.json", text.substr(0, cut), &tokenizer));
  return rest.empty() ? absl::OkStatus()
                      : ParseTokenizerConfig("tokenizer_config.json", rest, false, &tokenizer);
}

absl::Status FuzzPieces(const uint8_t* data, size_t size) {
  ASSIGN_OR_RETURN(SentencePieceModel model, ParseSentencePieceModel("tokenizer.model", TextOf(data, size)));
  TokenizerData tokenizer;
  FillFromSentencePieces(std::move(model.vocabulary), {}, &tokenizer);
  SOMNUS_CHECK(tokenizer.merge_scores.size() == tokenizer.tokens.size());
  return absl::OkStatus();
}

}  // namespace somnus
