#include "checkpoint/hf_keys.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "checkpoint/family.h"
#include "checkpoint/yarn.h"

namespace somnus {
namespace {

using nlohmann::json;

constexpr int32_t kDefaultFullAttentionLayers = 28;  // max_window_layers
constexpr int64_t kMaxPositions = int64_t{1} << 40;
constexpr int32_t kMaxLayers = 4096;
constexpr char kLayerTypes[] = "layer_types";
constexpr char kFull[] = "full_attention", kSliding[] = "sliding_attention";

std::optional<Activation> ActivationOf(const std::string& name) {
  if (name == "silu" || name == "swish") return Activation::kSilu;
  if (name == "relu") return Activation::kRelu;
  if (name == "gelu") return Activation::kGelu;
  if (name == "gelu_new" || name == "gelu_pytorch_tanh" || name == "gelu_fast") return Activation::kGeluTanh;
  return std::nullopt;
}

// Returns a token id; `otherwise` for a missing key, and -1 for null.
int32_t ReadTokenId(const char* key, int32_t otherwise, JsonFields* fields) {
  if (fields->Find(key) == nullptr) return otherwise;
  const std::vector<int32_t> ids = fields->Ids(key);
  return ids.empty() ? -1 : ids[0];
}

constexpr char kOriginal[] = "original_max_position_embeddings";

void ReadLlama3Rope(int64_t original, JsonFields* rope, RopeConfig* out) {
  out->type = RopeConfig::Type::kLlama3;
  out->original_max_position_embeddings = original;
  for (const char* key : {"low_freq_factor", "high_freq_factor"}) {
    if (!rope->Has(key)) rope->Note(rope->Bad(key, "missing"));
  }
  out->low_freq_factor = rope->Double("low_freq_factor", 1.0);
  out->high_freq_factor = rope->Double("high_freq_factor", 4.0);
  if (out->low_freq_factor <= 0 || out->high_freq_factor <= out->low_freq_factor) {
    rope->Note(rope->Bad("high_freq_factor", "not above low_freq_factor"));
  }
}

// Reads as transformers does: a beta or mscale of 0 or null is not given, but a `truncate` of null is false.
void ReadYarnRope(int64_t original, JsonFields* rope, RopeConfig* out) {
  out->type = RopeConfig::Type::kYarn;
  out->original_max_position_embeddings = original;
  const double fast = rope->Double("beta_fast", 0), slow = rope->Double("beta_slow", 0);
  if (fast < 0 || slow < 0) rope->Note(rope->Bad(fast < 0 ? "beta_fast" : "beta_slow", "below zero"));
  if (fast > 0) out->beta_fast = fast;
  if (slow > 0) out->beta_slow = slow;
  out->truncate = rope->Bool("truncate", rope->Find("truncate") == nullptr);
  const double mscale = rope->Double("mscale", 0), all_dim = rope->Double("mscale_all_dim", 0);
  const bool ratio = mscale != 0 && all_dim != 0;
  const double implied =
      ratio ? YarnAttentionScale(out->factor, mscale) / YarnAttentionScale(out->factor, all_dim)
            : YarnAttentionScale(out->factor, 1.0);
  out->attention_factor = rope->Double("attention_factor", implied);
  if (out->attention_factor <= 0 || !std::isfinite(out->attention_factor)) {
    rope->Note(rope->Bad("attention_factor", "not above zero"));
  }
}

// Reads the factors of LongRoPE; transformers takes the configured contexts' ratio where no factor is given.
void ReadLongRope(int64_t original, int64_t max_positions, size_t num_pairs, JsonFields* rope,
                  RopeConfig* out) {
  out->type = RopeConfig::Type::kDefault;
  out->original_max_position_embeddings = original;
  const auto read = [&](const char* key) {
    std::vector<float> factors;
    const json* list = rope->Find(key);
    if (list == nullptr || !list->is_array() || list->size() != num_pairs) {
      rope->Note(rope->Bad(key, absl::StrCat("not a list of ", num_pairs, " numbers")));
      return factors;
    }
    for (const json& entry : *list) {
      const double factor = entry.is_number() ? entry.get<double>() : 0;
      if (!(factor > 0) || factor > 1e9) {
        rope->Note(rope->Bad(key, "a factor is not above zero"));
        return std::vector<float>();
      }
      factors.push_back(static_cast<float>(factor));
    }
    return factors;
  };
  out->short_factors = read("short_factor");
  out->freq_factors = read("long_factor");
  const double ratio = static_cast<double>(max_positions) / static_cast<double>(original);
  const double factor = rope->Double("factor", ratio);
  out->factor = 1.0;
  const double implied = factor <= 1.0 || original < 2
                             ? 1.0
                             : std::sqrt(1.0 + std::log(factor) / std::log(static_cast<double>(original)));
  out->attention_factor = rope->Double("attention_factor", implied);
  if (out->attention_factor <= 0 || !std::isfinite(out->attention_factor))
    rope->Note(rope->Bad("attention_factor", "not above zero"));
}

// The dimensions of a head that rotate; 0: all.
int32_t ReadRotaryDim(const RopeKeys& keys, const ModelConfig& config, JsonFields* fields, JsonFields* rope) {
  const double partial =
      rope->Double("partial_rotary_factor", fields->Double("partial_rotary_factor", keys.partial));
  if (partial == 1.0) return 0;
  if (!config.family->partial_rope) {
    rope->Note(rope->Unsupported("partial_rotary_factor", "a value other than 1 in this family"));
    return 0;
  }
  const double dims = std::floor(config.head_dim * partial);
  if (!(partial > 0) || partial > 1 || dims < 2 || static_cast<int32_t>(dims) % 2 != 0) {
    rope->Note(rope->Bad("partial_rotary_factor", absl::StrCat(partial, " of head_dim ", config.head_dim,
                                                               " is not a number of pairs")));
    return 0;
  }
  return static_cast<int32_t>(dims) == config.head_dim ? 0 : static_cast<int32_t>(dims);
}

// Reads one rotary embedding from its object; what the object lacks stands on the file's outermost level.
absl::Status ReadRope(const RopeKeys& keys, double theta, JsonFields* fields, JsonFields* rope,
                      ModelConfig* config, RopeConfig* out) {
  const int64_t max_positions = config->max_position_embeddings;
  const int64_t outer_original = fields->Int(kOriginal, 0, 1, kMaxPositions);
  out->theta = rope->Double("rope_theta", theta);
  if (out->theta <= 0) return fields->Bad("rope_theta", "not above zero");
  const char* type_key = rope->Has("rope_type") ? "rope_type" : "type";
  std::string type = rope->String(type_key, "default");
  if (type == "su" || (keys.yarn_is_longrope && type == "yarn")) type = "longrope";
  // The original context on the file's outermost level takes precedence.
  const int64_t inner_original = rope->Int(kOriginal, max_positions, 1, kMaxPositions);
  const int64_t original = outer_original > 0 ? outer_original : inner_original;
  // A YaRN factor of null is the ratio of the contexts; a missing factor is an error.
  const bool is_ratio = type == "yarn" && rope->Find("factor") != nullptr && !rope->Has("factor");
  const double ratio = static_cast<double>(max_positions) / static_cast<double>(original);
  out->factor = rope->Double("factor", is_ratio ? ratio : 1.0);
  const bool needs_factor = type != "default" && type != "longrope" && !is_ratio;
  if (needs_factor && !rope->Has("factor")) rope->Note(rope->Bad("factor", "missing"));
  if (out->factor <= 0) rope->Note(rope->Bad("factor", "not above zero"));
  out->rotary_dim = ReadRotaryDim(keys, *config, fields, rope);
  const int32_t rotated = out->rotary_dim > 0 ? out->rotary_dim : config->head_dim;
  if (type == "linear") {
    out->type = RopeConfig::Type::kLinear;
  } else if (type == "llama3") {
    ReadLlama3Rope(original, rope, out);
  } else if (type == "yarn") {
    ReadYarnRope(original, rope, out);
  } else if (type == "longrope") {
    ReadLongRope(original, max_positions, static_cast<size_t>(rotated / 2), rope, out);
  } else if (type == "default" || type == "dynamic") {
    // "dynamic" changes the base only beyond max_position_embeddings, where nothing is served.
    out->factor = 1.0;
  } else {
    return rope->Unsupported(type_key, type);
  }
  const double temperature = rope->Double("llama_4_scaling_beta", 0.0);
  if (temperature != 0) {
    config->query_temperature = temperature;
    out->original_max_position_embeddings = original;
  }
  RETURN_IF_ERROR(rope->status());
  return fields->status();
}

// no_rope_layers: 1 for a layer with rotary embedding, 0 for a layer without.
absl::Status ReadRopeList(JsonFields* fields, std::vector<LayerAttention>* layers) {
  constexpr char kList[] = "no_rope_layers";
  const int64_t interval = fields->Int("no_rope_layer_interval", 4, 1, kMaxLayers);
  const bool listed = fields->Has(kList);
  const std::vector<int32_t> rotates = fields->Ids(kList);
  RETURN_IF_ERROR(fields->status());
  if (listed && rotates.size() < layers->size()) return fields->Bad(kList, "shorter than num_hidden_layers");
  for (size_t i = 0; i < layers->size(); ++i) {
    const bool has_rope = listed ? rotates[i] != 0 : (static_cast<int64_t>(i) + 1) % interval != 0;
    if (!has_rope) (*layers)[i].rope = LayerRope::kNone;
  }
  return absl::OkStatus();
}

// Which layers have the window, by layer_types or by the family's rule.
absl::StatusOr<std::vector<bool>> WindowedLayers(const WindowKeys& keys,
                                                 const std::vector<LayerAttention>& layers, JsonFields* f,
                                                 const ModelConfig& config) {
  std::vector<bool> windowed(config.num_layers, false);
  const char* const key = f->Has(kLayerTypes) ? kLayerTypes : "layers_block_type";  // an older name
  const json* types = f->Find(key);
  const bool typed = types != nullptr && types->is_array();
  if (typed && static_cast<int64_t>(types->size()) < config.num_layers)
    return f->Bad(key, "shorter than num_hidden_layers");
  const bool switched_on = f->Bool("use_sliding_window", false);
  const int64_t full_layers = f->Int("max_window_layers", kDefaultFullAttentionLayers, 0, int64_t{1} << 31);
  const int64_t period =
      f->Int("sliding_window_pattern", std::max(1, config.family->window_period), 1, kMaxLayers);
  RETURN_IF_ERROR(f->status());
  for (int64_t i = 0; i < config.num_layers; ++i) {
    if (typed) {
      const json& type = (*types)[i];
      const std::string name = type.is_string() ? type.get<std::string>() : "";
      if (name != kFull && name != kSliding && name != "attention")
        return f->Unsupported(key, absl::StrCat("a layer of kind \"", name, "\""));
      windowed[i] = name == kSliding;
    }
    switch (keys.kind) {
      case AttentionWindow::kNone:
        if (windowed[i]) return f->Unsupported(key, absl::StrCat(kSliding, " in this family"));
        break;
      case AttentionWindow::kAlways:
        if (!typed) windowed[i] = true;
        break;
      case AttentionWindow::kBySwitch:
        if (windowed[i] && !switched_on) return f->Bad(key, "windows, without use_sliding_window");
        if (!typed) windowed[i] = switched_on && i >= full_layers;
        break;
      case AttentionWindow::kBySwitchAlternating:
        if (!typed) windowed[i] = switched_on && i % 2 == 0 && i < full_layers;
        break;
      case AttentionWindow::kByPattern:
        if (!typed) windowed[i] = (i + 1) % period != 0;
        break;
      case AttentionWindow::kWithoutRotary:
        if (!typed) windowed[i] = switched_on && layers[i].rope == LayerRope::kNone;
        break;
    }
  }
  return windowed;
}

}  // namespace

void ReadCommonKeys(const SizeDefaults& sizes, const TokenIdDefaults& token_ids, const char* intermediate_key,
                    JsonFields* fields, ModelConfig* config) {
  const auto size = [fields](const char* key, int32_t otherwise) {
    return fields->Find(key) == nullptr ? otherwise : fields->Size(key);
  };
  config->vocab_size = size("vocab_size", sizes.vocab);
  config->hidden_size = config->embedding_dim = size("hidden_size", sizes.hidden);
  config->intermediate_size = size(intermediate_key, sizes.intermediate);
  config->num_layers = size("num_hidden_layers", sizes.layers);
  config->num_heads = size("num_attention_heads", sizes.heads);
  config->bos_token_id = ReadTokenId("bos_token_id", token_ids.bos, fields);
  config->pad_token_id = ReadTokenId("pad_token_id", token_ids.pad, fields);
  config->matryoshka_dimensions = fields->Ids("matryoshka_dimensions");
  config->is_matryoshka = fields->Bool("is_matryoshka", false) || !config->matryoshka_dimensions.empty();
  config->eos_token_ids = fields->Ids("eos_token_id");
  if (fields->Find("eos_token_id") == nullptr && token_ids.eos >= 0) config->eos_token_ids = {token_ids.eos};
}

void ReadActivation(JsonFields* fields, const char* key, const char* otherwise, ModelConfig* config) {
  const std::string name = fields->String(key, otherwise);
  const std::optional<Activation> activation = ActivationOf(name);
  const bool gated = config->family->gated_mlp;
  const bool known = activation.has_value() &&
                     (*activation == Activation::kGeluTanh || gated == (*activation == Activation::kSilu));
  if (!known) {
    fields->Note(fields->Unsupported(key, name));
    return;
  }
  config->activation = *activation;
}

absl::Status ReadRopes(const RopeKeys& keys, JsonFields* fields, ModelConfig* config) {
  // Where both are there, transformers takes rope_scaling, unless that is empty.
  const bool scaling = !fields->Object("rope_scaling").empty();
  const char* key = scaling ? "rope_scaling" : "rope_parameters";
  const json& parameters = fields->Object(key);
  RETURN_IF_ERROR(fields->status());
  const double theta = fields->Double("rope_theta", keys.theta);
  if (!config->family->local_rope) {
    JsonFields rope(fields->file(), parameters, absl::StrCat(key, "."));
    for (const char* layered : {kFull, kSliding}) {
      if (rope.Has(layered)) return rope.Unsupported(layered, "a rope of its own per kind of layer");
    }
    return ReadRope(keys, theta, fields, &rope, config, &config->rope);
  }
  // An object of each kind of layer; an object without them is of layers without a window.
  static const json* const kNothing = new json(json::object());
  const auto of_kind = [&](const char* kind) -> const json& {
    const auto found = parameters.find(kind);
    if (found != parameters.end()) return found->is_object() ? *found : *kNothing;
    return kind == kFull && !parameters.contains(kSliding) ? parameters : *kNothing;
  };
  JsonFields full(fields->file(), of_kind(kFull), absl::StrCat(key, ".", kFull, "."));
  RETURN_IF_ERROR(ReadRope(keys, theta, fields, &full, config, &config->rope));
  const double local_theta = fields->Double("rope_local_base_freq", keys.local_theta);
  JsonFields sliding(fields->file(), of_kind(kSliding), absl::StrCat(key, ".", kSliding, "."));
  return ReadRope(keys, local_theta, fields, &sliding, config, &config->local_rope);
}

absl::Status ReadLayers(const WindowKeys& keys, JsonFields* fields, ModelConfig* config) {
  const int32_t num_layers = config->num_layers;
  if (num_layers < 1 || num_layers > kMaxLayers) return fields->Bad("num_hidden_layers", "out of range");
  std::vector<LayerAttention> layers(num_layers);
  if (keys.skips_rope_by_list) RETURN_IF_ERROR(ReadRopeList(fields, &layers));
  ASSIGN_OR_RETURN(const std::vector<bool> windowed, WindowedLayers(keys, layers, fields, *config));
  // A key that is there with null means "no window".
  const int64_t window = fields->Find("sliding_window") != nullptr
                             ? fields->Int("sliding_window", 0, 0, kMaxPositions)
                             : keys.default_window;
  RETURN_IF_ERROR(fields->status());
  const bool narrows = window > 0 && window < config->max_position_embeddings;
  for (int32_t i = 0; i < num_layers; ++i) {
    if (!windowed[i]) continue;
    if (narrows) layers[i].window = static_cast<int32_t>(window);
    if (config->family->local_rope) layers[i].rope = LayerRope::kLocal;
  }
  const auto is_plain = [](const LayerAttention& layer) { return layer == LayerAttention(); };
  if (!std::all_of(layers.begin(), layers.end(), is_plain)) config->layer_attention = std::move(layers);
  return absl::OkStatus();
}

}  // namespace somnus
