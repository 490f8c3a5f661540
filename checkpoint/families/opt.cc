// OPT (arXiv 2205.01068): learned positions from row 2 on, LayerNorm before each block (OPT-350m: after each
// block, and an embedding narrower than the model), a two-matrix MLP, biases everywhere.

#include "base/status_macros.h"
#include "checkpoint/family.h"
#include "checkpoint/hf_keys.h"

namespace somnus {
namespace {

absl::Status ReadOpt(JsonFields* fields, ModelConfig* model) {
  ReadCommonKeys({.vocab = 50272, .hidden = 768, .intermediate = 3072, .layers = 12, .heads = 12},
                 {.bos = 2, .eos = 2, .pad = 1}, "ffn_dim", fields, model);
  model->num_kv_heads = model->num_heads;
  model->max_position_embeddings = fields->Size("max_position_embeddings", 2048);
  model->tie_word_embeddings = fields->Bool("tie_word_embeddings", true);
  model->embedding_dim = fields->Size("word_embed_proj_dim", model->hidden_size);
  model->norm_before = fields->Bool("do_layer_norm_before", true);
  model->final_norm = model->norm_before && !fields->Bool("_remove_final_layer_norm", false);
  model->norm_eps = 1e-5;  // torch.nn.LayerNorm's default; OPT has no key for it
  model->rope.type = RopeConfig::Type::kNone;
  model->attention_qkv_bias = model->attention_out_bias = model->mlp_bias = fields->Bool("enable_bias", true);
  if (!fields->Bool("layer_norm_elementwise_affine", true)) {
    fields->Note(fields->Unsupported("layer_norm_elementwise_affine", "false"));
  }
  ReadActivation(fields, "activation_function", "relu", model);
  RETURN_IF_ERROR(fields->status());
  if (model->hidden_size % model->num_heads != 0) {
    return fields->Bad("num_attention_heads", "does not divide hidden_size");
  }
  model->head_dim = model->hidden_size / model->num_heads;
  return absl::OkStatus();
}

bool HasProjection(const ModelConfig& c) { return c.embedding_dim != c.hidden_size; }
bool HasFinalNorm(const ModelConfig& c) { return c.final_norm; }

constexpr TensorSpec kTensors[] = {
    {.role = TensorRole::kEmbedding,
     .name = "model.decoder.embed_tokens",
     .rows = Dim::kVocab,
     .cols = Dim::kEmbedding},
    {.role = TensorRole::kPositions,
     .name = "model.decoder.embed_positions",
     .rows = Dim::kPositions,
     .cols = Dim::kHidden},
    {.role = TensorRole::kProjectIn,
     .name = "model.decoder.project_in",
     .rows = Dim::kHidden,
     .cols = Dim::kEmbedding,
     .present = HasProjection},
    {.role = TensorRole::kProjectOut,
     .name = "model.decoder.project_out",
     .rows = Dim::kEmbedding,
     .cols = Dim::kHidden,
     .present = HasProjection},
    {.role = TensorRole::kFinalNorm,
     .name = "model.decoder.final_layer_norm",
     .present = HasFinalNorm,
     .bias = Always},
    {.role = TensorRole::kHead,
     .name = "lm_head",
     .rows = Dim::kVocab,
     .cols = Dim::kEmbedding,
     .present = HasOwnHead},
};

constexpr TensorSpec kLayerTensors[] = {
    {.role = TensorRole::kAttentionNorm, .name = "self_attn_layer_norm", .bias = Always},
    {.role = TensorRole::kQuery,
     .name = "self_attn.q_proj",
     .rows = Dim::kQueries,
     .cols = Dim::kHidden,
     .bias = HasQkvBias},
    {.role = TensorRole::kKey,
     .name = "self_attn.k_proj",
     .rows = Dim::kKeysValues,
     .cols = Dim::kHidden,
     .bias = HasQkvBias},
    {.role = TensorRole::kValue,
     .name = "self_attn.v_proj",
     .rows = Dim::kKeysValues,
     .cols = Dim::kHidden,
     .bias = HasQkvBias},
    {.role = TensorRole::kAttentionOut,
     .name = "self_attn.out_proj",
     .rows = Dim::kHidden,
     .cols = Dim::kQueries,
     .bias = HasOutBias},
    {.role = TensorRole::kMlpNorm, .name = "final_layer_norm", .bias = Always},
    {.role = TensorRole::kUp,
     .name = "fc1",
     .rows = Dim::kIntermediate,
     .cols = Dim::kHidden,
     .bias = HasMlpBias},
    {.role = TensorRole::kDown,
     .name = "fc2",
     .rows = Dim::kHidden,
     .cols = Dim::kIntermediate,
     .bias = HasMlpBias},
};

constexpr Family kOpt = {
    .model_type = "opt",
    .class_name = "OPT",
    .read_config = ReadOpt,
    .norm = NormKind::kLayerNorm,
    .gated_mlp = false,
    .learned_positions = true,
    .position_offset = 2,
    .layer_prefix = "model.decoder.layers.",
    .tensors = kTensors,
    .layer_tensors = kLayerTensors,
};
const FamilyRegistration kRegistration(&kOpt);

}  // namespace
}  // namespace somnus
