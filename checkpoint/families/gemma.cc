// Gemma 2 (arXiv 2408.00118) and the text part of Gemma 3 (arXiv 2503.19786): norms before and after each
// block, of weights 1 + w; scaled embeddings; GELU; windows on some layers. Gemma 2 caps scores and logits,
// Gemma 3 normalizes q and k, and has two rotary embeddings.

#include <cmath>

#include "checkpoint/families/gated_decoder.h"
#include "checkpoint/gguf/gguf_fields.h"

namespace somnus {
namespace {

constexpr SizeDefaults kSizes = {
    .vocab = 256000, .hidden = 2304, .intermediate = 9216, .layers = 26, .heads = 8};
constexpr SizeDefaults kSizes3 = {
    .vocab = 262208, .hidden = 2304, .intermediate = 9216, .layers = 26, .heads = 8};

void ReadScales(JsonFields* fields, ModelConfig* config) {
  const bool gemma2 = !config->family->qk_norm;
  const double scalar = fields->Double("query_pre_attn_scalar", 256);
  if (!(scalar > 0)) fields->Note(fields->Bad("query_pre_attn_scalar", "not above zero"));
  config->attention_scale = 1.0 / std::sqrt(scalar);
  const auto cap = [&](const char* key, double otherwise) {
    // A cap of null is none; a missing key has the class's default.
    const double value = fields->Find(key) == nullptr ? otherwise : fields->Double(key, 0);
    if (value < 0) fields->Note(fields->Bad(key, "below zero"));
    return value;
  };
  config->attention_softcap = cap("attn_logit_softcapping", gemma2 ? 50 : 0);
  config->logits_softcap = cap("final_logit_softcapping", gemma2 ? 30 : 0);
  config->embedding_scale = std::sqrt(static_cast<double>(fields->Size("hidden_size", kSizes.hidden)));
  if (fields->Bool("use_bidirectional_attention", false))
    fields->Note(fields->Unsupported("use_bidirectional_attention", "true"));
}

// llama.cpp's converter leaves these to the reader. The largest model of each family, with 46 and 62 layers,
// divides scores by the root of hidden_size / heads, all others by that of head_dim.
void FinishGguf(GgufFields* fields, ModelConfig* config) {
  const bool gemma2 = !config->family->qk_norm;
  config->activation = Activation::kGeluTanh;
  config->embedding_scale = std::sqrt(static_cast<double>(config->hidden_size));
  config->attention_softcap = fields->Double("attn_logit_softcapping", gemma2 ? 50 : 0);
  config->logits_softcap = fields->Double("final_logit_softcapping", gemma2 ? 30 : 0);
  if (config->attention_softcap < 0 || config->logits_softcap < 0)
    fields->Fail(fields->gguf().Bad(fields->Key("final_logit_softcapping"), "a cap is below zero"));
  if (config->attention_scale == 0 && config->num_layers == (gemma2 ? 46 : 62)) {
    config->attention_scale = 1.0 / std::sqrt(static_cast<double>(config->hidden_size) / config->num_heads);
  }
  if (!gemma2) config->local_rope.theta = fields->PositiveDouble("rope.freq_base_swa", 1e4);
}

constexpr TensorSpec kPreFeedforwardNorm = {
    .role = TensorRole::kMlpNorm, .name = "pre_feedforward_layernorm", .gguf = "ffn_norm"};
constexpr TensorSpec kLayerTensors[] = {
    layer_tensors::kInputNorm, layer_tensors::kQuery,
    layer_tensors::kKey,       layer_tensors::kValue,
    layer_tensors::kOut,       layer_tensors::kQueryNorm,
    layer_tensors::kKeyNorm,   layer_tensors::kAfterAttention,
    kPreFeedforwardNorm,       layer_tensors::kGate,
    layer_tensors::kUp,        layer_tensors::kDown,
    layer_tensors::kAfterMlp,
};

constexpr GatedDecoderKeys kGemma2Keys = {.bias_by_flag = true,
                                          .window = {.kind = AttentionWindow::kByPattern},
                                          .sizes = kSizes,
                                          .default_positions = 8192,
                                          .default_kv_heads = 4,
                                          .default_head_dim = 256,
                                          .tied = true,
                                          .activation_key = "hidden_activation",
                                          .activation = "gelu_pytorch_tanh",
                                          .token_ids = {.bos = 2, .eos = 1, .pad = 0},
                                          .more = ReadScales};
constexpr Family kGemma2 = GatedDecoder<kGemma2Keys>({
    .model_type = "gemma2",
    .class_name = "Gemma2",
    .gguf_architecture = "gemma2",
    .norm_offset = 1,
    .window_period = 2,
    .rounds_embedding_scale = true,
    .finish_gguf = FinishGguf,
    .layer_tensors = kLayerTensors,
});
const FamilyRegistration kGemma2Registration(&kGemma2);

constexpr GatedDecoderKeys kGemma3Keys = {.bias_by_flag = true,
                                          .window = {.kind = AttentionWindow::kByPattern},
                                          .rope = {.theta = 1e6},
                                          .sizes = kSizes3,
                                          .default_positions = 131072,
                                          .default_kv_heads = 4,
                                          .default_head_dim = 256,
                                          .tied = true,
                                          .activation_key = "hidden_activation",
                                          .activation = "gelu_pytorch_tanh",
                                          .token_ids = {.bos = 2, .eos = 1, .pad = 0},
                                          .more = ReadScales};
constexpr Family kGemma3 = GatedDecoder<kGemma3Keys>({
    .model_type = "gemma3_text",
    .class_name = "Gemma3",
    .gguf_architecture = "gemma3",
    .norm_offset = 1,
    .qk_norm = true,
    .local_rope = true,
    .window_period = 6,
    .rounds_embedding_scale = true,
    .finish_gguf = FinishGguf,
    .layer_tensors = kLayerTensors,
});
const FamilyRegistration kGemma3Registration(&kGemma3);

}  // namespace
}  // namespace somnus
