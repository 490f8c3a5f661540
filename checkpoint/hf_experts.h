#pragma once
// The keys of a Hugging Face config.json that describe a mixture of experts (checkpoint/experts_config.h).
// Include from .cc files only (json_file.h).

#include <cstdint>

#include "absl/status/status.h"
#include "checkpoint/json_file.h"
#include "checkpoint/model_config.h"

namespace somnus {

// How a family's configuration says which layers have experts. A list mlp_layer_types ("dense", "sparse")
// wins over the rule, but for kAll: such a family has no other MLP.
enum class ExpertLayers {
  kAll,
  kByStep,  // those whose number, from 1 on, divides by decoder_sparse_step, without mlp_only_layers (Qwen)
  kAfterFirst  // all but the first first_k_dense_replace (DeepSeek, GLM)
};

// How a family's configuration says how wide the shared experts are.
enum class SharedExperts {
  kNone,
  kBySize,  // shared_expert_intermediate_size, with a gate (Qwen2)
  kByCount  // n_shared_experts of moe_intermediate_size each
};

// The keys that distinguish the families. Defaults are those of the configuration classes of `transformers`.
// The number of experts is num_experts, num_local_experts or n_routed_experts, since files of different
// releases have any of these.
struct ExpertKeys {
  int32_t default_experts = 0;
  int32_t default_per_token = 0;
  const char* size_key = "moe_intermediate_size";
  int32_t default_size = 0;  // 0: the key must be there
  RouterScore score = RouterScore::kSoftmax;
  bool renormalize_by_key = false;  // norm_topk_prob; else always
  bool default_renormalize = false;
  ExpertLayers layers = ExpertLayers::kAll;
  int32_t default_dense_layers = 0;  // of kAfterFirst
  SharedExperts shared = SharedExperts::kNone;
  int32_t default_shared = 0;  // of the key of `shared`
  bool correction = false;
  bool groups = false;  // n_group, topk_group
  int32_t default_groups = 1;
  int32_t default_top_groups = 1;
  double default_scale = 1;
};

// Fills config->experts; num_layers must have been read. An error names the key.
absl::Status ReadExperts(const ExpertKeys& keys, JsonFields* fields, ModelConfig* config);

// Ok where the numbers fit each other and are within bounds; `file` is named in the error.
absl::Status ValidateExperts(const std::string& file, const ModelConfig& config);

}  // namespace somnus
