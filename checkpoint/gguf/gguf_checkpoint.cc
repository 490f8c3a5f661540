// A GGUF file as a Checkpoint.

#include <utility>

#include "base/status_macros.h"
#include "checkpoint/gguf/gguf_config.h"
#include "checkpoint/gguf/gguf_file.h"
#include "checkpoint/gguf/gguf_split.h"
#include "checkpoint/gguf/gguf_tensors.h"
#include "checkpoint/mapped_checkpoint.h"
#include "checkpoint/tokenizer/gguf_tokenizer.h"

namespace somnus {
namespace {

class GgufCheckpoint final : public MappedCheckpoint {
 public:
  GgufCheckpoint(ModelConfig config, TensorTable tensors, GgufFile gguf, std::unique_ptr<MappedFile> file)
      : MappedCheckpoint(std::move(config), std::move(tensors)),
        file_(std::move(file)),
        gguf_(std::move(gguf)) {}

  absl::Status FindTokenizer() const override { return FindGgufTokenizer(gguf_); }
  absl::StatusOr<TokenizerData> ReadTokenizer() const override {
    absl::StatusOr<TokenizerData> data = ReadGgufTokenizer(gguf_);
    RETURN_IF_ERROR(file_->CheckWhole());
    return data;
  }

 private:
  std::unique_ptr<MappedFile> file_;
  GgufFile gguf_;  // has views into file_
};

}  // namespace

absl::StatusOr<std::unique_ptr<Checkpoint>> OpenGgufCheckpoint(const std::string& given_path) {
  const std::string path = FirstGgufPart(given_path);
  ASSIGN_OR_RETURN(std::unique_ptr<MappedFile> file, MappedFile::Open(path));
  absl::StatusOr<GgufFile> gguf = GgufFile::Parse(*file);
  RETURN_IF_ERROR(file->CheckWhole());
  RETURN_IF_ERROR(gguf.status());
  ASSIGN_OR_RETURN(const int64_t num_parts, CountGgufParts(*gguf));
  ASSIGN_OR_RETURN(const Family* family, FindGgufFamily(*gguf));
  TensorTable tensors;
  RETURN_IF_ERROR(AddGgufTensors(*family, *gguf, *file, &tensors));
  ASSIGN_OR_RETURN(const std::string name, AddGgufSplits(*family, path, *gguf, num_parts, &tensors));
  ASSIGN_OR_RETURN(ModelConfig config, ReadGgufConfig(*family, *gguf, tensors));
  RETURN_IF_ERROR(file->CheckWhole());
  RETURN_IF_ERROR(CheckTensors(config, tensors));
  RETURN_IF_ERROR(tensors.SetForms(config, TensorOrigin::kGguf));
  config.name = name;
  return std::unique_ptr<Checkpoint>(std::make_unique<GgufCheckpoint>(std::move(config), std::move(tensors),
                                                                      *std::move(gguf), std::move(file)));
}

}  // namespace somnus
