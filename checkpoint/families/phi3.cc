// Phi-3 (arXiv 2404.14219), 3.5, 4 and 4-mini: Llama with q, k, v and gate, up in one matrix each, LongRoPE,
// and a rotation of a part of each head.

#include "checkpoint/families/gated_decoder.h"

namespace somnus {
namespace {

constexpr TensorSpec kLayerTensors[] = {
    layer_tensors::kInputNorm,         layer_tensors::kQueryKeyValue, layer_tensors::kOut,
    layer_tensors::kPostAttentionNorm, layer_tensors::kGateUp,        layer_tensors::kDown,
};

constexpr GatedDecoderKeys kPhi3Keys = {
    .window = {.kind = AttentionWindow::kAlways, .default_window = 0},
    .rope = {.yarn_is_longrope = true},
    .sizes = {.vocab = 32064, .hidden = 3072, .intermediate = 8192, .layers = 32, .heads = 32},
    .default_positions = 4096,
    .default_eps = 1e-5,
    .token_ids = {.bos = 1, .eos = 32000, .pad = 32000}};
constexpr Family kPhi3 = GatedDecoder<kPhi3Keys>({
    .model_type = "phi3",
    .class_name = "Phi3",
    .gguf_architecture = "phi3",
    .partial_rope = true,
    .layer_tensors = kLayerTensors,
});
const FamilyRegistration kPhi3Registration(&kPhi3);

}  // namespace
}  // namespace somnus
