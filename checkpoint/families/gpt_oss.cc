// GPT-OSS (arXiv 2508.10925): experts with a clamped gated unit in every layer, sinks of attention, biases
// everywhere, and a window on every other layer.

#include "base/status_macros.h"
#include "checkpoint/families/gated_decoder.h"
#include "checkpoint/gguf/gguf_fields.h"
#include "checkpoint/hf_experts.h"

namespace somnus {
namespace {

constexpr GatedDecoderKeys kKeys = {
    .qkv_bias_by_flag = true,
    .window = {.kind = AttentionWindow::kByPattern, .default_window = 128},
    .rope = {.theta = 150000},
    .sizes = {.vocab = 201088, .hidden = 2880, .intermediate = 2880, .layers = 36, .heads = 64},
    .default_positions = 131072,
    .default_kv_heads = 8,
    .default_head_dim = 64,
    .default_eps = 1e-5,
    .more = NeedRope};
constexpr ExpertKeys kExperts = {
    .default_experts = 128, .default_per_token = 4, .size_key = "intermediate_size", .default_size = 2880};

absl::Status ReadGptOss(JsonFields* fields, ModelConfig* config) {
  RETURN_IF_ERROR(ReadGatedDecoder(kKeys, fields, config));
  config->attention_out_bias = config->attention_qkv_bias;
  config->activation = Activation::kClampedSwiglu;
  config->swiglu_limit = fields->Double("swiglu_limit", 7.0);
  config->swiglu_alpha = fields->Double("swiglu_alpha", 1.702);
  if (!(config->swiglu_limit > 0)) return fields->Bad("swiglu_limit", "not above zero");
  return ReadExperts(kExperts, fields, config);
}

// Files do not say that the bounds of YaRN are not rounded.
void FinishGguf(GgufFields*, ModelConfig* config) {
  config->rope.truncate = false;
  config->activation = Activation::kClampedSwiglu;
  config->swiglu_limit = 7.0;
  config->swiglu_alpha = 1.702;
  config->experts.renormalize = true;
}

constexpr TensorSpec WithBias(TensorSpec spec) {
  spec.bias = Always;
  return spec;
}
constexpr TensorSpec kRouter = {.role = TensorRole::kRouter,
                                .name = "mlp.router",
                                .gguf = "ffn_gate_inp",
                                .rows = Dim::kExperts,
                                .cols = Dim::kHidden,
                                .bias = Always,
                                .layers = LayerKind::kExperts};
constexpr TensorSpec kSinks = {.role = TensorRole::kSinks,
                               .name = "self_attn.sinks",
                               .gguf = "attn_sinks",
                               .rows = Dim::kHeads,
                               .suffix = ""};
constexpr TensorSpec kMlpNorm = {
    .role = TensorRole::kMlpNorm, .name = "post_attention_layernorm", .gguf = "post_attention_norm"};

constexpr TensorSpec kLayerTensors[] = {
    layer_tensors::kInputNorm,
    layer_tensors::kQuery,
    layer_tensors::kKey,
    layer_tensors::kValue,
    kSinks,
    layer_tensors::kOut,
    kMlpNorm,
    kRouter,
    WithBias(layer_tensors::kExpertGate),
    WithBias(layer_tensors::kExpertUp),
    WithBias(layer_tensors::kExpertDown),
};

constexpr Family kGptOss = {
    .model_type = "gpt_oss",
    .class_name = "GptOss",
    .gguf_architecture = "gpt-oss",
    .read_config = ReadGptOss,
    .fused_experts = true,
    .window_period = 2,
    .finish_gguf = FinishGguf,
    .tensors = kGatedDecoderTensors,
    .layer_tensors = kLayerTensors,
};
const FamilyRegistration kGptOssRegistration(&kGptOss);

}  // namespace
}  // namespace somnus
