// Qwen2 (arXiv 2407.10671) has biases of q, k and v; Qwen3 (arXiv 2505.09388) normalizes each head's q and k.

#include "checkpoint/families/gated_decoder.h"

namespace somnus {
namespace {

absl::Status ReadQwen2(JsonFields* fields, ModelConfig* config) {
  return ReadGatedDecoder({.qkv_bias = true,
                           .window = AttentionWindow::kBySwitch,
                           .default_positions = 32768,
                           .default_kv_heads = 32},
                          fields, config);
}

absl::Status ReadQwen3(JsonFields* fields, ModelConfig* config) {
  return ReadGatedDecoder({.bias_by_flag = true,
                           .window = AttentionWindow::kBySwitch,
                           .default_positions = 32768,
                           .default_kv_heads = 32,
                           .default_head_dim = 128},
                          fields, config);
}

constexpr Family kQwen2 = {
    .model_type = "qwen2",
    .class_name = "Qwen2",
    .gguf_architecture = "qwen2",
    .read_config = ReadQwen2,
    .tensors = kGatedDecoderTensors,
    .layer_tensors = kGatedDecoderLayerTensors,
};
const FamilyRegistration kQwen2Registration(&kQwen2);

constexpr Family kQwen3 = {
    .model_type = "qwen3",
    .class_name = "Qwen3",
    .gguf_architecture = "qwen3",
    .read_config = ReadQwen3,
    .qk_norm = true,
    .tensors = kGatedDecoderTensors,
    .layer_tensors = kGatedDecoderLayerTensors,
};
const FamilyRegistration kQwen3Registration(&kQwen3);

}  // namespace
}  // namespace somnus
