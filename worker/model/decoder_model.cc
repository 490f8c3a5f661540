#include "worker/model/decoder_model.h"

#include <cmath>

#include "base/status_macros.h"

namespace somnus {

Activations Activations::Carve(Carver* carver, const ModelConfig& config, const ModelShards& shards,
                               DataType act, DataType sum, int64_t max_tokens) {
  const int64_t head_cols = shards.heads.size() * config.head_dim;
  const int64_t qkv_cols = (shards.heads.size() + 2 * shards.kv_heads.size()) * config.head_dim;
  const int64_t up_cols = (config.architecture == Architecture::kOpt ? 1 : 2) * shards.mlp.size();
  Activations a;
  a.residual = carver->TakeMatrix(DataType::kF32, max_tokens, config.hidden_size);
  a.delta = carver->TakeMatrix(sum, max_tokens, config.hidden_size);
  a.normed = carver->TakeMatrix(act, max_tokens, config.hidden_size);
  a.qkv = carver->TakeMatrix(sum, max_tokens, qkv_cols);
  a.heads = carver->TakeMatrix(act, max_tokens, head_cols);
  a.up = carver->TakeMatrix(sum, max_tokens, up_cols);
  a.mlp = carver->TakeMatrix(act, max_tokens, shards.mlp.size());
  if (config.architecture == Architecture::kOpt && !config.norm_before) {
    a.residual2 = carver->TakeMatrix(DataType::kF32, max_tokens, config.hidden_size);
  }
  if (config.embedding_dim != config.hidden_size) {
    a.embedded = carver->TakeMatrix(DataType::kF32, max_tokens, config.embedding_dim);
    a.embedded_act = carver->TakeMatrix(act, max_tokens, config.embedding_dim);
  }
  return a;
}

std::unique_ptr<DecoderModel> DecoderModel::Create(const ModelContext* context) {
  return context->config->architecture == Architecture::kOpt ? MakeOptModel(context)
                                                             : MakeLlamaModel(context);
}

int64_t DecoderModel::TuneLinears(int64_t num_tokens, std::chrono::steady_clock::time_point deadline) {
  struct Product {
    TensorView x, y;
    LinearWeight LayerWeights::*weight;
    const float* LayerWeights::*bias;
  };
  const Activations& a = c_.act;
  const Product products[] = {{a.normed, a.qkv, &LayerWeights::qkv, &LayerWeights::qkv_bias},
                              {a.heads, a.delta, &LayerWeights::out, &LayerWeights::out_bias},
                              {a.normed, a.up, &LayerWeights::up, &LayerWeights::up_bias},
                              {a.mlp, a.delta, &LayerWeights::down, &LayerWeights::down_bias}};
  const std::vector<LayerWeights>& layers = c_.weights->layers;
  int64_t choices = 0;
  std::vector<LinearWeight> weights;
  for (const Product& product : products) {
    weights.clear();
    for (const LayerWeights& layer : layers) weights.push_back(layer.*product.weight);
    if (weights.empty() || weights[0].n == 0 || weights[0].k == 0) continue;  // this rank has none
    if (std::chrono::steady_clock::now() >= deadline) break;
    choices += TuneLinear(*c_.device, FirstRows(product.x, num_tokens), weights.data(),
                          static_cast<int64_t>(weights.size()), layers[0].*product.bias,
                          FirstRows(product.y, num_tokens));
  }
  return choices;
}

absl::Status DecoderModel::AllReduce(const TensorView& x) {
  if (c_.communicator->world_size() == 1) return absl::OkStatus();
  if (!c_.communicator->stream_ordered()) RETURN_IF_ERROR(c_.device->Synchronize());
  return c_.communicator->AllReduceSum(x.data, x.rows * x.cols, x.dtype);
}

void DecoderModel::RowParallel(const TensorView& x, const LinearWeight& w, const float* bias,
                               const TensorView& y) {
  if (w.k > 0) {
    Linear(*c_.device, x, w, bias, y);
  } else {
    FillZero(*c_.device, y);  // this rank has no columns
  }
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
    const TensorView qkv = FirstRows(c_.act.qkv, num_tokens);  // f32 [T, (H + 2 KV) D]
    const float scale = 1.0f / std::sqrt(static_cast<float>(c_.config->head_dim));
    Linear(*c_.device, normed, w.qkv, w.qkv_bias, qkv);
    QkNormRopeAndCache(*c_.device, qkv, num_heads, w.q_norm, w.k_norm, c_.config->norm_eps, c_.rope,
                       input.batch, c_.kv_cache[layer]);
    PagedAttention(*c_.device, qkv, num_heads, c_.kv_head_of_head, scale, input.batch, c_.kv_cache[layer],
                   heads);
  }
  RowParallel(heads, w.out, w.out_bias, delta);
}

}  // namespace somnus
