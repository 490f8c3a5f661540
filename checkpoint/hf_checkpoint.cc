// A Hugging Face directory: config.json, safetensors, tokenizer files.

#include <cstring>
#include <memory>
#include <utility>

#include "base/status_macros.h"
#include "checkpoint/family.h"
#include "checkpoint/fused_experts.h"
#include "checkpoint/hf_config.h"
#include "checkpoint/latent_tensors.h"
#include "checkpoint/mapped_checkpoint.h"
#include "checkpoint/packed_tensors.h"
#include "checkpoint/safetensors_directory.h"
#include "checkpoint/tokenizer/hf_tokenizer.h"

namespace somnus {
namespace {

class HfCheckpoint final : public MappedCheckpoint {
 public:
  HfCheckpoint(ModelConfig config, TensorTable tensors, std::string directory)
      : MappedCheckpoint(std::move(config), std::move(tensors)), directory_(std::move(directory)) {}

  absl::Status FindTokenizer() const override { return FindHfTokenizer(directory_); }
  absl::StatusOr<TokenizerData> ReadTokenizer() const override { return ReadHfTokenizer(directory_); }

 private:
  std::string directory_;
};

// Like transformers, regardless of the configuration: a head that is stored and differs is not tied.
bool StoredHeadDiffers(const TensorTable& tensors, const std::string& embedding_name,
                       const std::string& head_name) {
  const TensorInfo* embedding = tensors.Find(embedding_name);
  const TensorInfo* head = tensors.Find(head_name);
  if (embedding == nullptr || head == nullptr) return tensors.Has(head_name);
  if (head->packed != nullptr || embedding->packed != nullptr) return true;
  return head->type != embedding->type || head->shape != embedding->shape ||
         std::memcmp(head->data, embedding->data, head->bytes) != 0;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Checkpoint>> OpenHfCheckpoint(const std::string& directory) {
  ASSIGN_OR_RETURN(ModelConfig config, ReadHfConfig(directory));
  config.name = ResolvedName(directory);
  TensorTable tensors;
  RETURN_IF_ERROR(ReadSafetensorsDirectory(directory, &tensors));
  RETURN_IF_ERROR(
      tensors.Rename([&config](const std::string& name) { return FileName(*config.family, name); }));
  RETURN_IF_ERROR(AddPackedTensors(config, &tensors));
  RETURN_IF_ERROR(AddFusedExperts(config, &tensors));
  RETURN_IF_ERROR(AddLatentTensors(config, &tensors));
  const std::string embedding = TensorName(*config.family, TensorRole::kEmbedding) + ".weight";
  const std::string head = TensorName(*config.family, TensorRole::kHead) + ".weight";
  if (config.tie_word_embeddings && StoredHeadDiffers(tensors, embedding, head)) {
    config.tie_word_embeddings = false;
  }
  // Where the configuration is silent, a head that is not stored is the embedding.
  if (!config.tie_word_embeddings_given && !tensors.Has(head)) config.tie_word_embeddings = true;
  RETURN_IF_ERROR(CheckTensors(config, tensors));
  RETURN_IF_ERROR(tensors.SetForms(config, TensorOrigin::kHuggingFace));
  if (!config.stored_type_given) config.stored_type = tensors.Find(embedding)->type;
  return std::unique_ptr<Checkpoint>(
      std::make_unique<HfCheckpoint>(std::move(config), std::move(tensors), directory));
}

}  // namespace somnus
