// Qwen2 and Qwen3 with a mixture of experts (arXiv 2407.10671, arXiv 2505.09388). Qwen2's shared expert has a
// gate of its own.

#include "base/status_macros.h"
#include "checkpoint/families/gated_decoder.h"
#include "checkpoint/gguf/gguf_fields.h"
#include "checkpoint/hf_experts.h"

namespace somnus {
namespace {

constexpr GatedDecoderKeys kQwen2Keys = {
    .window = {.kind = AttentionWindow::kBySwitchAlternating},
    .sizes = {.vocab = 151936, .hidden = 2048, .intermediate = 5632, .layers = 24, .heads = 16},
    .default_positions = 32768,
    .default_kv_heads = 16};
constexpr ExpertKeys kQwen2Experts = {.default_experts = 60,
                                      .default_per_token = 4,
                                      .default_size = 1408,
                                      .renormalize_by_key = true,
                                      .layers = ExpertLayers::kByStep,
                                      .shared = SharedExperts::kBySize,
                                      .default_shared = 5632};

// The switch of the window holds for all layers: transformers' class has no max_window_layers.
constexpr GatedDecoderKeys kQwen3Keys = {
    .bias_by_flag = true,
    .window = {.kind = AttentionWindow::kBySwitch},
    .sizes = {.vocab = 151936, .hidden = 2048, .intermediate = 6144, .layers = 24, .heads = 32},
    .default_positions = 32768,
    .default_kv_heads = 4};
constexpr ExpertKeys kQwen3Experts = {.default_experts = 128,
                                      .default_per_token = 8,
                                      .default_size = 768,
                                      .renormalize_by_key = true,
                                      .layers = ExpertLayers::kByStep};

absl::Status ReadQwen2(JsonFields* fields, ModelConfig* config) {
  RETURN_IF_ERROR(ReadGatedDecoder(kQwen2Keys, fields, config));
  config->attention_qkv_bias = fields->Bool("qkv_bias", true);
  return ReadExperts(kQwen2Experts, fields, config);
}

absl::Status ReadQwen3(JsonFields* fields, ModelConfig* config) {
  GatedDecoderKeys keys = kQwen3Keys;
  if (fields->Bool("use_sliding_window", false)) keys.window.kind = AttentionWindow::kAlways;
  RETURN_IF_ERROR(ReadGatedDecoder(keys, fields, config));
  return ReadExperts(kQwen3Experts, fields, config);
}

// llama.cpp divides the weights of Qwen3's chosen experts by their sum in every file, and Qwen2's in none.
void FinishQwen3(GgufFields*, ModelConfig* config) { config->experts.renormalize = true; }
void FinishQwen2(GgufFields* fields, ModelConfig* config) {
  config->experts.shared_size = fields->Size("expert_shared_feed_forward_length");
  config->experts.shared_gate = true;
}

constexpr TensorSpec kLayerTensors[] = {
    layer_tensors::kInputNorm,
    layer_tensors::kQuery,
    layer_tensors::kKey,
    layer_tensors::kValue,
    layer_tensors::kOut,
    layer_tensors::kQueryNorm,
    layer_tensors::kKeyNorm,
    layer_tensors::kPostAttentionNorm,
    layer_tensors::kDenseGate,
    layer_tensors::kDenseUp,
    layer_tensors::kDenseDown,
    layer_tensors::kRouter,
    layer_tensors::kExpertGate,
    layer_tensors::kExpertUp,
    layer_tensors::kExpertDown,
    layer_tensors::Named(layer_tensors::kSharedGate, "mlp.shared_expert.gate_proj"),
    layer_tensors::Named(layer_tensors::kSharedUp, "mlp.shared_expert.up_proj"),
    layer_tensors::Named(layer_tensors::kSharedDown, "mlp.shared_expert.down_proj"),
    {.role = TensorRole::kSharedMix,
     .name = "mlp.shared_expert_gate",
     .gguf = "ffn_gate_inp_shexp",
     .rows = Dim::kOne,
     .cols = Dim::kHidden,
     .present = HasSharedGate,
     .layers = LayerKind::kExperts},
};

constexpr Family kQwen2Moe = {
    .model_type = "qwen2_moe",
    .class_name = "Qwen2Moe",
    .gguf_architecture = "qwen2moe",
    .read_config = ReadQwen2,
    .finish_gguf = FinishQwen2,
    .tensors = kGatedDecoderTensors,
    .layer_tensors = kLayerTensors,
};
const FamilyRegistration kQwen2MoeRegistration(&kQwen2Moe);

constexpr Family kQwen3Moe = {
    .model_type = "qwen3_moe",
    .class_name = "Qwen3Moe",
    .gguf_architecture = "qwen3moe",
    .read_config = ReadQwen3,
    .qk_norm = true,
    .finish_gguf = FinishQwen3,
    .tensors = kGatedDecoderTensors,
    .layer_tensors = kLayerTensors,
};
const FamilyRegistration kQwen3MoeRegistration(&kQwen3Moe);

}  // namespace
}  // namespace somnus
