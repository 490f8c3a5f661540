#include "checkpoint/hf_keys.h"

#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "checkpoint/family.h"
#include "checkpoint/yarn.h"

namespace somnus {
namespace {

using nlohmann::json;

constexpr int64_t kDefaultWindow = 4096;             // of every family that has windows
constexpr int32_t kDefaultFullAttentionLayers = 28;  // max_window_layers
constexpr int64_t kMaxPositions = int64_t{1} << 40;

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

}  // namespace

void ReadCommonKeys(const TokenIdDefaults& token_ids, JsonFields* fields, ModelConfig* config) {
  config->vocab_size = fields->Size("vocab_size");
  config->hidden_size = config->embedding_dim = fields->Size("hidden_size");
  config->num_layers = fields->Size("num_hidden_layers");
  config->num_heads = fields->Size("num_attention_heads");
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
  if (!activation.has_value() || config->family->gated_mlp != (*activation == Activation::kSilu)) {
    fields->Note(fields->Unsupported(key, name));
    return;
  }
  config->activation = *activation;
}

absl::Status ReadRope(JsonFields* fields, int64_t max_positions, RopeConfig* out) {
  // Where both are there, transformers takes rope_scaling, unless that is empty.
  const char* key = fields->Object("rope_scaling").empty() ? "rope_parameters" : "rope_scaling";
  const int64_t outer_original = fields->Int(kOriginal, 0, 1, kMaxPositions);
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
  // The original context on the file's outermost level takes precedence.
  const int64_t inner_original = rope.Int(kOriginal, max_positions, 1, kMaxPositions);
  const int64_t original = outer_original > 0 ? outer_original : inner_original;
  // A YaRN factor of null is the ratio of the contexts; a missing factor is an error.
  const bool is_ratio = type == "yarn" && rope.Find("factor") != nullptr && !rope.Has("factor");
  out->factor = rope.Double(
      "factor", is_ratio ? static_cast<double>(max_positions) / static_cast<double>(original) : 1.0);
  if (type != "default" && !rope.Has("factor") && !is_ratio) rope.Note(rope.Bad("factor", "missing"));
  if (out->factor <= 0) rope.Note(rope.Bad("factor", "not above zero"));
  if (type == "linear") {
    out->type = RopeConfig::Type::kLinear;
  } else if (type == "llama3") {
    ReadLlama3Rope(original, &rope, out);
  } else if (type == "yarn") {
    ReadYarnRope(original, &rope, out);
  } else if (type == "default" || type == "dynamic") {
    // "dynamic" changes the base only beyond max_position_embeddings, where nothing is served.
    out->factor = 1.0;
  } else {
    return rope.Unsupported(type_key, type);
  }
  const double partial = rope.Double("partial_rotary_factor", fields->Double("partial_rotary_factor", 1.0));
  if (partial != 1.0) return rope.Unsupported("partial_rotary_factor", "a value other than 1");
  RETURN_IF_ERROR(rope.status());
  return fields->status();
}

absl::Status CheckFullAttention(AttentionWindow window_kind, JsonFields* f, const ModelConfig& model) {
  const json* layers = f->Find("layer_types");
  const bool typed = layers != nullptr && layers->is_array();
  if (typed) {
    for (const json& layer : *layers) {
      if (layer.is_string() && layer.get<std::string>() == "full_attention") continue;
      return f->Unsupported("layer_types", "anything but full_attention");
    }
  }
  // For Mistral the window alone decides; Qwen carries a window that use_sliding_window switches on, for the
  // layers from max_window_layers on unless layer_types says which. A key that is there with null means "no
  // window".
  const int64_t window =
      f->Find("sliding_window") != nullptr ? f->Int("sliding_window", 0, 0, kMaxPositions) : kDefaultWindow;
  const bool switched_on = f->Bool("use_sliding_window", false);
  const int64_t full_layers = f->Int("max_window_layers", kDefaultFullAttentionLayers, 0, int64_t{1} << 31);
  RETURN_IF_ERROR(f->status());
  const bool used =
      window_kind == AttentionWindow::kAlways ||
      (window_kind == AttentionWindow::kBySwitch && switched_on && !typed && full_layers < model.num_layers);
  if (used && window > 0 && window < model.max_position_embeddings) {
    return f->Unsupported("sliding_window", absl::StrCat("a window of ", window));
  }
  return absl::OkStatus();
}

}  // namespace somnus
