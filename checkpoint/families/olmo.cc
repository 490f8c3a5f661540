// OLMo 2 (arXiv 2501.00656) normalizes the blocks' outputs, and q and k over all heads together; OLMo 3 has a
// window on three of four layers, and extends the rotary embedding of the others alone.

#include "checkpoint/families/gated_decoder.h"

namespace somnus {
namespace {

constexpr TensorSpec kLayerTensors[] = {
    layer_tensors::kQuery,
    layer_tensors::kKey,
    layer_tensors::kValue,
    layer_tensors::kOut,
    {.role = TensorRole::kQueryNorm,
     .name = "self_attn.q_norm",
     .gguf = "attn_q_norm",
     .rows = Dim::kQueries},
    {.role = TensorRole::kKeyNorm,
     .name = "self_attn.k_norm",
     .gguf = "attn_k_norm",
     .rows = Dim::kKeysValues},
    layer_tensors::kAfterAttention,
    layer_tensors::kGate,
    layer_tensors::kUp,
    layer_tensors::kDown,
    layer_tensors::kAfterMlp,
};

constexpr SizeDefaults kSizes = {
    .vocab = 50304, .hidden = 4096, .intermediate = 11008, .layers = 32, .heads = 32};
constexpr GatedDecoderKeys kOlmo2Keys = {
    .bias_by_flag = true, .sizes = kSizes, .default_eps = 1e-5, .token_ids = {.eos = 50279, .pad = 1}};
constexpr Family kOlmo2 = GatedDecoder<kOlmo2Keys>({
    .model_type = "olmo2",
    .class_name = "Olmo2",
    .gguf_architecture = "olmo2",
    .qk_norm = true,
    .qk_norm_wide = true,
    .local_rope = true,  // OLMo 3's GGUF files, too, have this architecture
    .window_period = 4,
    .layer_tensors = kLayerTensors,
});
const FamilyRegistration kOlmo2Registration(&kOlmo2);

constexpr GatedDecoderKeys kOlmo3Keys = {.bias_by_flag = true,
                                         .window = {.kind = AttentionWindow::kByPattern},
                                         .rope = {.theta = 5e5, .local_theta = 5e5},
                                         .sizes = kSizes,
                                         .default_eps = 1e-5,
                                         .token_ids = {.eos = 50279, .pad = 1}};
// GGUF files name the architecture olmo2.
constexpr Family kOlmo3 = GatedDecoder<kOlmo3Keys>({
    .model_type = "olmo3",
    .class_name = "Olmo3",
    .qk_norm = true,
    .qk_norm_wide = true,
    .local_rope = true,
    .window_period = 4,
    .layer_tensors = kLayerTensors,
});
const FamilyRegistration kOlmo3Registration(&kOlmo3);

}  // namespace
}  // namespace somnus
