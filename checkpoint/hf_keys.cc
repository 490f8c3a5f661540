#include "checkpoint/hf_keys.h"

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "checkpoint/family.h"

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

// `outer_original`: the original context on the file's outermost level, which takes precedence; 0: there is
// none.
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

}  // namespace

void ReadCommonKeys(const TokenIdDefaults& token_ids, JsonFields* fields, ModelConfig* config) {
  config->vocab_size = fields->Size("vocab_size");
  config->hidden_size = config->embedding_dim = fields->Size("hidden_size");
  config->num_layers = fields->Size("num_hidden_layers");
  config->num_heads = fields->Size("num_attention_heads");
  config->bos_token_id = ReadTokenId("bos_token_id", token_ids.bos, fields);
  config->pad_token_id = ReadTokenId("pad_token_id", token_ids.pad, fields);
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
  // For Mistral the window alone decides; Qwen carries one that use_sliding_window switches on, for the
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
