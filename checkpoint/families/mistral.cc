// Mistral: Llama with a sliding window (arXiv 2310.06825). Ministral (8B) has the window on some layers
// alone; Ministral 3 extends its context by YaRN, and scales queries by their position.

#include "checkpoint/families/gated_decoder.h"

namespace somnus {
namespace {

constexpr GatedDecoderKeys kMistralKeys = {
    .window = {.kind = AttentionWindow::kAlways},
    .sizes = {.vocab = 32000, .hidden = 4096, .intermediate = 14336, .layers = 32, .heads = 32},
    .default_positions = 131072,
    .default_kv_heads = 8,
    .token_ids = {.bos = 1, .eos = 2}};
// Mistral's GGUF files name the architecture llama.
constexpr Family kMistral = GatedDecoder<kMistralKeys>({.model_type = "mistral", .class_name = "Mistral"});
const FamilyRegistration kMistralRegistration(&kMistral);

constexpr Family kMinistral =
    GatedDecoder<kMistralKeys>({.model_type = "ministral", .class_name = "Ministral"});
const FamilyRegistration kMinistralRegistration(&kMinistral);

constexpr GatedDecoderKeys kMinistral3Keys = {
    .window = {.kind = AttentionWindow::kAlways, .default_window = 0},
    .rope = {.theta = 1e6},
    .sizes = {.vocab = 131072, .hidden = 4096, .intermediate = 14336, .layers = 34, .heads = 32},
    .default_positions = 262144,
    .default_kv_heads = 8,
    .default_head_dim = 128,
    .default_eps = 1e-5,
    .token_ids = {.bos = 1, .eos = 2, .pad = 11},
    .more = NeedRope};
constexpr Family kMinistral3 = GatedDecoder<kMinistral3Keys>({
    .model_type = "ministral3",
    .class_name = "Ministral3",
    .gguf_architecture = "mistral3",
    .gguf_permutes_heads = true,
});
const FamilyRegistration kMinistral3Registration(&kMinistral3);

}  // namespace
}  // namespace somnus
