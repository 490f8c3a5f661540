#include "worker/model/decoder_model.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <utility>

#include "base/status_macros.h"
#include "checkpoint/family.h"
#include "worker/model/linears.h"

namespace somnus {
namespace {

UnaryActivation OpOf(Activation activation) {
  switch (activation) {
    case Activation::kGelu:
      return UnaryActivation::kGelu;
    case Activation::kGeluTanh:
      return UnaryActivation::kGeluTanh;
    default:
      return UnaryActivation::kRelu;
  }
}

// The factor of embeddings. Rounded as transformers rounds it, where the family does: to bf16, the only type
// in which a factor differs noticeably.
float EmbeddingScale(const ModelConfig& config, DataType act) {
  const auto scale = static_cast<float>(config.embedding_scale);
  if (!config.family->rounds_embedding_scale || act != DataType::kBF16) return scale;
  const auto bits = std::bit_cast<uint32_t>(scale);
  return std::bit_cast<float>((bits + 0x7fffu + (bits >> 16 & 1u)) & 0xffff0000u);  // to nearest even
}

}  // namespace

Activations Activations::Carve(Carver* carver, const ModelConfig& config, const ModelShards& shards,
                               DataType act, DataType sum, int64_t max_tokens) {
  const int64_t head_cols = shards.heads.size() * config.head_dim;
  const int64_t qkv_cols = (shards.heads.size() + 2 * shards.kv_heads.size()) * config.head_dim;
  const int64_t mlp_cols = config.HasDenseLayer() ? shards.mlp.size() : 0;
  const int64_t up_cols = (config.family->gated_mlp ? 2 : 1) * mlp_cols;
  Activations a;
  a.residual = carver->TakeMatrix(DataType::kF32, max_tokens, config.hidden_size);
  a.delta = carver->TakeMatrix(sum, max_tokens, config.hidden_size);
  a.normed = carver->TakeMatrix(act, max_tokens, config.hidden_size);
  a.qkv = carver->TakeMatrix(sum, max_tokens, qkv_cols);
  if (config.latent.rank > 0)
    a.latent = LatentActivations::Carve(carver, config, shards.heads.size(), act, sum, max_tokens);
  if (config.family->qk_norm_wide) a.squares = carver->TakeMatrix(DataType::kF32, max_tokens, 2);
  a.heads = carver->TakeMatrix(act, max_tokens, head_cols);
  a.up = carver->TakeMatrix(sum, max_tokens, up_cols);
  a.mlp = carver->TakeMatrix(act, max_tokens, mlp_cols);
  a.experts = ExpertActivations::Carve(carver, config, shards, act, sum, max_tokens);
  if (!config.norm_before) a.residual2 = carver->TakeMatrix(DataType::kF32, max_tokens, config.hidden_size);
  if (config.embedding_dim != config.hidden_size) {
    a.embedded = carver->TakeMatrix(DataType::kF32, max_tokens, config.embedding_dim);
    a.embedded_act = carver->TakeMatrix(act, max_tokens, config.embedding_dim);
  }
  return a;
}

absl::StatusOr<TensorView> DecoderModel::Forward(const StepInput& input) {
  if (c_.shards->first_stage) RETURN_IF_ERROR(EmbedTokensAndPositions(input));
  ASSIGN_OR_RETURN(const TensorView hidden, c_.config->norm_before ? RunPreNorm(input) : RunPostNorm(input));
  return c_.shards->last_stage ? Project(hidden) : residual(input.batch.num_tokens);
}

absl::StatusOr<TensorView> DecoderModel::RunPreNorm(const StepInput& input) {
  const int64_t num_tokens = input.batch.num_tokens;
  const TensorView x = FirstRows(c_.act.residual, num_tokens);     // f32 [T, hidden]
  const TensorView delta = FirstRows(c_.act.delta, num_tokens);    // sum [T, hidden]
  const TensorView normed = FirstRows(c_.act.normed, num_tokens);  // act [T, hidden]
  TensorView pending = {};  // the addend of the last block; nothing before the first block
  const float* pending_norm = nullptr;
  for (size_t layer = 0; layer < c_.weights->layers.size(); ++layer) {
    const LayerWeights& w = c_.weights->layers[layer];
    RETURN_IF_ERROR(
        AddBlockAndNorm(x, pending, pending_norm, w.attention_norm, w.attention_norm_bias, normed));
    RETURN_IF_ERROR(Attention(static_cast<int64_t>(layer), input, normed, delta));
    RETURN_IF_ERROR(AddBlockAndNorm(x, delta, w.attention_post_norm, w.mlp_norm, w.mlp_norm_bias, normed));
    Mlp(static_cast<int64_t>(layer), input, normed, delta);
    pending = delta;
    pending_norm = w.mlp_post_norm;
  }
  RETURN_IF_ERROR(
      AddBlockAndNorm(x, pending, pending_norm, c_.weights->final_norm, c_.weights->final_norm_bias, normed));
  return normed;
}

// The stream itself is normalized, so the stream moves between two buffers: twice in a layer, so that the
// last layer leaves the stream where the first layer finds it. Only LayerNorm occurs here: no known post-norm
// model has RMSNorm.
absl::StatusOr<TensorView> DecoderModel::RunPostNorm(const StepInput& input) {
  const int64_t num_tokens = input.batch.num_tokens;
  TensorView x = FirstRows(c_.act.residual, num_tokens);          // f32 [T, hidden]
  TensorView next = FirstRows(c_.act.residual2, num_tokens);      // f32 [T, hidden]
  const TensorView delta = FirstRows(c_.act.delta, num_tokens);   // sum [T, hidden]
  const TensorView x_act = FirstRows(c_.act.normed, num_tokens);  // act [T, hidden]
  const auto add_and_norm = [&](const float* weight, const float* bias) -> absl::Status {
    RETURN_IF_ERROR(AllReduce(delta));
    AddLayerNorm(*c_.device, x, delta, weight, bias, c_.config->norm_eps, next);
    std::swap(x, next);
    Activate(*c_.device, x, UnaryActivation::kIdentity, x_act);
    return absl::OkStatus();
  };
  Activate(*c_.device, x, UnaryActivation::kIdentity, x_act);
  for (size_t layer = 0; layer < c_.weights->layers.size(); ++layer) {
    const LayerWeights& w = c_.weights->layers[layer];
    RETURN_IF_ERROR(Attention(static_cast<int64_t>(layer), input, x_act, delta));
    RETURN_IF_ERROR(add_and_norm(w.attention_norm, w.attention_norm_bias));
    Mlp(static_cast<int64_t>(layer), input, x_act, delta);
    RETURN_IF_ERROR(add_and_norm(w.mlp_norm, w.mlp_norm_bias));
  }
  return x_act;
}

absl::Status DecoderModel::AddAndNorm(const TensorView& x, const TensorView& addend, const float* weight,
                                      const float* bias, const TensorView& out) {
  const double eps = c_.config->norm_eps;
  if (weight == nullptr) {
    if (addend.data != nullptr) {
      RETURN_IF_ERROR(AllReduce(addend));
      Add(*c_.device, x, addend);
    }
    Activate(*c_.device, x, UnaryActivation::kIdentity, out);
    return absl::OkStatus();
  }
  if (c_.config->family->norm == NormKind::kLayerNorm) {
    if (addend.data != nullptr) RETURN_IF_ERROR(AllReduce(addend));
    AddLayerNorm(*c_.device, x, addend, weight, bias, eps, out);
    return absl::OkStatus();
  }
  if (addend.data == nullptr) {
    AddRmsNorm(*c_.device, x, addend, weight, eps, out);
    return absl::OkStatus();
  }
  // A single kernel where the communicator has a fused kernel.
  return c_.communicator->AllReduceAddRmsNorm(*c_.device, x, addend, weight, eps, out);
}

absl::Status DecoderModel::AddBlockAndNorm(const TensorView& x, const TensorView& addend,
                                           const float* post_norm, const float* weight, const float* bias,
                                           const TensorView& out) {
  const auto scale = static_cast<float>(c_.config->residual_scale);
  if (addend.data == nullptr || (post_norm == nullptr && scale == 1.0f))
    return AddAndNorm(x, addend, weight, bias, out);
  RETURN_IF_ERROR(AllReduce(addend));
  if (post_norm != nullptr) RmsNorm(*c_.device, addend, post_norm, c_.config->norm_eps);
  if (scale != 1.0f) ScaleAndCap(*c_.device, addend, scale, 0);
  Add(*c_.device, x, addend);
  return AddAndNorm(x, {}, weight, bias, out);
}

absl::Status DecoderModel::AllReduce(const TensorView& x) {
  if (c_.communicator->world_size() == 1) return absl::OkStatus();
  if (!c_.communicator->stream_ordered()) RETURN_IF_ERROR(c_.device->Synchronize());
  return c_.communicator->AllReduceSum(x.data, x.rows * x.cols, x.dtype);
}

void DecoderModel::AddAdapters(const StepInput& input, int64_t layer, LoraTarget target, const TensorView& x,
                               const TensorView& y, int64_t column) {
  if (input.adapter_slots == nullptr) return;
  const LoraWeights& adapters = c_.adapters->Of(layer, target);
  if (adapters.n == 0 || adapters.k == 0) return;  // this rank has no part of the linear
  const TensorView columns = {static_cast<char*>(y.data) + column * SizeOf(y.dtype), y.dtype, y.rows,
                              adapters.n, y.stride};
  LoraAdd(*c_.device, x, adapters, input.adapter_slots, FirstRows(c_.adapters->hidden, x.rows), columns);
}

absl::Status DecoderModel::EmbedTokensAndPositions(const StepInput& input) {
  const int64_t num_tokens = input.batch.num_tokens;
  const TensorView x = FirstRows(c_.act.residual, num_tokens);
  if (c_.weights->project_in.n == 0) {
    RETURN_IF_ERROR(Embed(input, x));
  } else {
    const TensorView embedded = FirstRows(c_.act.embedded, num_tokens);          // f32 [T, embedding_dim]
    const TensorView embedded_act = FirstRows(c_.act.embedded_act, num_tokens);  // act [T, embedding_dim]
    RETURN_IF_ERROR(Embed(input, embedded));
    Activate(*c_.device, embedded, UnaryActivation::kIdentity, embedded_act);
    Linear(*c_.device, embedded_act, c_.weights->project_in, nullptr, x);
  }
  if (!c_.config->family->learned_positions) return absl::OkStatus();
  const TensorView table = {const_cast<float*>(c_.weights->position_table), DataType::kF32,
                            SizeOf(Dim::kPositions, *c_.config), x.cols, x.cols};
  AddPositionEmbedding(*c_.device, input.batch.positions, table, c_.config->family->position_offset, x);
  return absl::OkStatus();
}

absl::Status DecoderModel::Embed(const StepInput& input, const TensorView& out) {
  Embedding(*c_.device, input.token_ids, c_.weights->embedding, c_.shards->vocab.begin, c_.shards->vocab.end,
            out);
  RETURN_IF_ERROR(AllReduce(out));
  const float scale = EmbeddingScale(*c_.config, c_.act.normed.dtype);
  if (scale != 1.0f) ScaleAndCap(*c_.device, out, scale, 0);
  return absl::OkStatus();
}

absl::Status DecoderModel::Attention(int64_t layer, const StepInput& input, const TensorView& normed,
                                     const TensorView& delta) {
  const LayerWeights& w = c_.weights->layers[layer];
  const int64_t num_tokens = input.batch.num_tokens;
  const TensorView heads = FirstRows(c_.act.heads, num_tokens);  // act [T, H D]
  const TensorView qkv = FirstRows(c_.act.qkv, num_tokens);      // sum [T, (H + 2 KV) D]
  const bool has_heads = !c_.shards->heads.empty();
  if (c_.config->latent.rank > 0) {
    const TensorView values = FirstRows(c_.act.latent.values_act, num_tokens);  // act [T, H value]
    if (has_heads) AttendLatent(c_, layer, input, normed);
    RowParallel(*c_.device, values, w.out, w.out_bias, delta);
    return absl::OkStatus();
  }
  if (has_heads) {
    const int64_t q_cols = heads.cols, k_cols = c_.shards->kv_heads.size() * c_.config->head_dim;
    FusedLinear(*c_.device, normed, w.qkv, w.qkv_bias, qkv);
    AddAdapters(input, layer, LoraTarget::kQuery, normed, qkv);
    AddAdapters(input, layer, LoraTarget::kKey, normed, qkv, q_cols);
    AddAdapters(input, layer, LoraTarget::kValue, normed, qkv, q_cols + k_cols);
  }
  if (c_.config->family->qk_norm_wide) RETURN_IF_ERROR(NormAllHeads(w, qkv));
  if (has_heads) Attend(layer, input, qkv, heads);
  RowParallel(*c_.device, heads, w.out, w.out_bias, delta);
  AddAdapters(input, layer, LoraTarget::kOut, heads, delta);
  return absl::OkStatus();
}

void DecoderModel::Attend(int64_t layer, const StepInput& input, const TensorView& qkv,
                          const TensorView& heads) {
  const LayerWeights& w = c_.weights->layers[layer];
  const ModelConfig& config = *c_.config;
  const LayerAttention attention = config.AttentionOf(static_cast<int32_t>(c_.shards->layers.begin + layer));
  const int64_t num_heads = c_.shards->heads.size();
  const bool norms_here = !config.family->qk_norm_wide;
  const double scale = config.attention_scale > 0 ? config.attention_scale
                                                  : 1.0 / std::sqrt(static_cast<double>(config.head_dim));
  const AttentionRule rule{.scale = static_cast<float>(scale),
                           .window = attention.window,
                           .logit_softcap = static_cast<float>(config.attention_softcap),
                           .sinks = w.sinks};
  RopeTable rope = attention.rope == LayerRope::kLocal ? c_.local_rope : c_.rope;
  if (attention.rope == LayerRope::kNone) rope.cos = rope.sin = nullptr;
  QkNormRopeAndCache(*c_.device, qkv, num_heads, norms_here ? w.q_norm : nullptr,
                     norms_here ? w.k_norm : nullptr, config.norm_eps, rope, input.batch, c_.kv_cache[layer]);
  PagedAttention(*c_.device, qkv, num_heads, c_.kv_head_of_head, rule, input.batch, c_.kv_cache[layer],
                 heads);
}

absl::Status DecoderModel::NormAllHeads(const LayerWeights& w, const TensorView& qkv) {
  const int64_t head_dim = c_.config->head_dim;
  const int64_t q_cols = c_.shards->heads.size() * head_dim, k_cols = c_.shards->kv_heads.size() * head_dim;
  const auto columns = [&](int64_t begin, int64_t count) {
    TensorView view = qkv;
    view.data = static_cast<char*>(qkv.data) + begin * SizeOf(qkv.dtype);
    view.cols = count;
    return view;
  };
  const TensorView both = FirstRows(c_.act.squares, qkv.rows);  // f32 [T, 2]
  TensorView q_squares = both, k_squares = both;
  q_squares.cols = k_squares.cols = 1;
  k_squares.data = both.row<float>(0) + 1;
  // A KV head that several ranks hold is counted by one of these.
  const int64_t counted = c_.shards->first_own_kv_head * head_dim;
  SumSquares(*c_.device, columns(0, q_cols), q_squares);
  SumSquares(*c_.device, columns(q_cols + counted, k_cols - counted), k_squares);
  RETURN_IF_ERROR(AllReduce(both));
  const double eps = c_.config->norm_eps;
  RmsNormBySquares(*c_.device, columns(0, q_cols), q_squares, SizeOf(Dim::kQueries, *c_.config), w.q_norm,
                   eps);
  RmsNormBySquares(*c_.device, columns(q_cols, k_cols), k_squares, SizeOf(Dim::kKeysValues, *c_.config),
                   w.k_norm, eps);
  return absl::OkStatus();
}

void DecoderModel::Mlp(int64_t layer, const StepInput& input, const TensorView& normed,
                       const TensorView& delta) {
  const LayerWeights& w = c_.weights->layers[layer];
  if (w.experts.router.n > 0) {
    ExpertTally tally;
    if (c_.expert_load != nullptr)
      tally = {c_.expert_load + layer * c_.shards->experts.size(), input.batch.slot_mapping};
    ExpertsMlp(c_.device, c_.config, &c_.act.experts).Run(w.experts, normed, tally, delta);
    return;
  }
  const TensorView up = FirstRows(c_.act.up, input.batch.num_tokens);       // sum [T, 2 M]; not gated: [T, M]
  const TensorView hidden = FirstRows(c_.act.mlp, input.batch.num_tokens);  // act [T, M]
  if (w.up.n() > 0) {
    FusedLinear(*c_.device, normed, w.up, w.up_bias, up);
    AddAdapters(input, layer, LoraTarget::kGate, normed, up);
    AddAdapters(input, layer, LoraTarget::kUp, normed, up, up.cols - c_.shards->mlp.size());
    if (c_.config->family->gated_mlp) {
      GateAndMul(*c_.device, *c_.config, up, hidden);
    } else {
      Activate(*c_.device, up, OpOf(c_.config->activation), hidden);
    }
  }
  RowParallel(*c_.device, hidden, w.down, w.down_bias, delta);
  AddAdapters(input, layer, LoraTarget::kDown, hidden, delta);
}

TensorView DecoderModel::Project(const TensorView& hidden) {
  if (c_.weights->project_out.n == 0) return hidden;
  const TensorView embedded = FirstRows(c_.act.embedded, hidden.rows);
  const TensorView embedded_act = FirstRows(c_.act.embedded_act, hidden.rows);
  Linear(*c_.device, hidden, c_.weights->project_out, nullptr, embedded);
  Activate(*c_.device, embedded, UnaryActivation::kIdentity, embedded_act);
  return embedded_act;
}

}  // namespace somnus
