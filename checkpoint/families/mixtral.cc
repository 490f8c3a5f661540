// Mixtral: Mistral with a mixture of experts on every layer (arXiv 2401.04088).

#include "base/status_macros.h"
#include "checkpoint/families/gated_decoder.h"
#include "checkpoint/hf_experts.h"

namespace somnus {
namespace {

constexpr GatedDecoderKeys kKeys = {
    .window = {.kind = AttentionWindow::kAlways, .default_window = 0},
    .rope = {.theta = 1e6},
    .sizes = {.vocab = 32000, .hidden = 4096, .intermediate = 14336, .layers = 32, .heads = 32},
    .default_positions = 131072,
    .default_kv_heads = 8,
    .default_eps = 1e-5,
    .token_ids = {.bos = 1, .eos = 2}};
constexpr ExpertKeys kExperts = {
    .default_experts = 8, .default_per_token = 2, .size_key = "intermediate_size", .default_size = 14336};

absl::Status ReadMixtral(JsonFields* fields, ModelConfig* config) {
  RETURN_IF_ERROR(ReadGatedDecoder(kKeys, fields, config));
  return ReadExperts(kExperts, fields, config);
}

// llama.cpp's files leave that to the reader.
void FinishGguf(GgufFields*, ModelConfig* config) { config->experts.renormalize = true; }

constexpr TensorSpec kLayerTensors[] = {
    layer_tensors::kInputNorm,
    layer_tensors::kQuery,
    layer_tensors::kKey,
    layer_tensors::kValue,
    layer_tensors::kOut,
    layer_tensors::kPostAttentionNorm,
    layer_tensors::Named(layer_tensors::kRouter, "block_sparse_moe.gate"),
    layer_tensors::Named(layer_tensors::kExpertGate, "block_sparse_moe.experts.*.w1"),
    layer_tensors::Named(layer_tensors::kExpertUp, "block_sparse_moe.experts.*.w3"),
    layer_tensors::Named(layer_tensors::kExpertDown, "block_sparse_moe.experts.*.w2"),
};
constexpr ModuleName kModuleNames[] = {{"mlp.", "block_sparse_moe."}};
// Mixtral's GGUF files name the architecture llama, and have experts.
constexpr Family kMixtral = {
    .model_type = "mixtral",
    .class_name = "Mixtral",
    .gguf_architecture = "llama",
    .read_config = ReadMixtral,
    .gguf_permutes_heads = true,
    .finish_gguf = FinishGguf,
    .tensors = kGatedDecoderTensors,
    .layer_tensors = kLayerTensors,
    .module_names = kModuleNames,
};
const FamilyRegistration kMixtralRegistration(&kMixtral);

}  // namespace
}  // namespace somnus
