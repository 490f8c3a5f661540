// DeepSeek V3 and R1 (arXiv 2412.19437), Kimi K2, and GLM-4.7-Flash: latent attention, whose cache has one
// vector for a token and layer.

#include <cmath>

#include "base/status_macros.h"
#include "checkpoint/families/gated_decoder.h"
#include "checkpoint/yarn.h"

namespace somnus {
namespace {

bool HasQueryRank(const ModelConfig& c) { return c.latent.query_rank > 0; }
bool HasNoQueryRank(const ModelConfig& c) { return c.latent.query_rank == 0; }

constexpr TensorSpec kLayerTensors[] = {
    layer_tensors::kInputNorm,
    {.role = TensorRole::kLatentQueryDown,
     .name = "self_attn.q_a_proj",
     .gguf = "attn_q_a",
     .rows = Dim::kQueryRank,
     .cols = Dim::kHidden,
     .present = HasQueryRank,
     .bias = HasQkvBias},
    {.role = TensorRole::kLatentQueryNorm,
     .name = "self_attn.q_a_layernorm",
     .gguf = "attn_q_a_norm",
     .rows = Dim::kQueryRank,
     .present = HasQueryRank},
    {.role = TensorRole::kLatentQueryUp,
     .name = "self_attn.q_b_proj",
     .gguf = "attn_q_b",
     .rows = Dim::kLatentQueries,
     .cols = Dim::kQueryRank,
     .present = HasQueryRank},
    {.role = TensorRole::kLatentQuery,
     .name = "self_attn.q_proj",
     .gguf = "attn_q",
     .rows = Dim::kLatentQueries,
     .cols = Dim::kHidden,
     .present = HasNoQueryRank},
    {.role = TensorRole::kLatentRow,
     .name = "self_attn.kv_a_proj_with_mqa",
     .gguf = "attn_kv_a_mqa",
     .rows = Dim::kLatentRow,
     .cols = Dim::kHidden,
     .bias = HasQkvBias},
    {.role = TensorRole::kLatentNorm,
     .name = "self_attn.kv_a_layernorm",
     .gguf = "attn_kv_a_norm",
     .rows = Dim::kLatent},
    {.role = TensorRole::kLatentKeys,
     .name = "self_attn.k_b_proj",
     .gguf = "attn_k_b",
     .rows = Dim::kLatentKeys,
     .cols = Dim::kNope},
    {.role = TensorRole::kLatentValues,
     .name = "self_attn.v_b_proj",
     .gguf = "attn_v_b",
     .rows = Dim::kLatentValues,
     .cols = Dim::kLatent},
    {.role = TensorRole::kAttentionOut,
     .name = "self_attn.o_proj",
     .gguf = "attn_output",
     .rows = Dim::kHidden,
     .cols = Dim::kLatentValues,
     .bias = HasOutBias},
    layer_tensors::kPostAttentionNorm,
    layer_tensors::kGate,
    layer_tensors::kUp,
    layer_tensors::kDown,
};

void ReadLatentSizes(JsonFields* fields, LatentConfig* latent) {
  latent->rank = fields->Size("kv_lora_rank", 512);
  // An absent key means the rank of the largest model, null means that there is none.
  const bool without = fields->Find("q_lora_rank") != nullptr && !fields->Has("q_lora_rank");
  if (!without) latent->query_rank = fields->Size("q_lora_rank", 1536);
  latent->nope = fields->Size("qk_nope_head_dim", 128);
  latent->rope = fields->Size("qk_rope_head_dim", 64);
  latent->value = fields->Size("v_head_dim", 128);
  latent->interleaved = fields->Bool("rope_interleave", true);
  if (latent->rope % 2 != 0) fields->Note(fields->Bad("qk_rope_head_dim", "not a number of pairs"));
}

// The factor of products of query and key: YaRN's scale of attention counts twice, as a factor of both.
absl::Status ReadLatentScale(JsonFields* fields, ModelConfig* config) {
  const char* key = fields->Object("rope_scaling").empty() ? "rope_parameters" : "rope_scaling";
  JsonFields rope(fields->file(), fields->Object(key), absl::StrCat(key, "."));
  double scale = 1 / std::sqrt(static_cast<double>(config->latent.nope + config->latent.rope));
  const double all_dim = rope.Double("mscale_all_dim", 0);
  if (config->rope.type != RopeConfig::Type::kDefault && all_dim != 0) {
    const double attention = YarnAttentionScale(config->rope.factor, all_dim);
    scale *= attention * attention;
  }
  config->attention_scale = scale;
  return rope.status();
}

absl::Status ReadDeepSeek(JsonFields* fields, ModelConfig* model) {
  ReadCommonKeys({.token_ids = {.bos = 0, .eos = 1}, .vocab = 129280, .heads = 128}, fields, model);
  ReadLatentSizes(fields, &model->latent);
  model->intermediate_size = fields->Size("intermediate_size", 18432);
  model->max_position_embeddings = fields->Size("max_position_embeddings", 4096);
  model->norm_eps = fields->Double("rms_norm_eps", 1e-6);
  model->tie_word_embeddings = fields->Bool("tie_word_embeddings", false);
  model->tie_word_embeddings_given = fields->Has("tie_word_embeddings");
  model->attention_qkv_bias = model->attention_out_bias = fields->Bool("attention_bias", false);
  ReadActivation(fields, "hidden_act", "silu", model);
  RETURN_IF_ERROR(fields->status());
  if (fields->Int("first_k_dense_replace", 3, 0, 1 << 20) < model->num_layers)
    return fields->Unsupported("first_k_dense_replace", "a layer with experts");
  model->head_dim = model->latent.rope;  // what rotates
  RETURN_IF_ERROR(ReadRopes({}, fields, model));
  ExtendByYarn(model);
  RETURN_IF_ERROR(ReadLatentScale(fields, model));
  // The cache's row is one key and value for all heads.
  model->num_kv_heads = 1;
  model->head_dim = model->latent.rank + model->latent.rope;
  return ReadLayers({}, fields, model);
}

constexpr Family kDeepSeekV3 = {
    .model_type = "deepseek_v3",
    .class_name = "DeepseekV3",
    .gguf_architecture = "deepseek2",
    .read_config = ReadDeepSeek,
    .tensors = kGatedDecoderTensors,
    .layer_tensors = kLayerTensors,
};
const FamilyRegistration kDeepSeekV3Registration(&kDeepSeekV3);

}  // namespace
}  // namespace somnus
