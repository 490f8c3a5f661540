#include "checkpoint/hf_config.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "checkpoint/family.h"
#include "checkpoint/hf_experts.h"
#include "checkpoint/hf_quantization.h"
#include "checkpoint/json_file.h"
#include "checkpoint/mapped_file.h"

namespace somnus {
namespace {

using nlohmann::json;

constexpr char kConfig[] = "config.json";
constexpr char kGeneration[] = "generation_config.json";

// "architectures" names the family; old and hand-written files have only model_type.
absl::StatusOr<const Family*> FindFamilyOf(JsonFields* fields) {
  const json* names = fields->Find("architectures");
  const auto is_text = [](const json& name) { return name.is_string(); };
  if (names != nullptr && !names->is_null() &&
      (!names->is_array() || !std::all_of(names->begin(), names->end(), is_text))) {
    return fields->Bad("architectures", "not a list of names");
  }
  if (names == nullptr || names->empty()) {  // null is empty, too
    const std::string type = fields->String("model_type", "");
    RETURN_IF_ERROR(fields->status());
    if (type.empty()) return fields->Bad("architectures", "missing, and so is model_type");
    const Family* family = FindFamily([&](const Family& f) {
      return type == f.model_type || (f.other_model_type != nullptr && type == f.other_model_type);
    });
    if (family == nullptr) return fields->Unsupported("model_type", type);
    return family;
  }
  // Derived classes and merged models list several names: the first known name counts.
  for (const json& entry : *names) {
    const std::string name = entry.get<std::string>();
    const Family* family = FindFamily([&](const Family& f) {
      return name == absl::StrCat(f.class_name, "ForCausalLM") || name == absl::StrCat(f.class_name, "Model");
    });
    if (family != nullptr) return family;
  }
  return fields->Unsupported("architectures", absl::StrJoin(names->get<std::vector<std::string>>(), ", "));
}

// Returns the "text_config" of a multimodal model whose text part is of a known family, with the outer
// level's keys that concern the whole model. Else returns `config`.
json TextPart(json config) {
  const auto text = config.find("text_config");
  if (text == config.end() || !text->is_object()) return config;
  JsonFields outer(kConfig, config), inner(kConfig, *text);
  if (FindFamilyOf(&outer).ok() || !FindFamilyOf(&inner).ok()) return config;
  json part = *text;
  for (const char* key : {"eos_token_id", "bos_token_id", "pad_token_id", "tie_word_embeddings", "dtype",
                          "torch_dtype", "quantization_config", "compression_config"}) {
    if (outer.Has(key) && !inner.Has(key)) part[key] = config[key];
  }
  // The whole model's key decides in transformers 5, and the text part's key before. Where either says that
  // the head is the embedding, files may lack the head.
  constexpr char kTied[] = "tie_word_embeddings";
  if (outer.Has(kTied) && config[kTied] == true) part[kTied] = true;
  return part;
}

void ReadStoredType(JsonFields* fields, std::optional<StorageType>* type) {
  const char* key = fields->Has("dtype") ? "dtype" : "torch_dtype";
  std::string name = fields->String(key, "");
  if (name.compare(0, 6, "torch.") == 0) name = name.substr(6);
  if (name == "float32" || name == "float") *type = StorageType::kF32;
  if (name == "float16" || name == "half") *type = StorageType::kF16;
  if (name == "bfloat16") *type = StorageType::kBF16;
}

absl::Status ReadModel(JsonFields* fields, ModelConfig* model) {
  ASSIGN_OR_RETURN(model->family, FindFamilyOf(fields));
  RETURN_IF_ERROR(ReadQuantization(fields, &model->quantization));
  return model->family->read_config(fields, model);
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
  const LatentConfig& latent = c.latent;
  for (const int32_t size : {latent.rank, latent.query_rank, latent.nope, latent.rope, latent.value}) {
    if (size < 0 || size > kMaxSize) return bad("a size of ", size, " of latent attention is out of range");
  }
  if (c.vocab_size > kMaxVocabSize) return bad("vocab_size: ", c.vocab_size, " is more than ", kMaxVocabSize);
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
  for (const std::vector<float>* factors : {&c.rope.freq_factors, &c.rope.short_factors}) {
    if (!factors->empty() && factors->size() != static_cast<size_t>(c.RotaryDim() / 2))
      return bad(factors->size(), " rope factors for ", c.RotaryDim() / 2, " frequencies");
  }
  return ValidateExperts(file, c);
}

absl::StatusOr<ModelConfig> ParseHfConfig(absl::string_view config_text, absl::string_view generation_text) {
  ASSIGN_OR_RETURN(json whole, ParseJsonObject(kConfig, config_text));
  const json config = TextPart(std::move(whole));
  ModelConfig model;
  JsonFields fields(kConfig, config);
  RETURN_IF_ERROR(ReadModel(&fields, &model));
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
