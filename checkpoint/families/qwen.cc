// Qwen2 (arXiv 2407.10671) has biases of q, k and v; Qwen3 (arXiv 2505.09388) normalizes each head's q and k.

#include "checkpoint/families/gated_decoder.h"

namespace somnus {
namespace {

constexpr SizeDefaults kSizes = {
    .vocab = 151936, .hidden = 4096, .intermediate = 22016, .layers = 32, .heads = 32};
constexpr GatedDecoderKeys kQwen2Keys = {.qkv_bias = true,
                                         .window = {.kind = AttentionWindow::kBySwitch},
                                         .sizes = kSizes,
                                         .default_positions = 32768,
                                         .default_kv_heads = 32};
constexpr Family kQwen2 = GatedDecoder<kQwen2Keys>({
    .model_type = "qwen2",
    .class_name = "Qwen2",
    .gguf_architecture = "qwen2",
});
const FamilyRegistration kQwen2Registration(&kQwen2);

constexpr GatedDecoderKeys kQwen3Keys = {.bias_by_flag = true,
                                         .window = {.kind = AttentionWindow::kBySwitch},
                                         .sizes = kSizes,
                                         .default_positions = 32768,
                                         .default_kv_heads = 32,
                                         .default_head_dim = 128};
constexpr Family kQwen3 = GatedDecoder<kQwen3Keys>({
    .model_type = "qwen3",
    .class_name = "Qwen3",
    .gguf_architecture = "qwen3",
    .qk_norm = true,
});
const FamilyRegistration kQwen3Registration(&kQwen3);

}  // namespace
}  // namespace somnus
