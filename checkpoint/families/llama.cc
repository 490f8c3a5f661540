// Llama 2 and 3, SmolLM2 (arXiv 2307.09288).

#include "checkpoint/families/gated_decoder.h"

namespace somnus {
namespace {

constexpr GatedDecoderKeys kLlamaKeys = {
    .bias_by_flag = true,
    .mlp_bias_by_flag = true,
    .sizes = {.vocab = 32000, .hidden = 4096, .intermediate = 11008, .layers = 32, .heads = 32},
    .token_ids = {.bos = 1, .eos = 2}};
constexpr Family kLlama = GatedDecoder<kLlamaKeys>({
    .model_type = "llama",
    .class_name = "Llama",
    .gguf_architecture = "llama",
    .gguf_permutes_heads = true,
});
const FamilyRegistration kLlamaRegistration(&kLlama);

}  // namespace
}  // namespace somnus
