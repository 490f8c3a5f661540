// DeepSeek V3 and R1 (arXiv 2412.19437), Kimi K2, and GLM-4.7-Flash: latent attention:
// the cache has one vector for a token and layer.

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "checkpoint/families/gated_decoder.h"
#include "checkpoint/gguf/gguf_fields.h"
#include "checkpoint/hf_experts.h"
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
    layer_tensors::kDenseGate,
    layer_tensors::kDenseUp,
    layer_tensors::kDenseDown,
    layer_tensors::kRouter,
    layer_tensors::kRouterCorrection,
    layer_tensors::kExpertGate,
    layer_tensors::kExpertUp,
    layer_tensors::kExpertDown,
    layer_tensors::kSharedGate,
    layer_tensors::kSharedUp,
    layer_tensors::kSharedDown,
};

// Mistral Large 3 has the architecture deepseek2, and queries that grow with the position.
constexpr char kTemperature[] = "a factor of queries by position";

// Defaults of the configuration classes of `transformers`.
struct LatentKeys {
  SizeDefaults sizes;
  int32_t positions, query_rank, nope, value;
  double eps;
  ExpertKeys experts;
};
constexpr ExpertKeys kDeepSeekExperts = {.default_experts = 256,
                                         .default_per_token = 8,
                                         .default_size = 2048,
                                         .score = RouterScore::kSigmoid,
                                         .renormalize_by_key = true,
                                         .default_renormalize = true,
                                         .layers = ExpertLayers::kAfterFirst,
                                         .default_dense_layers = 3,
                                         .shared = SharedExperts::kByCount,
                                         .default_shared = 1,
                                         .correction = true,
                                         .groups = true,
                                         .default_groups = 8,
                                         .default_top_groups = 4,
                                         .default_scale = 2.5};
constexpr LatentKeys kDeepSeekKeys = {
    .sizes = {.vocab = 129280, .hidden = 7168, .intermediate = 18432, .layers = 61, .heads = 128},
    .positions = 4096,
    .query_rank = 1536,
    .nope = 128,
    .value = 128,
    .eps = 1e-6,
    .experts = kDeepSeekExperts};
constexpr ExpertKeys GlmExperts() {
  ExpertKeys keys = kDeepSeekExperts;
  keys.default_experts = 64;
  keys.default_per_token = 4;
  keys.default_size = 1536;
  keys.default_dense_layers = 1;
  keys.default_groups = keys.default_top_groups = 1;
  keys.default_scale = 1.8;
  return keys;
}
constexpr LatentKeys kGlmKeys = {
    .sizes = {.vocab = 154880, .hidden = 2048, .intermediate = 10240, .layers = 47, .heads = 20},
    .positions = 202752,
    .query_rank = 768,
    .nope = 192,
    .value = 256,
    .eps = 1e-5,
    .experts = GlmExperts()};

void ReadLatentSizes(const LatentKeys& keys, JsonFields* fields, LatentConfig* latent) {
  constexpr int64_t kMost = 1 << 28;  // sums of two sizes fit an int32
  const auto size = [fields](const char* key, int32_t otherwise) {
    return static_cast<int32_t>(fields->Int(key, otherwise, 1, kMost));
  };
  latent->rank = size("kv_lora_rank", 512);
  // An absent key means the class's rank, null means that there is none.
  const bool without = fields->Find("q_lora_rank") != nullptr && !fields->Has("q_lora_rank");
  if (!without) latent->query_rank = size("q_lora_rank", keys.query_rank);
  latent->nope = size("qk_nope_head_dim", keys.nope);
  latent->rope = size("qk_rope_head_dim", 64);
  latent->value = size("v_head_dim", keys.value);
  latent->interleaved = fields->Bool("rope_interleave", true);
  if (latent->rope % 2 != 0) fields->Note(fields->Bad("qk_rope_head_dim", "not a number of pairs"));
}

// The factor of products of query and key: YaRN's scale of attention counts twice, as a factor of both.
double ScaleOf(const LatentConfig& latent, const RopeConfig& rope, double mscale_all_dim) {
  const double scale = 1 / std::sqrt(static_cast<double>(latent.nope + latent.rope));
  if (rope.type == RopeConfig::Type::kDefault || mscale_all_dim == 0) return scale;
  const double attention = YarnAttentionScale(rope.factor, mscale_all_dim);
  return scale * attention * attention;
}

absl::Status ReadLatentScale(JsonFields* fields, ModelConfig* config) {
  const char* key = fields->Object("rope_scaling").empty() ? "rope_parameters" : "rope_scaling";
  JsonFields rope(fields->file(), fields->Object(key), absl::StrCat(key, "."));
  config->attention_scale = ScaleOf(config->latent, config->rope, rope.Double("mscale_all_dim", 0));
  return rope.status();
}

absl::Status ReadLatentDecoder(const LatentKeys& keys, JsonFields* fields, ModelConfig* model) {
  ReadCommonKeys(keys.sizes, {.bos = 0, .eos = 1}, "intermediate_size", fields, model);
  ReadLatentSizes(keys, fields, &model->latent);
  model->max_position_embeddings = fields->Size("max_position_embeddings", keys.positions);
  model->norm_eps = fields->Double("rms_norm_eps", keys.eps);
  model->tie_word_embeddings = fields->Bool("tie_word_embeddings", false);
  model->tie_word_embeddings_given = fields->Has("tie_word_embeddings");
  model->attention_qkv_bias = model->attention_out_bias = fields->Bool("attention_bias", false);
  ReadActivation(fields, "hidden_act", "silu", model);
  RETURN_IF_ERROR(fields->status());
  model->head_dim = model->latent.rope;  // the rotating dimensions
  RETURN_IF_ERROR(ReadRopes({}, fields, model));
  if (model->query_temperature != 0) return fields->Unsupported("llama_4_scaling_beta", kTemperature);
  ExtendByYarn(model);
  RETURN_IF_ERROR(ReadLatentScale(fields, model));
  // The cache's row is one key and value for all heads.
  model->num_kv_heads = 1;
  model->head_dim = model->latent.rank + model->latent.rope;
  RETURN_IF_ERROR(ReadExperts(keys.experts, fields, model));
  return ReadLayers({}, fields, model);
}

template <const LatentKeys& kKeys>
absl::Status ReadConfig(JsonFields* fields, ModelConfig* model) {
  return ReadLatentDecoder(kKeys, fields, model);
}

// The layers that predict further tokens are counted in GGUF's block_count, and come last.
void FinishGguf(GgufFields* fields, ModelConfig* config) {
  ExpertsConfig& experts = config->experts;
  const auto refuse = [fields](const char* key, const char* what) {
    fields->Fail(fields->gguf().Unsupported(fields->Key(key), what));
  };
  if (config->query_temperature != 0) refuse("attention.temperature_scale", kTemperature);
  // DeepSeek V2's files have the same architecture.
  constexpr int32_t kSigmoidGating = 2;
  if (fields->Size("expert_gating_func", kSigmoidGating) != kSigmoidGating)
    refuse("expert_gating_func", "a router of another kind than sigmoids");
  experts.score = RouterScore::kSigmoid;
  experts.correction = true;
  experts.renormalize = fields->Bool("expert_weights_norm", true);
  experts.shared_size = fields->SizeTimes("expert_shared_count", 1, experts.expert_size);
  config->num_layers = std::max(1, config->num_layers - fields->SizeOrNone("nextn_predict_layers"));
  const LatentConfig& latent = config->latent;
  config->attention_scale =
      ScaleOf(latent, config->rope, 10 * fields->Double("rope.scaling.yarn_log_multiplier", 0));
}

// GLM-4.7-Flash's GGUF files, too, have the architecture deepseek2.
constexpr Family kDeepSeekV3 = {
    .model_type = "deepseek_v3",
    .class_name = "DeepseekV3",
    .gguf_architecture = "deepseek2",
    .read_config = ReadConfig<kDeepSeekKeys>,
    .finish_gguf = FinishGguf,
    .tensors = kGatedDecoderTensors,
    .layer_tensors = kLayerTensors,
    .other_model_type = "kimi_k2",
};
const FamilyRegistration kDeepSeekV3Registration(&kDeepSeekV3);

constexpr Family kGlm4MoeLite = {
    .model_type = "glm4_moe_lite",
    .class_name = "Glm4MoeLite",
    .read_config = ReadConfig<kGlmKeys>,
    .tensors = kGatedDecoderTensors,
    .layer_tensors = kLayerTensors,
};
const FamilyRegistration kGlm4MoeLiteRegistration(&kGlm4MoeLite);

}  // namespace
}  // namespace somnus
