#include "checkpoint/gguf/gguf_config.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "checkpoint/dequantize.h"
#include "checkpoint/gguf/gguf_fields.h"
#include "checkpoint/hf_config.h"
#include "checkpoint/yarn.h"

namespace somnus {
namespace {

constexpr char kRopeFactors[] = "rope_freqs.weight";
// LongRoPE's.
constexpr char kLongFactors[] = "rope_factors_long.weight", kShortFactors[] = "rope_factors_short.weight";

// The keys are llama.cpp's; attn_factor multiplies YaRN's own scale of attention, and yarn_log_multiplier is
// Hugging Face's mscale_all_dim beside an mscale of 1.
absl::Status ReadYarnRope(const GgufFile& gguf, GgufFields* fields, ModelConfig* config) {
  RopeConfig& rope = config->rope;
  rope.type = RopeConfig::Type::kYarn;
  rope.factor = fields->Double("rope.scaling.factor", 1.0);
  rope.original_max_position_embeddings =
      fields->Size("rope.scaling.original_context_length", config->max_position_embeddings);
  // Files of latent attention store a tenth: llama.cpp's converter began so.
  const double unit = config->latent.rank > 0 ? 10 : 1;
  const double all_dim = unit * fields->Double("rope.scaling.yarn_log_multiplier", 0.0);
  rope.beta_fast = fields->Double("rope.scaling.yarn_beta_fast", 32.0);
  rope.beta_slow = fields->Double("rope.scaling.yarn_beta_slow", 1.0);
  for (const double beta : {rope.beta_fast, rope.beta_slow}) {
    if (beta > 0) continue;
    return gguf.Bad(fields->Key("rope.scaling.yarn_beta_fast"), "not above zero, or yarn_beta_slow is not");
  }
  const double extension = fields->Double("rope.scaling.yarn_ext_factor", -1.0);  // negative: not given
  if (extension >= 0 && extension != 1.0)
    return gguf.Unsupported(fields->Key("rope.scaling.yarn_ext_factor"), "not 1");
  rope.attention_factor = YarnAttentionScale(rope.factor, 1.0) *
                          fields->Double("rope.scaling.attn_factor", 1.0) /
                          (all_dim != 0 ? YarnAttentionScale(rope.factor, all_dim) : 1.0);
  if (!(rope.attention_factor > 0) || !std::isfinite(rope.attention_factor)) {
    return gguf.Bad(fields->Key("rope.scaling.attn_factor"), "not above zero");
  }
  return fields->status();
}

// A tensor of factors of frequencies.
absl::StatusOr<std::vector<float>> ReadFactors(const GgufFile& gguf, const TensorTable& tensors,
                                               const char* name, int64_t count) {
  RETURN_IF_ERROR(tensors.Expect(name, {count}));
  const TensorInfo* tensor = tensors.Find(name);
  std::vector<float> factors(count);
  DequantizeRange(tensor->type, tensor->data, 0, count, factors.data());
  for (const float factor : factors) {
    if (factor > 0 && factor <= 1e9f) continue;
    return absl::InvalidArgumentError(absl::StrCat(gguf.name(), ": tensor ", name, ": factor ", factor));
  }
  return factors;
}

absl::Status ReadRopeFactors(const GgufFile& gguf, const TensorTable& tensors, GgufFields* fields,
                             ModelConfig* config) {
  RopeConfig& rope = config->rope;
  const int64_t count = config->RotaryDim() / 2;
  if (tensors.Has(kRopeFactors)) {
    ASSIGN_OR_RETURN(rope.freq_factors, ReadFactors(gguf, tensors, kRopeFactors, count));
  }
  if (!tensors.Has(kLongFactors)) return absl::OkStatus();
  ASSIGN_OR_RETURN(rope.freq_factors, ReadFactors(gguf, tensors, kLongFactors, count));
  ASSIGN_OR_RETURN(rope.short_factors, ReadFactors(gguf, tensors, kShortFactors, count));
  rope.attention_factor = fields->PositiveDouble("rope.scaling.attn_factor", 1.0);
  rope.original_max_position_embeddings =
      fields->Size("rope.scaling.original_context_length", config->max_position_embeddings);
  return fields->status();
}

absl::Status ReadRope(const GgufFile& gguf, const TensorTable& tensors, GgufFields* fields,
                      ModelConfig* config) {
  RopeConfig& rope = config->rope;
  rope.theta = fields->Double("rope.freq_base", 10000.0);
  if (rope.theta <= 0) return gguf.Bad(fields->Key("rope.freq_base"), "not above zero");
  const int32_t rotated = fields->Size("rope.dimension_count", config->head_dim);
  RETURN_IF_ERROR(fields->status());
  if (rotated != config->RopeHeadDim()) {
    const std::string key = fields->Key("rope.dimension_count");
    if (!config->family->partial_rope) return gguf.Unsupported(key, "a partial rotation");
    if (rotated > config->head_dim || rotated % 2 != 0) return gguf.Bad(key, "not a number of pairs");
    rope.rotary_dim = rotated;
  }
  const std::string type_key = fields->Key("rope.scaling.type");
  const double old_linear = fields->Double("rope.scale_linear", 1.0);
  ASSIGN_OR_RETURN(const std::string type, gguf.String(type_key, old_linear != 1.0 ? "linear" : "none"));
  if (type == "linear") {
    rope.type = RopeConfig::Type::kLinear;
    rope.factor = fields->Double("rope.scaling.factor", old_linear);
  } else if (type == "yarn") {
    RETURN_IF_ERROR(ReadYarnRope(gguf, fields, config));
  } else if (type != "none" && !(type == "longrope" && tensors.Has(kLongFactors))) {
    return gguf.Unsupported(type_key, type);
  }
  RETURN_IF_ERROR(fields->status());
  if (!(rope.factor > 0)) return gguf.Bad(fields->Key("rope.scaling.factor"), "not above zero");
  ExtendByYarn(config);
  return ReadRopeFactors(gguf, tensors, fields, config);
}

// Numbers of attention, of the residual stream and of logits.
void ReadScales(GgufFields* fields, ModelConfig* config) {
  if (fields->Has("attention.scale")) config->attention_scale = fields->PositiveDouble("attention.scale", 1);
  config->embedding_scale = fields->PositiveDouble("embedding_scale", 1);
  config->residual_scale = fields->PositiveDouble("residual_scale", 1);
  config->logits_scale = 1 / fields->PositiveDouble("logit_scale", 1);
  config->query_temperature = fields->Double("attention.temperature_scale", 0);
  if (config->query_temperature != 0 && config->rope.original_max_position_embeddings <= 0) {
    config->rope.original_max_position_embeddings =
        fields->Size("rope.scaling.original_context_length", config->max_position_embeddings);
  }
}

// Which layers have a window: those that the file lists, else those of the family's pattern.
absl::Status ReadLayers(GgufFields* fields, ModelConfig* config) {
  const GgufFile& gguf = fields->gguf();
  const Family& family = *config->family;
  constexpr char kPattern[] = "attention.sliding_window_pattern";
  ASSIGN_OR_RETURN(const int64_t window, gguf.Int(fields->Key("attention.sliding_window"), 0));
  std::vector<LayerAttention> layers(std::max(0, config->num_layers));
  std::vector<int64_t> listed;
  const GgufValue* pattern = gguf.Find(fields->Key(kPattern));
  if (pattern != nullptr && pattern->type == GgufType::kArray) {
    ASSIGN_OR_RETURN(listed, gguf.Ints(fields->Key(kPattern)));
    if (listed.size() < layers.size())
      return gguf.Bad(fields->Key(kPattern), "shorter than the number of layers");
  }
  const bool narrows = window > 0 && window < config->max_position_embeddings;
  for (size_t i = 0; i < layers.size(); ++i) {
    const size_t number = i + 1;
    const bool by_family = family.window_period == 0 || number % family.window_period != 0;
    const bool windowed = window > 0 && (listed.empty() ? by_family : listed[i] != 0);
    if (windowed && narrows) layers[i].window = static_cast<int32_t>(window);
    if (windowed && family.local_rope) layers[i].rope = LayerRope::kLocal;
    if (family.gguf_nope_period > 0 && number % family.gguf_nope_period == 0)
      layers[i].rope = LayerRope::kNone;
  }
  const auto is_plain = [](const LayerAttention& layer) { return layer == LayerAttention(); };
  if (!std::all_of(layers.begin(), layers.end(), is_plain)) config->layer_attention = std::move(layers);
  if (family.local_rope) {
    config->local_rope.theta = fields->PositiveDouble("rope.freq_base_swa", config->rope.theta);
    config->local_rope.rotary_dim = config->rope.rotary_dim;
  }
  return fields->status();
}

// The sizes of latent attention, with a single KV head for all queries. Files without that are of before the
// matrices of keys and values were stored apart.
void ReadLatentSizes(GgufFields* fields, ModelConfig* config) {
  LatentConfig& latent = config->latent;
  latent.rank = fields->Size("attention.kv_lora_rank");
  latent.query_rank = fields->SizeOrNone("attention.q_lora_rank");
  latent.rope = fields->Size("rope.dimension_count");
  latent.nope = fields->Size("attention.key_length_mla") - latent.rope;
  latent.value = fields->Size("attention.value_length_mla");
  const auto note = [&](const char* key, const std::string& what) {
    fields->Fail(fields->gguf().Unsupported(fields->Key(key), what));
  };
  if (config->num_kv_heads != 1) note("attention.head_count_kv", "more than one head of latent attention");
  if (latent.nope <= 0) note("attention.key_length_mla", "no more than rope.dimension_count");
  if (latent.rope % 2 != 0) note("rope.dimension_count", "not a number of pairs");
  if (config->head_dim != int64_t{latent.rank} + latent.rope)
    note("attention.key_length", "not kv_lora_rank and rope.dimension_count together");
}

absl::Status ReadSizes(const GgufFile& gguf, const TensorTable& tensors, GgufFields* fields,
                       ModelConfig* config) {
  const std::string name = TensorName(*config->family, TensorRole::kEmbedding) + ".weight";
  const TensorInfo* embedding = tensors.Find(name);
  if (embedding == nullptr || embedding->shape.size() != 2) {
    RETURN_IF_ERROR(tensors.Expect(name, {0, 0}));  // returns the right error
    return absl::InternalError("unreachable: an embedding of shape [0, 0]");
  }
  const int64_t rows = embedding->shape[0];
  if (rows > std::numeric_limits<int32_t>::max()) return gguf.Bad("token_embd.weight", "too many rows");
  config->vocab_size = fields->Size("vocab_size", rows);
  config->hidden_size = config->embedding_dim = fields->Size("embedding_length");
  config->intermediate_size = fields->SizePerLayer("feed_forward_length");
  config->num_layers = fields->Size("block_count");
  config->num_heads = fields->SizePerLayer("attention.head_count");
  config->num_kv_heads = fields->SizePerLayer("attention.head_count_kv", config->num_heads);
  config->max_position_embeddings = fields->Size("context_length");
  const int32_t head_dim = std::max(1, config->hidden_size / config->num_heads);
  config->head_dim = fields->Size("attention.key_length", head_dim);
  const int32_t value_length = fields->Size("attention.value_length", config->head_dim);
  config->norm_eps = fields->Double("attention.layer_norm_rms_epsilon", 1e-5);
  const bool latent = FindTensor(*config->family, TensorRole::kLatentRow) != nullptr;
  if (latent) ReadLatentSizes(fields, config);
  RETURN_IF_ERROR(fields->status());
  if (!latent && value_length != config->head_dim)
    return gguf.Unsupported(fields->Key("attention.value_length"), "a length unlike the keys'");
  return absl::OkStatus();
}

// Whether layers of the family's models have experts.
bool HasExperts(const Family& family) { return FindTensor(family, TensorRole::kRouter) != nullptr; }

// The keys are llama.cpp's. Files without expert_feed_forward_length have experts of the MLP's size
// (Mixtral).
absl::Status ReadExperts(const GgufFile& gguf, GgufFields* fields, ModelConfig* config) {
  ASSIGN_OR_RETURN(const int64_t count, gguf.Int(fields->Key("expert_count"), 0));
  if (!HasExperts(*config->family)) {
    return count == 0 ? absl::OkStatus()
                      : gguf.Unsupported(fields->Key("expert_count"), "a mixture of experts");
  }
  ExpertsConfig& experts = config->experts;
  experts.num_experts = fields->Size("expert_count");
  experts.per_token = fields->Size("expert_used_count");
  experts.expert_size = fields->SizePerLayer("expert_feed_forward_length", config->intermediate_size);
  experts.scale = fields->PositiveDouble("expert_weights_scale", 1);
  experts.num_groups = fields->Size("expert_group_count", 1);
  experts.top_groups = fields->Size("expert_group_used_count", experts.num_groups);
  return fields->status();
}

// The layers with experts are those with a router; all layers in a family without another MLP, where a router
// that is missing is an error.
void FindExpertLayers(const TensorTable& tensors, ModelConfig* config) {
  const bool has_dense = FindTensor(*config->family, TensorRole::kGate) != nullptr;
  if (config->experts.num_experts == 0 || !has_dense) return;
  std::vector<uint8_t> layers;
  for (int32_t i = 0; i < config->num_layers; ++i)
    layers.push_back(tensors.Has(TensorName(*config->family, TensorRole::kRouter, i) + ".weight"));
  const bool all = std::find(layers.begin(), layers.end(), 0) == layers.end();
  config->experts.layers = all ? std::vector<uint8_t>() : std::move(layers);
}

absl::Status ReadTokenIds(const GgufFile& gguf, ModelConfig* config) {
  auto read = [&](absl::string_view name) -> absl::StatusOr<int32_t> {
    const std::string key = absl::StrCat("tokenizer.ggml.", name, "_token_id");
    ASSIGN_OR_RETURN(const int64_t id, gguf.Int(key, -1));
    // Some files write 2^32 - 1 for "no token", or an id outside of the vocabulary: the reader of the
    // tokenizer warns of the latter.
    return id < 0 || id >= config->vocab_size ? -1 : static_cast<int32_t>(id);
  };
  ASSIGN_OR_RETURN(config->bos_token_id, read("bos"));
  ASSIGN_OR_RETURN(config->pad_token_id, read("padding"));
  // The end of a turn or of a message also ends a sequence.
  for (const char* name : {"eos", "eot", "eom"}) {
    ASSIGN_OR_RETURN(const int32_t id, read(name));
    auto& ids = config->eos_token_ids;
    if (id >= 0 && std::find(ids.begin(), ids.end(), id) == ids.end()) ids.push_back(id);
  }
  return absl::OkStatus();
}

// The type that most bytes are stored in.
StorageType CommonType(const TensorTable& tensors) {
  constexpr size_t kTypes = std::size(kStorageTypeInfos);
  int64_t bytes[kTypes] = {};
  for (const TensorInfo* tensor : tensors.All()) {
    bytes[static_cast<int>(tensor->type)] += static_cast<int64_t>(tensor->bytes);
  }
  return static_cast<StorageType>(std::max_element(bytes, bytes + kTypes) - bytes);
}

}  // namespace

absl::StatusOr<const Family*> FindGgufFamily(const GgufFile& gguf) {
  constexpr char kKey[] = "general.architecture";
  ASSIGN_OR_RETURN(const std::string arch, gguf.String(kKey, std::nullopt));
  ASSIGN_OR_RETURN(const int64_t experts, gguf.Int(absl::StrCat(arch, ".expert_count"), 0));
  // Llama and Mixtral have one name.
  const auto is_named = [&](const Family& f) {
    return f.gguf_architecture != nullptr && arch == f.gguf_architecture;
  };
  const Family* family =
      FindFamily([&](const Family& f) { return is_named(f) && HasExperts(f) == (experts > 0); });
  if (family == nullptr) family = FindFamily(is_named);
  if (family == nullptr) return gguf.Unsupported(kKey, arch);
  return family;
}

absl::StatusOr<ModelConfig> ReadGgufConfig(const Family& family, const GgufFile& gguf,
                                           const TensorTable& tensors) {
  ModelConfig config;
  config.family = &family;
  config.quantization.method = QuantizationConfig::Method::kGguf;
  GgufFields fields(gguf, family.gguf_architecture);
  RETURN_IF_ERROR(ReadSizes(gguf, tensors, &fields, &config));
  RETURN_IF_ERROR(ReadExperts(gguf, &fields, &config));
  RETURN_IF_ERROR(ReadRope(gguf, tensors, &fields, &config));
  ReadScales(&fields, &config);
  RETURN_IF_ERROR(ReadLayers(&fields, &config));
  if (family.finish_gguf != nullptr) family.finish_gguf(&fields, &config);
  RETURN_IF_ERROR(fields.status());
  FindExpertLayers(tensors, &config);
  const auto has = [&](TensorRole role, const char* suffix) {
    return FindTensor(family, role) != nullptr && tensors.Has(TensorName(family, role) + suffix);
  };
  config.tie_word_embeddings = !has(TensorRole::kHead, ".weight");
  config.attention_qkv_bias = has(TensorRole::kQuery, ".bias") || has(TensorRole::kQueryKeyValue, ".bias") ||
                              has(TensorRole::kLatentRow, ".bias");
  config.attention_out_bias = has(TensorRole::kAttentionOut, ".bias");
  config.mlp_bias = has(TensorRole::kUp, ".bias");
  config.head_norms = has(TensorRole::kQueryNorm, ".weight");
  config.stored_type = CommonType(tensors);
  config.stored_type_given = true;
  RETURN_IF_ERROR(ReadTokenIds(gguf, &config));
  RETURN_IF_ERROR(ValidateConfig(gguf.name(), config));
  return config;
}

}  // namespace somnus
