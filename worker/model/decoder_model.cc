#include "worker/model/decoder_model.h"

#include <cmath>
#include <utility>

#include "base/status_macros.h"
#include "checkpoint/family.h"

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

}  // namespace

Activations Activations::Carve(Carver* carver, const ModelConfig& config, const ModelShards& shards,
                               DataType act, DataType sum, int64_t max_tokens) {
  const int64_t head_cols = shards.heads.size() * config.head_dim;
  const int64_t qkv_cols = (shards.heads.size() + 2 * shards.kv_heads.size()) * config.head_dim;
  const int64_t up_cols = (config.family->gated_mlp ? 2 : 1) * shards.mlp.size();
  Activations a;
  a.residual = carver->TakeMatrix(DataType::kF32, max_tokens, config.hidden_size);
  a.delta = carver->TakeMatrix(sum, max_tokens, config.hidden_size);
  a.normed = carver->TakeMatrix(act, max_tokens, config.hidden_size);
  a.qkv = carver->TakeMatrix(sum, max_tokens, qkv_cols);
  a.heads = carver->TakeMatrix(act, max_tokens, head_cols);
  a.up = carver->TakeMatrix(sum, max_tokens, up_cols);
  a.mlp = carver->TakeMatrix(act, max_tokens, shards.mlp.size());
  if (!config.norm_before) a.residual2 = carver->TakeMatrix(DataType::kF32, max_tokens, config.hidden_size);
  if (config.embedding_dim != config.hidden_size) {
    a.embedded = carver->TakeMatrix(DataType::kF32, max_tokens, config.embedding_dim);
    a.embedded_act = carver->TakeMatrix(act, max_tokens, config.embedding_dim);
  }
  return a;
}

absl::StatusOr<TensorView> DecoderModel::Forward(const StepInput& input) {
  RETURN_IF_ERROR(EmbedTokensAndPositions(input));
  ASSIGN_OR_RETURN(const TensorView hidden, c_.config->norm_before ? RunPreNorm(input) : RunPostNorm(input));
  return Project(hidden);
}

absl::StatusOr<TensorView> DecoderModel::RunPreNorm(const StepInput& input) {
  const int64_t num_tokens = input.batch.num_tokens;
  const TensorView x = FirstRows(c_.act.residual, num_tokens);     // f32 [T, hidden]
  const TensorView delta = FirstRows(c_.act.delta, num_tokens);    // sum [T, hidden]
  const TensorView normed = FirstRows(c_.act.normed, num_tokens);  // act [T, hidden]
  TensorView pending = {};  // the addend of the last block; nothing before the first block
  for (size_t layer = 0; layer < c_.weights->layers.size(); ++layer) {
    const LayerWeights& w = c_.weights->layers[layer];
    RETURN_IF_ERROR(AddAndNorm(x, pending, w.attention_norm, w.attention_norm_bias, normed));
    Attention(static_cast<int64_t>(layer), input, normed, delta);
    RETURN_IF_ERROR(AddAndNorm(x, delta, w.mlp_norm, w.mlp_norm_bias, normed));
    Mlp(w, input, normed, delta);
    pending = delta;
  }
  if (c_.config->final_norm) {
    RETURN_IF_ERROR(AddAndNorm(x, pending, c_.weights->final_norm, c_.weights->final_norm_bias, normed));
  } else {
    RETURN_IF_ERROR(AllReduce(pending));
    Add(*c_.device, x, pending);
    Activate(*c_.device, x, UnaryActivation::kIdentity, normed);
  }
  return normed;
}

// The stream itself is normalized, so the stream moves between two buffers. Only LayerNorm occurs here: no
// known post-norm model has RMSNorm.
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
    Attention(static_cast<int64_t>(layer), input, x_act, delta);
    RETURN_IF_ERROR(add_and_norm(w.attention_norm, w.attention_norm_bias));
    Mlp(w, input, x_act, delta);
    RETURN_IF_ERROR(add_and_norm(w.mlp_norm, w.mlp_norm_bias));
  }
  return x_act;
}

absl::Status DecoderModel::AddAndNorm(const TensorView& x, const TensorView& addend, const float* weight,
                                      const float* bias, const TensorView& out) {
  const double eps = c_.config->norm_eps;
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

absl::Status DecoderModel::AllReduce(const TensorView& x) {
  if (c_.communicator->world_size() == 1) return absl::OkStatus();
  if (!c_.communicator->stream_ordered()) RETURN_IF_ERROR(c_.device->Synchronize());
  return c_.communicator->AllReduceSum(x.data, x.rows * x.cols, x.dtype);
}

void DecoderModel::FusedLinear(const TensorView& x, const FusedWeight& w, const float* bias,
                               const TensorView& y) {
  int64_t begin = 0;
  for (const LinearWeight& part : w.parts) {
    if (part.n == 0) continue;
    const TensorView columns = {static_cast<char*>(y.data) + begin * SizeOf(y.dtype), y.dtype, y.rows, part.n,
                                y.stride};
    Linear(*c_.device, x, part, bias == nullptr ? nullptr : bias + begin, columns);
    begin += part.n;
  }
}

void DecoderModel::RowParallel(const TensorView& x, const LinearWeight& w, const float* bias,
                               const TensorView& y) {
  if (w.k > 0) {
    Linear(*c_.device, x, w, bias, y);
  } else {
    FillZero(*c_.device, y);  // this rank has no columns
  }
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
  return AllReduce(out);
}

void DecoderModel::Attention(int64_t layer, const StepInput& input, const TensorView& normed,
                             const TensorView& delta) {
  const LayerWeights& w = c_.weights->layers[layer];
  const int64_t num_tokens = input.batch.num_tokens, num_heads = c_.shards->heads.size();
  const TensorView heads = FirstRows(c_.act.heads, num_tokens);  // act [T, H D]
  if (num_heads > 0) {
    const TensorView qkv = FirstRows(c_.act.qkv, num_tokens);  // sum [T, (H + 2 KV) D]
    const AttentionRule rule{.scale = 1.0f / std::sqrt(static_cast<float>(c_.config->head_dim))};
    FusedLinear(normed, w.qkv, w.qkv_bias, qkv);
    QkNormRopeAndCache(*c_.device, qkv, num_heads, w.q_norm, w.k_norm, c_.config->norm_eps, c_.rope,
                       input.batch, c_.kv_cache[layer]);
    PagedAttention(*c_.device, qkv, num_heads, c_.kv_head_of_head, rule, input.batch, c_.kv_cache[layer],
                   heads);
  }
  RowParallel(heads, w.out, w.out_bias, delta);
}

void DecoderModel::Mlp(const LayerWeights& w, const StepInput& input, const TensorView& normed,
                       const TensorView& delta) {
  const TensorView up = FirstRows(c_.act.up, input.batch.num_tokens);       // sum [T, 2 M]; not gated: [T, M]
  const TensorView hidden = FirstRows(c_.act.mlp, input.batch.num_tokens);  // act [T, M]
  if (w.up.n() > 0) {
    FusedLinear(normed, w.up, w.up_bias, up);
    if (c_.config->family->gated_mlp) {
      SiluAndMul(*c_.device, up, hidden);
    } else {
      Activate(*c_.device, up, OpOf(c_.config->activation), hidden);
    }
  }
  RowParallel(hidden, w.down, w.down_bias, delta);
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
