#include "checkpoint/hf_config.h"

#include <cmath>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "checkpoint/json_file.h"
#include "checkpoint/mapped_file.h"
#include "proto/status_macros.h"

namespace somnus {
namespace {

using nlohmann::json;

constexpr char kConfig[] = "config.json";
constexpr char kGeneration[] = "generation_config.json";

// What the families differ in, beside the shared decoder keys.
struct Family {
  const char* name;  // in "architectures"
  Architecture architecture;
  bool qkv_bias;      // always on (Qwen2)
  bool bias_by_flag;  // attention_bias decides for q, k, v and o
  bool mlp_bias_by_flag;
  bool qk_norm;
  int32_t default_positions;
  double default_theta;
};

constexpr Family kFamilies[] = {
    {"LlamaForCausalLM", Architecture::kLlama, false, true, true, false, 2048, 1e4},
    {"MistralForCausalLM", Architecture::kLlama, false, false, false, false, 131072, 1e4},
    {"Qwen2ForCausalLM", Architecture::kQwen2, true, false, false, false, 32768, 1e4},
    {"Qwen3ForCausalLM", Architecture::kQwen3, false, true, false, true, 32768, 1e4},
};

absl::StatusOr<std::string> ReadArchitecture(const json& config) {
  const auto it = config.find("architectures");
  if (it != config.end() && it->is_array() && it->size() == 1 && it->front().is_string()) {
    return it->front().get<std::string>();
  }
  return absl::InvalidArgumentError(absl::StrCat(kConfig, ": architectures: not a list of one name"));
}

std::optional<Activation> ActivationOf(const std::string& name) {
  if (name == "silu" || name == "swish") return Activation::kSilu;
  if (name == "relu") return Activation::kRelu;
  if (name == "gelu") return Activation::kGelu;
  if (name == "gelu_new" || name == "gelu_pytorch_tanh" || name == "gelu_fast") return Activation::kGeluTanh;
  return std::nullopt;
}

void ReadActivation(JsonFields* fields, const char* key, const char* otherwise, bool gated,
                    ModelConfig* config) {
  const std::string name = fields->String(key, otherwise);
  const std::optional<Activation> activation = ActivationOf(name);
  // The gated families are built on silu(gate) * up alone, OPT on a plain non-linearity.
  if (!activation.has_value() || gated != (*activation == Activation::kSilu)) {
    fields->Note(fields->Unsupported(key, name));
    return;
  }
  config->activation = *activation;
}

void ReadLlama3Rope(JsonFields* rope, int64_t outer_original, RopeConfig* out) {
  out->type = RopeConfig::Type::kLlama3;
  out->low_freq_factor = rope->Double("low_freq_factor", 1.0);
  out->high_freq_factor = rope->Double("high_freq_factor", 4.0);
  out->original_max_position_embeddings =
      rope->Int("original_max_position_embeddings", outer_original, 1, int64_t{1} << 40);
  if (out->original_max_position_embeddings <= 0) {
    rope->Note(rope->Bad("original_max_position_embeddings", "missing"));
  }
  if (out->low_freq_factor <= 0 || out->high_freq_factor <= out->low_freq_factor) {
    rope->Note(rope->Bad("high_freq_factor", "not above low_freq_factor"));
  }
}

// rope_scaling (with rope_theta beside it) and transformers 5's rope_parameters (with rope_theta inside) say
// the same.
absl::Status ReadRope(JsonFields* fields, double default_theta, RopeConfig* out) {
  const char* key = fields->Has("rope_parameters") ? "rope_parameters" : "rope_scaling";
  const int64_t outer_original = fields->Int("original_max_position_embeddings", 0, 1, int64_t{1} << 40);
  const double outer_theta = fields->Double("rope_theta", default_theta);
  JsonFields rope(fields->file(), fields->Object(key), absl::StrCat(key, "."));
  RETURN_IF_ERROR(fields->status());
  for (const char* layered : {"full_attention", "sliding_attention"}) {
    if (rope.Has(layered)) return rope.Unsupported(layered, "a rope of its own per kind of layer");
  }
  out->theta = rope.Double("rope_theta", outer_theta);
  if (out->theta <= 0) return fields->Bad("rope_theta", "not above zero");
  const char* type_key = rope.Has("rope_type") ? "rope_type" : "type";
  const std::string type = rope.String(type_key, "default");
  out->factor = rope.Double("factor", 1.0);
  if (out->factor <= 0) rope.Note(rope.Bad("factor", "not above zero"));
  if (type == "linear") {
    out->type = RopeConfig::Type::kLinear;
  } else if (type == "llama3") {
    ReadLlama3Rope(&rope, outer_original, out);
  } else if (type == "default") {
    out->factor = 1.0;
  } else {
    return rope.Unsupported(type_key, type);
  }
  const double partial = rope.Double("partial_rotary_factor", fields->Double("partial_rotary_factor", 1.0));
  if (partial != 1.0) return rope.Unsupported("partial_rotary_factor", "a value other than 1");
  RETURN_IF_ERROR(rope.status());
  return fields->status();
}

void ReadStoredType(JsonFields* fields, std::optional<StorageType>* type) {
  const char* key = fields->Has("dtype") ? "dtype" : "torch_dtype";
  std::string name = fields->String(key, "");
  if (name.compare(0, 6, "torch.") == 0) name = name.substr(6);
  if (name == "float32" || name == "float") *type = StorageType::kF32;
  if (name == "float16" || name == "half") *type = StorageType::kF16;
  if (name == "bfloat16") *type = StorageType::kBF16;
}

absl::Status CheckFullAttention(const JsonFields& fields, const json& config, const ModelConfig& model) {
  JsonFields f = fields;
  const auto layers = config.find("layer_types");
  if (layers != config.end() && layers->is_array()) {
    for (const json& layer : *layers) {
      if (layer.is_string() && layer.get<std::string>() == "full_attention") continue;
      return f.Unsupported("layer_types", "anything but full_attention");
    }
  }
  // Qwen carries a window that use_sliding_window switches off; for Mistral the window alone decides.
  const bool used = f.Bool("use_sliding_window", model.architecture == Architecture::kLlama);
  const int64_t window = f.Int("sliding_window", 0, 0, int64_t{1} << 40);
  const int64_t full_layers = f.Int("max_window_layers", 0, 0, int64_t{1} << 31);
  const bool reaches = model.architecture == Architecture::kLlama || full_layers < model.num_layers;
  RETURN_IF_ERROR(f.status());
  if (used && reaches && window > 0 && window < model.max_position_embeddings) {
    return f.Unsupported("sliding_window", absl::StrCat("a window of ", window));
  }
  return absl::OkStatus();
}

void ReadCommon(JsonFields* fields, ModelConfig* model) {
  model->vocab_size = fields->Size("vocab_size");
  model->hidden_size = fields->Size("hidden_size");
  model->num_layers = fields->Size("num_hidden_layers");
  model->num_heads = fields->Size("num_attention_heads");
  const std::vector<int32_t> bos = fields->Ids("bos_token_id"), pad = fields->Ids("pad_token_id");
  if (!bos.empty()) model->bos_token_id = bos[0];
  if (!pad.empty()) model->pad_token_id = pad[0];
  model->eos_token_ids = fields->Ids("eos_token_id");
}

absl::Status CheckHeads(const JsonFields& fields, const ModelConfig& model) {
  if (model.num_heads % model.num_kv_heads != 0) {
    return fields.Bad(
        "num_key_value_heads",
        absl::StrCat(model.num_kv_heads, " does not divide num_attention_heads, ", model.num_heads));
  }
  return absl::OkStatus();
}

absl::Status ReadDecoder(const Family& family, const json& config, JsonFields* fields, ModelConfig* model) {
  model->architecture = family.architecture;
  ReadCommon(fields, model);
  model->intermediate_size = fields->Size("intermediate_size");
  model->num_kv_heads = fields->Size("num_key_value_heads", model->num_heads);
  if (!fields->Has("head_dim") && model->hidden_size % model->num_heads != 0) {
    fields->Note(
        fields->Bad("num_attention_heads", "does not divide hidden_size, and head_dim is not given"));
  }
  model->head_dim = fields->Size("head_dim", std::max(1, model->hidden_size / model->num_heads));
  model->max_position_embeddings = fields->Size("max_position_embeddings", family.default_positions);
  model->norm_eps = fields->Double("rms_norm_eps", 1e-6);
  model->tie_word_embeddings = fields->Bool("tie_word_embeddings", false);
  const bool attention_bias = family.bias_by_flag && fields->Bool("attention_bias", false);
  model->attention_qkv_bias = family.qkv_bias || attention_bias;
  model->attention_out_bias = attention_bias;
  model->mlp_bias = family.mlp_bias_by_flag && fields->Bool("mlp_bias", false);
  model->qk_norm = family.qk_norm;
  model->embedding_dim = model->hidden_size;
  ReadActivation(fields, "hidden_act", "silu", /*gated=*/true, model);
  RETURN_IF_ERROR(fields->status());
  RETURN_IF_ERROR(CheckHeads(*fields, *model));
  RETURN_IF_ERROR(CheckFullAttention(*fields, config, *model));
  return ReadRope(fields, family.default_theta, &model->rope);
}

absl::Status ReadOpt(JsonFields* fields, ModelConfig* model) {
  model->architecture = Architecture::kOpt;
  ReadCommon(fields, model);
  model->intermediate_size = fields->Size("ffn_dim");
  model->num_kv_heads = model->num_heads;
  model->max_position_embeddings = fields->Size("max_position_embeddings", 2048);
  model->tie_word_embeddings = fields->Bool("tie_word_embeddings", true);
  model->embedding_dim = fields->Size("word_embed_proj_dim", model->hidden_size);
  model->norm_before = fields->Bool("do_layer_norm_before", true);
  model->final_norm = model->norm_before && !fields->Bool("_remove_final_layer_norm", false);
  model->position_offset = 2;
  model->norm_eps = 1e-5;  // torch.nn.LayerNorm's default; OPT has no key for it
  model->rope.type = RopeConfig::Type::kNone;
  model->attention_qkv_bias = model->attention_out_bias = model->mlp_bias = true;
  if (!fields->Bool("enable_bias", true)) fields->Note(fields->Unsupported("enable_bias", "false"));
  if (!fields->Bool("layer_norm_elementwise_affine", true)) {
    fields->Note(fields->Unsupported("layer_norm_elementwise_affine", "false"));
  }
  ReadActivation(fields, "activation_function", "relu", /*gated=*/false, model);
  RETURN_IF_ERROR(fields->status());
  if (model->hidden_size % model->num_heads != 0) {
    return fields->Bad("num_attention_heads", "does not divide hidden_size");
  }
  model->head_dim = model->hidden_size / model->num_heads;
  return absl::OkStatus();
}

absl::Status ReadModel(const json& config, JsonFields* fields, ModelConfig* model) {
  ASSIGN_OR_RETURN(const std::string architecture, ReadArchitecture(config));
  if (fields->Has("quantization_config")) {
    return fields->Unsupported("quantization_config", "a quantized Hugging Face checkpoint");
  }
  if (architecture == "OPTForCausalLM") return ReadOpt(fields, model);
  for (const Family& family : kFamilies) {
    if (architecture == family.name) return ReadDecoder(family, config, fields, model);
  }
  return fields->Unsupported("architectures", architecture);
}

absl::Status ReadGeneration(absl::string_view text, ModelConfig* model) {
  ASSIGN_OR_RETURN(const json generation, ParseJsonObject(kGeneration, text));
  JsonFields fields(kGeneration, generation);
  if (fields.Has("eos_token_id")) model->eos_token_ids = fields.Ids("eos_token_id");
  const std::vector<int32_t> bos = fields.Ids("bos_token_id"), pad = fields.Ids("pad_token_id");
  if (!bos.empty()) model->bos_token_id = bos[0];
  if (!pad.empty()) model->pad_token_id = pad[0];
  GenerationDefaults& defaults = model->generation;
  defaults.temperature = fields.OptionalDouble("temperature");
  defaults.top_p = fields.OptionalDouble("top_p");
  defaults.min_p = fields.OptionalDouble("min_p");
  defaults.repetition_penalty = fields.OptionalDouble("repetition_penalty");
  if (fields.Has("top_k")) defaults.top_k = static_cast<int32_t>(fields.Int("top_k", 0, -1, 1 << 30));
  return fields.status();
}

}  // namespace

absl::Status ValidateConfig(const std::string& file, const ModelConfig& c) {
  auto bad = [&](const auto&... reason) {
    return absl::InvalidArgumentError(absl::StrCat(file, ": ", reason...));
  };
  // Products of two sizes must stay far inside int64_t, and a list of layers inside memory.
  constexpr int32_t kMaxSize = 1 << 28, kMaxLayers = 4096;
  for (const int32_t size : {c.vocab_size, c.hidden_size, c.intermediate_size, c.num_heads, c.num_kv_heads,
                             c.head_dim, c.embedding_dim}) {
    if (size <= 0 || size > kMaxSize) return bad("a size of ", size, " is out of range");
  }
  if (c.num_layers <= 0 || c.num_layers > kMaxLayers)
    return bad("number of layers ", c.num_layers, " is out of range");
  if (c.max_position_embeddings <= 0)
    return bad("number of positions ", c.max_position_embeddings, " is out of range");
  if (c.num_heads % c.num_kv_heads != 0)
    return bad(c.num_kv_heads, " KV heads do not divide ", c.num_heads, " heads");
  if (c.rope.type != RopeConfig::Type::kNone && c.head_dim % 2 != 0) {
    return bad("head_dim: ", c.head_dim, " is odd, rotary embeddings need pairs");
  }
  if (!(c.norm_eps >= 0) || !std::isfinite(c.norm_eps))
    return bad("norm epsilon ", c.norm_eps, " is not valid");
  if (!c.rope.freq_factors.empty() && c.rope.freq_factors.size() != static_cast<size_t>(c.head_dim / 2)) {
    return bad(c.rope.freq_factors.size(), " rope factors for ", c.head_dim / 2, " frequencies");
  }
  return absl::OkStatus();
}

absl::StatusOr<ModelConfig> ParseHfConfig(absl::string_view config_text, absl::string_view generation_text) {
  ASSIGN_OR_RETURN(const json config, ParseJsonObject(kConfig, config_text));
  ModelConfig model;
  JsonFields fields(kConfig, config);
  RETURN_IF_ERROR(ReadModel(config, &fields, &model));
  std::optional<StorageType> stored;
  ReadStoredType(&fields, &stored);
  model.stored_type = stored.value_or(StorageType::kBF16);
  model.stored_type_given = stored.has_value();
  RETURN_IF_ERROR(fields.status());
  if (!generation_text.empty()) RETURN_IF_ERROR(ReadGeneration(generation_text, &model));
  RETURN_IF_ERROR(ValidateConfig(kConfig, model));
  return model;
}

absl::StatusOr<ModelConfig> ReadHfConfig(const std::string& directory) {
  constexpr uint64_t kMaxBytes = 16 << 20;
  auto config = MappedFile::Open(absl::StrCat(directory, "/", kConfig));
  RETURN_IF_ERROR(config.status());
  auto generation = MappedFile::Open(absl::StrCat(directory, "/", kGeneration));
  if (!generation.ok() && !absl::IsNotFound(generation.status())) return generation.status();
  for (const auto* file : {&config, &generation}) {
    if (file->ok() && (**file)->size() > kMaxBytes) {
      return absl::InvalidArgumentError(
          absl::StrCat((**file)->name(), ": longer than ", kMaxBytes, " bytes"));
    }
  }
  if (generation.ok() && (*generation)->size() == 0) {
    return absl::InvalidArgumentError(absl::StrCat(kGeneration, ": empty"));
  }
  return ParseHfConfig((*config)->text(), generation.ok() ? (*generation)->text() : absl::string_view());
}

}  // namespace somnus
