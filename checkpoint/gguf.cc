// A GGUF file as a Checkpoint.

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "checkpoint/gguf_file.h"
#include "checkpoint/gguf_model.h"
#include "checkpoint/mapped_checkpoint.h"

namespace somnus {
namespace {

class GgufCheckpoint final : public MappedCheckpoint {
 public:
  GgufCheckpoint(ModelConfig config, TensorTable tensors, GgufFile gguf, std::unique_ptr<MappedFile> file)
      : MappedCheckpoint(std::move(config), std::move(tensors)),
        file_(std::move(file)),
        gguf_(std::move(gguf)) {}

  absl::StatusOr<TokenizerData> ReadTokenizer() const override {
    absl::StatusOr<TokenizerData> data = ReadGgufTokenizer(gguf_);
    RETURN_IF_ERROR(file_->CheckWhole());
    return data;
  }

 private:
  std::unique_ptr<MappedFile> file_;
  GgufFile gguf_;  // its views point into file_
};

// llama.cpp stores the q and k rows of its llama architecture in the pairing order of its rotary embedding.
void MarkPermuted(const ModelConfig& config, TensorTable* tensors) {
  if (config.architecture != Architecture::kLlama) return;
  for (int layer = 0; layer < config.num_layers; ++layer) {
    for (const char* name : {"q_proj.weight", "q_proj.bias", "k_proj.weight", "k_proj.bias"}) {
      tensors->SetPermuted(absl::StrCat("model.layers.", layer, ".self_attn.", name), config.head_dim);
    }
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<Checkpoint>> OpenGgufCheckpoint(const std::string& path) {
  ASSIGN_OR_RETURN(std::unique_ptr<MappedFile> file, MappedFile::Open(path));
  absl::StatusOr<GgufFile> gguf = GgufFile::Parse(*file);
  RETURN_IF_ERROR(file->CheckWhole());
  RETURN_IF_ERROR(gguf.status());
  TensorTable tensors;
  RETURN_IF_ERROR(AddGgufTensors(*gguf, *file, &tensors));
  ASSIGN_OR_RETURN(const std::string name, AddGgufSplits(path, *gguf, &tensors));
  ASSIGN_OR_RETURN(ModelConfig config, ReadGgufConfig(*gguf, tensors));
  RETURN_IF_ERROR(file->CheckWhole());
  RETURN_IF_ERROR(CheckTensors(config, tensors));
  MarkPermuted(config, &tensors);
  config.name = name;
  return std::unique_ptr<Checkpoint>(std::make_unique<GgufCheckpoint>(std::move(config), std::move(tensors),
                                                                      *std::move(gguf), std::move(file)));
}

}  // namespace somnus
