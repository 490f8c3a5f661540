#include "checkpoint/hf_config.h"

#include <cmath>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "checkpoint/json_file.h"
#include "checkpoint/mapped_file.h"

namespace somnus {
namespace {

using nlohmann::json;

constexpr char kConfig[] = "config.json";
constexpr char kGeneration[] = "generation_config.json";

// Where a family keeps the width of its attention window, if it has one.
enum class Window { kNone, kAlways, kBySwitch };

// What the families differ in, beside the shared decoder keys. The defaults are those of the configuration
// classes in `transformers`: they hold for a key that is not in the file.
struct Family {
  const char* model_type;
  const char*
      name;  // in "architectures": the name with "ForCausalLM", or with "Model" for one saved without a head
  Architecture architecture;
  bool qkv_bias = false;      // always on (Qwen2)
  bool bias_by_flag = false;  // attention_bias decides for q, k, v and o
  bool mlp_bias_by_flag = false;
  bool qk_norm = false;
  Window window = Window::kNone;
  int32_t default_positions = 2048;
  int32_t default_kv_heads = 0;  // 0: as many as heads
  int32_t default_head_dim = 0;  // 0: hidden_size / heads
  int32_t default_bos = -1, default_eos = -1, default_pad = -1;
};

constexpr Family kFamilies[] = {
    {.model_type = "llama",
     .name = "Llama",
     .architecture = Architecture::kLlama,
     .bias_by_flag = true,
     .mlp_bias_by_flag = true,
     .default_bos = 1,
     .default_eos = 2},
    {.model_type = "mistral",
     .name = "Mistral",
     .architecture = Architecture::kLlama,
     .window = Window::kAlways,
     .default_positions = 131072,
     .default_kv_heads = 8,
     .default_bos = 1,
     .default_eos = 2},
    {.model_type = "qwen2",
     .name = "Qwen2",
     .architecture = Architecture::kQwen2,
     .qkv_bias = true,
     .window = Window::kBySwitch,
     .default_positions = 32768,
     .default_kv_heads = 32},
    {.model_type = "qwen3",
     .name = "Qwen3",
     .architecture = Architecture::kQwen3,
     .bias_by_flag = true,
     .qk_norm = true,
     .window = Window::kBySwitch,
     .default_positions = 32768,
     .default_kv_heads = 32,
     .default_head_dim = 128},
    {.model_type = "opt",
     .name = "OPT",
     .architecture = Architecture::kOpt,
     .default_bos = 2,
     .default_eos = 2,
     .default_pad = 1},
};
constexpr int64_t kDefaultWindow = 4096;             // of every family that has windows
constexpr int32_t kDefaultFullAttentionLayers = 28;  // max_window_layers

// "architectures" names the family; old and hand-written files have only model_type.
absl::StatusOr<const Family*> FindFamily(const json& config, JsonFields* fields) {
  const auto it = config.find("architectures");
  if (it == config.end() || it->is_null()) {
    const std::string type = fields->String("model_type", "");
    RETURN_IF_ERROR(fields->status());
    if (type.empty()) return fields->Bad("architectures", "missing, and so is model_type");
    for (const Family& family : kFamilies) {
      if (type == family.model_type) return &family;
    }
    return fields->Unsupported("model_type", type);
  }
  if (!it->is_array() || it->size() != 1 || !it->front().is_string()) {
    return fields->Bad("architectures", "not a list of one name");
  }
  const std::string name = it->front().get<std::string>();
  for (const Family& family : kFamilies) {
    if (name == absl::StrCat(family.name, "ForCausalLM") || name == absl::StrCat(family.name, "Model"))
      return &family;
  }
  return fields->Unsupported("architectures", name);
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

constexpr int64_t kMaxPositions = int64_t{1} << 40;

// `outer_original`: the original context as the file's outermost level gives it, which goes before; 0: it
// does not.
void ReadLlama3Rope(JsonFields* rope, int64_t outer_original, int64_t max_positions, RopeConfig* out) {
  constexpr char kOriginal[] = "original_max_position_embeddings";
  out->type = RopeConfig::Type::kLlama3;
  for (const char* key : {"low_freq_factor", "high_freq_factor"}) {
    if (!rope->Has(key)) rope->Note(rope->Bad(key, "missing"));
  }
  out->low_freq_factor = rope->Double("low_freq_factor", 1.0);
  out->high_freq_factor = rope->Double("high_freq_factor", 4.0);
  const int64_t inner_original = rope->Int(kOriginal, max_positions, 1, kMaxPositions);
  out->original_max_position_embeddings = outer_original > 0 ? outer_original : inner_original;
  if (out->low_freq_factor <= 0 || out->high_freq_factor <= out->low_freq_factor) {
    rope->Note(rope->Bad("high_freq_factor", "not above low_freq_factor"));
  }
}

// rope_scaling (with rope_theta beside it) and transformers 5's rope_parameters (with rope_theta inside) say
// the same.
absl::Status ReadRope(JsonFields* fields, int64_t max_positions, RopeConfig* out) {
  // Where both are there, transformers takes rope_scaling, unless that is empty.
  const char* key = fields->Object("rope_scaling").empty() ? "rope_parameters" : "rope_scaling";
  const int64_t outer_original = fields->Int("original_max_position_embeddings", 0, 1, kMaxPositions);
  const double outer_theta = fields->Double("rope_theta", 1e4);
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
  if (type != "default" && !rope.Has("factor")) rope.Note(rope.Bad("factor", "missing"));
  if (out->factor <= 0) rope.Note(rope.Bad("factor", "not above zero"));
  if (type == "linear") {
    out->type = RopeConfig::Type::kLinear;
  } else if (type == "llama3") {
    ReadLlama3Rope(&rope, outer_original, max_positions, out);
  } else if (type == "default" || type == "dynamic") {
    out->factor =
        1.0;  // "dynamic" changes the base beyond max_position_embeddings only, and nothing is served there
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

absl::Status CheckFullAttention(const Family& family, const json& config, JsonFields* f,
                                const ModelConfig& model) {
  const auto layers = config.find("layer_types");
  const bool typed = layers != config.end() && layers->is_array();
  if (typed) {
    for (const json& layer : *layers) {
      if (layer.is_string() && layer.get<std::string>() == "full_attention") continue;
      return f->Unsupported("layer_types", "anything but full_attention");
    }
  }
  // For Mistral the window alone decides; Qwen carries one that use_sliding_window switches on, for the
  // layers from max_window_layers on unless layer_types says which. A key that is there with null means "no
  // window".
  const int64_t window =
      config.contains("sliding_window") ? f->Int("sliding_window", 0, 0, kMaxPositions) : kDefaultWindow;
  const bool switched_on = f->Bool("use_sliding_window", false);
  const int64_t full_layers = f->Int("max_window_layers", kDefaultFullAttentionLayers, 0, int64_t{1} << 31);
  RETURN_IF_ERROR(f->status());
  const bool used = family.window == Window::kAlways || (family.window == Window::kBySwitch && switched_on &&
                                                         !typed && full_layers < model.num_layers);
  if (used && window > 0 && window < model.max_position_embeddings) {
    return f->Unsupported("sliding_window", absl::StrCat("a window of ", window));
  }
  return absl::OkStatus();
}

// A token id; a missing key has the family's default, null is "none".
int32_t ReadTokenId(const json& config, const char* key, int32_t otherwise, JsonFields* fields) {
  if (!config.contains(key)) return otherwise;
  const std::vector<int32_t> ids = fields->Ids(key);
  return ids.empty() ? -1 : ids[0];
}

void ReadCommon(const Family& family, const json& config, JsonFields* fields, ModelConfig* model) {
  model->architecture = family.architecture;
  model->vocab_size = fields->Size("vocab_size");
  model->hidden_size = fields->Size("hidden_size");
  model->num_layers = fields->Size("num_hidden_layers");
  model->num_heads = fields->Size("num_attention_heads");
  model->bos_token_id = ReadTokenId(config, "bos_token_id", family.default_bos, fields);
  model->pad_token_id = ReadTokenId(config, "pad_token_id", family.default_pad, fields);
  model->eos_token_ids = fields->Ids("eos_token_id");
  if (!config.contains("eos_token_id") && family.default_eos >= 0)
    model->eos_token_ids = {family.default_eos};
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
  ReadCommon(family, config, fields, model);
  model->intermediate_size = fields->Size("intermediate_size");
  const bool default_kv_heads = family.default_kv_heads > 0 && !config.contains("num_key_value_heads");
  model->num_kv_heads =
      fields->Size("num_key_value_heads", default_kv_heads ? family.default_kv_heads : model->num_heads);
  int32_t head_dim = config.contains("head_dim") ? 0 : family.default_head_dim;
  if (head_dim == 0) head_dim = std::max(1, model->hidden_size / model->num_heads);
  if (!fields->Has("head_dim") && family.default_head_dim == 0 &&
      model->hidden_size % model->num_heads != 0) {
    fields->Note(
        fields->Bad("num_attention_heads", "does not divide hidden_size, and head_dim is not given"));
  }
  model->head_dim = fields->Size("head_dim", head_dim);
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
  RETURN_IF_ERROR(CheckFullAttention(family, config, fields, *model));
  return ReadRope(fields, model->max_position_embeddings, &model->rope);
}

absl::Status ReadOpt(const Family& family, const json& config, JsonFields* fields, ModelConfig* model) {
  ReadCommon(family, config, fields, model);
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
  model->attention_qkv_bias = model->attention_out_bias = model->mlp_bias = fields->Bool("enable_bias", true);
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
  ASSIGN_OR_RETURN(const Family* family, FindFamily(config, fields));
  if (fields->Has("quantization_config")) {
    return fields->Unsupported("quantization_config", "a quantized Hugging Face checkpoint");
  }
  return family->architecture == Architecture::kOpt ? ReadOpt(*family, config, fields, model)
                                                    : ReadDecoder(*family, config, fields, model);
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
  auto model =
      ParseHfConfig((*config)->text(), generation.ok() ? (*generation)->text() : absl::string_view());
  for (const auto* file : {&config, &generation}) {
    if (file->ok()) RETURN_IF_ERROR((**file)->CheckWhole());
  }
  return model;
}

}  // namespace somnus
