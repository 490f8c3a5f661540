// GLM-4.5 to 4.7 (arXiv 2508.06471): a rotation of the first half of each head, dense first layers, then
// experts by a router of sigmoids, with shared experts. Norms of q and k by flag.

#include <algorithm>

#include "base/status_macros.h"
#include "checkpoint/families/gated_decoder.h"
#include "checkpoint/gguf/gguf_fields.h"
#include "checkpoint/hf_experts.h"

namespace somnus {
namespace {

constexpr GatedDecoderKeys kKeys = {
    .rope = {.partial = 0.5},
    .sizes = {.vocab = 151552, .hidden = 4096, .intermediate = 10944, .layers = 46, .heads = 96},
    .default_positions = 131072,
    .default_kv_heads = 8,
    .default_eps = 1e-5};
constexpr ExpertKeys kExperts = {.default_experts = 128,
                                 .default_per_token = 8,
                                 .default_size = 1408,
                                 .score = RouterScore::kSigmoid,
                                 .renormalize_by_key = true,
                                 .default_renormalize = true,
                                 .layers = ExpertLayers::kAfterFirst,
                                 .default_dense_layers = 1,
                                 .shared = SharedExperts::kByCount,
                                 .default_shared = 1,
                                 .correction = true,
                                 .groups = true};

absl::Status ReadGlmMoe(JsonFields* fields, ModelConfig* config) {
  RETURN_IF_ERROR(ReadGatedDecoder(kKeys, fields, config));
  config->attention_qkv_bias = fields->Bool("attention_bias", false);
  config->head_norms = fields->Bool("use_qk_norm", false);
  return ReadExperts(kExperts, fields, config);
}

// The layers that predict further tokens are counted in GGUF's block_count, and come last.
void FinishGguf(GgufFields* fields, ModelConfig* config) {
  ExpertsConfig& experts = config->experts;
  experts.score = RouterScore::kSigmoid;
  experts.correction = true;
  experts.renormalize = fields->Bool("expert_weights_norm", true);
  experts.shared_size = fields->SizeTimes("expert_shared_count", 1, experts.expert_size);
  const int32_t further = fields->SizeOrNone("nextn_predict_layers");
  config->num_layers = std::max(1, config->num_layers - further);
}

bool HasHeadNorms(const ModelConfig& c) { return c.head_norms; }

constexpr TensorSpec WithHeadNorms(TensorSpec spec) {
  spec.present = HasHeadNorms;
  return spec;
}
constexpr TensorSpec kLayerTensors[] = {
    layer_tensors::kInputNorm,
    layer_tensors::kQuery,
    layer_tensors::kKey,
    layer_tensors::kValue,
    layer_tensors::kOut,
    WithHeadNorms(layer_tensors::kQueryNorm),
    WithHeadNorms(layer_tensors::kKeyNorm),
    {.role = TensorRole::kMlpNorm, .name = "post_attention_layernorm", .gguf = "post_attention_norm"},
    layer_tensors::kDenseGate,
    layer_tensors::kDenseUp,
    layer_tensors::kDenseDown,
    layer_tensors::kRouter,
    layer_tensors::kRouterCorrection,
    layer_tensors::kExpertGate,
    layer_tensors::kExpertUp,
    layer_tensors::kExpertDown,
    layer_tensors::kSharedGate,
    layer_tensors::kSharedUp,
    layer_tensors::kSharedDown,
};
constexpr Family kGlm4Moe = {
    .model_type = "glm4_moe",
    .class_name = "Glm4Moe",
    .gguf_architecture = "glm4moe",
    .read_config = ReadGlmMoe,
    .partial_rope = true,
    .finish_gguf = FinishGguf,
    .tensors = kGatedDecoderTensors,
    .layer_tensors = kLayerTensors,
};
const FamilyRegistration kGlm4MoeRegistration(&kGlm4Moe);

}  // namespace
}  // namespace somnus
