// Llama 2 and 3, SmolLM2 (arXiv 2307.09288), and Mistral without a sliding window.

#include "checkpoint/families/gated_decoder.h"

namespace somnus {
namespace {

constexpr GatedDecoderKeys kLlamaKeys = {
    .bias_by_flag = true, .mlp_bias_by_flag = true, .token_ids = {.bos = 1, .eos = 2}};
constexpr Family kLlama = GatedDecoder<kLlamaKeys>({
    .model_type = "llama",
    .class_name = "Llama",
    .gguf_architecture = "llama",
    .gguf_permutes_heads = true,
});
const FamilyRegistration kLlamaRegistration(&kLlama);

constexpr GatedDecoderKeys kMistralKeys = {.window = AttentionWindow::kAlways,
                                           .default_positions = 131072,
                                           .default_kv_heads = 8,
                                           .token_ids = {.bos = 1, .eos = 2}};
// Mistral's GGUF files name the architecture llama.
constexpr Family kMistral = GatedDecoder<kMistralKeys>({.model_type = "mistral", .class_name = "Mistral"});
const FamilyRegistration kMistralRegistration(&kMistral);

}  // namespace
}  // namespace somnus
