// Llama 2 and 3, SmolLM2 (arXiv 2307.09288), and Mistral without a sliding window.

#include "checkpoint/families/gated_decoder.h"

namespace somnus {
namespace {

absl::Status ReadLlama(JsonFields* fields, ModelConfig* config) {
  return ReadGatedDecoder({.bias_by_flag = true, .mlp_bias_by_flag = true, .token_ids = {.bos = 1, .eos = 2}},
                          fields, config);
}

absl::Status ReadMistral(JsonFields* fields, ModelConfig* config) {
  return ReadGatedDecoder({.window = AttentionWindow::kAlways,
                           .default_positions = 131072,
                           .default_kv_heads = 8,
                           .token_ids = {.bos = 1, .eos = 2}},
                          fields, config);
}

constexpr Family kLlama = {
    .model_type = "llama",
    .class_name = "Llama",
    .gguf_architecture = "llama",
    .read_config = ReadLlama,
    .gguf_permutes_heads = true,
    .tensors = kGatedDecoderTensors,
    .layer_tensors = kGatedDecoderLayerTensors,
};
const FamilyRegistration kLlamaRegistration(&kLlama);

// Mistral's GGUF files name the architecture llama.
constexpr Family kMistral = {
    .model_type = "mistral",
    .class_name = "Mistral",
    .read_config = ReadMistral,
    .tensors = kGatedDecoderTensors,
    .layer_tensors = kGatedDecoderLayerTensors,
};
const FamilyRegistration kMistralRegistration(&kMistral);

}  // namespace
}  // namespace somnus
