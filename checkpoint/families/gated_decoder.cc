#include "checkpoint/families/gated_decoder.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "checkpoint/yarn.h"

namespace somnus {
namespace {

absl::Status CheckHeads(const JsonFields& fields, const ModelConfig& model) {
  if (model.num_heads % model.num_kv_heads != 0) {
    return fields.Bad(
        "num_key_value_heads",
        absl::StrCat(model.num_kv_heads, " does not divide num_attention_heads, ", model.num_heads));
  }
  return absl::OkStatus();
}

}  // namespace

void NeedRope(JsonFields* fields, ModelConfig*) {
  if (fields->Has("rope_parameters") || fields->Has("rope_scaling")) return;
  fields->Note(fields->Bad("rope_parameters", "missing"));
}

absl::Status ReadGatedDecoder(const GatedDecoderKeys& keys, JsonFields* fields, ModelConfig* model) {
  if (keys.more != nullptr) keys.more(fields, model);
  ReadCommonKeys(keys.sizes, keys.token_ids, keys.intermediate_key, fields, model);
  const bool default_kv_heads = keys.default_kv_heads > 0 && fields->Find("num_key_value_heads") == nullptr;
  model->num_kv_heads =
      fields->Size("num_key_value_heads", default_kv_heads ? keys.default_kv_heads : model->num_heads);
  int32_t head_dim = fields->Find("head_dim") != nullptr ? 0 : keys.default_head_dim;
  if (head_dim == 0) head_dim = std::max(1, model->hidden_size / model->num_heads);
  if (!fields->Has("head_dim") && keys.default_head_dim == 0 && model->hidden_size % model->num_heads != 0) {
    fields->Note(
        fields->Bad("num_attention_heads", "does not divide hidden_size, and head_dim is not given"));
  }
  model->head_dim = fields->Size("head_dim", head_dim);
  model->max_position_embeddings = fields->Size("max_position_embeddings", keys.default_positions);
  model->norm_eps = fields->Double("rms_norm_eps", keys.default_eps);
  model->tie_word_embeddings = fields->Bool("tie_word_embeddings", keys.tied);
  model->tie_word_embeddings_given = fields->Has("tie_word_embeddings");
  const bool attention_bias = keys.bias_by_flag && fields->Bool("attention_bias", false);
  model->attention_qkv_bias =
      keys.qkv_bias || attention_bias || (keys.qkv_bias_by_flag && fields->Bool("attention_bias", true));
  model->attention_out_bias = attention_bias;
  model->mlp_bias = keys.mlp_bias_by_flag && fields->Bool("mlp_bias", false);
  ReadActivation(fields, keys.activation_key, keys.activation, model);
  RETURN_IF_ERROR(fields->status());
  RETURN_IF_ERROR(CheckHeads(*fields, *model));
  RETURN_IF_ERROR(ReadRopes(keys.rope, fields, model));
  ExtendByYarn(model);
  return ReadLayers(keys.window, fields, model);
}

}  // namespace somnus
