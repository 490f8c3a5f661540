// GLM-4 (arXiv 2406.12793): biases of q, k and v, gate and up in one matrix, and a rotation of neighbours in
// the first half of each head. The 0414 models also normalize the blocks' outputs.

#include "checkpoint/families/gated_decoder.h"

namespace somnus {
namespace {

constexpr GatedDecoderKeys kGlmKeys = {
    .qkv_bias_by_flag = true,
    .rope = {.partial = 0.5},
    .sizes = {.vocab = 151552, .hidden = 4096, .intermediate = 13696, .layers = 40, .heads = 32},
    .default_positions = 131072,
    .default_kv_heads = 2,
    .default_head_dim = 128,
    .default_eps = 1.5625e-7,
    .token_ids = {.pad = 151329}};

// A file without the key has three tokens that end a text.
absl::Status ReadGlm(JsonFields* fields, ModelConfig* config) {
  const absl::Status status = ReadGatedDecoder(kGlmKeys, fields, config);
  if (!fields->Has("eos_token_id")) config->eos_token_ids = {151329, 151336, 151338};
  return status;
}

constexpr TensorSpec kGlmTensors[] = {
    layer_tensors::kInputNorm, layer_tensors::kQuery, layer_tensors::kKey,
    layer_tensors::kValue,     layer_tensors::kOut,   layer_tensors::kPostAttentionNorm,
    layer_tensors::kGateUp,    layer_tensors::kDown,
};
constexpr Family kGlm = {
    .model_type = "glm",
    .class_name = "Glm",
    .read_config = ReadGlm,
    .interleaved_rope = true,
    .partial_rope = true,
    .tensors = kGatedDecoderTensors,
    .layer_tensors = kGlmTensors,
};
const FamilyRegistration kGlmRegistration(&kGlm);

constexpr TensorSpec kGlm4Tensors[] = {
    layer_tensors::kInputNorm,
    layer_tensors::kQuery,
    layer_tensors::kKey,
    layer_tensors::kValue,
    layer_tensors::kOut,
    {.role = TensorRole::kAttentionPostNorm,
     .name = "post_self_attn_layernorm",
     .gguf = "post_attention_norm"},
    layer_tensors::kPostAttentionNorm,
    layer_tensors::kGateUp,
    layer_tensors::kDown,
    {.role = TensorRole::kMlpPostNorm, .name = "post_mlp_layernorm", .gguf = "post_ffw_norm"},
};
constexpr Family kGlm4 = {
    .model_type = "glm4",
    .class_name = "Glm4",
    .gguf_architecture = "glm4",
    .read_config = ReadGlm,
    .interleaved_rope = true,
    .partial_rope = true,
    .tensors = kGatedDecoderTensors,
    .layer_tensors = kGlm4Tensors,
};
const FamilyRegistration kGlm4Registration(&kGlm4);

}  // namespace
}  // namespace somnus
