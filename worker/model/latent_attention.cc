#include "worker/model/latent_attention.h"

#include "kernels/ops.h"
#include "worker/model/decoder_model.h"

namespace somnus {
namespace {

// The epsilon of norms between the halves of a projection, in every configuration: the default of
// transformers' DeepseekV3RMSNorm.
constexpr double kInnerEps = 1e-6;

// Columns [begin, begin + count).
TensorView Columns(TensorView view, int64_t begin, int64_t count) {
  view.data = static_cast<char*>(view.data) + begin * SizeOf(view.dtype);
  view.cols = count;
  return view;
}

// y's columns [h * y_step, + weights[h].n) = x's columns [h * x_step, + weights[h].k) * weights[h]^T.
void HeadProducts(Device& device, const TensorView& x, int64_t x_step,
                  const std::vector<LinearWeight>& weights, const TensorView& y, int64_t y_step) {
  for (size_t h = 0; h < weights.size(); ++h) {
    const auto at = static_cast<int64_t>(h);
    Linear(device, Columns(x, at * x_step, weights[h].k), weights[h], nullptr,
           Columns(y, at * y_step, weights[h].n));
  }
}

}  // namespace

LatentActivations LatentActivations::Carve(Carver* carver, const ModelConfig& config, int64_t num_heads,
                                           DataType act, DataType sum, int64_t max_tokens) {
  const LatentConfig& latent = config.latent;
  const int64_t query_cols = num_heads * (latent.nope + latent.rope), value_cols = num_heads * latent.value;
  LatentActivations a;
  if (latent.query_rank > 0) {
    a.query_down = carver->TakeMatrix(sum, max_tokens, latent.query_rank);
    a.query_down_act = carver->TakeMatrix(act, max_tokens, latent.query_rank);
  }
  a.queries = carver->TakeMatrix(sum, max_tokens, query_cols);
  a.queries_act = carver->TakeMatrix(act, max_tokens, query_cols);
  a.row = carver->TakeMatrix(sum, max_tokens, latent.rank + latent.rope);
  a.values = carver->TakeMatrix(sum, max_tokens, value_cols);
  a.values_act = carver->TakeMatrix(act, max_tokens, value_cols);
  return a;
}

void AttendLatent(const ModelContext& c, int64_t layer, const StepInput& input, const TensorView& normed) {
  Device& device = *c.device;
  const ModelConfig& config = *c.config;
  const LatentConfig& latent = config.latent;
  const LatentWeights& w = c.weights->layers[layer].latent;
  const KvCacheView& cache = c.kv_cache[layer];
  const auto rows = [&](const TensorView& view) { return FirstRows(view, input.batch.num_tokens); };
  const int64_t num_heads = c.shards->heads.size(), width = config.head_dim;
  TensorView from = normed;
  if (w.query_down.n > 0) {
    from = rows(c.act.latent.query_down_act);
    Linear(device, normed, w.query_down, w.query_down_bias, rows(c.act.latent.query_down));
    RmsNorm(device, rows(c.act.latent.query_down), w.query_norm, kInnerEps);
    Activate(device, rows(c.act.latent.query_down), UnaryActivation::kIdentity, from);
  }
  const TensorView queries = rows(c.act.latent.queries), queries_act = rows(c.act.latent.queries_act);
  const TensorView row = rows(c.act.latent.row), values = rows(c.act.latent.values);
  const TensorView lifted = Columns(rows(c.act.qkv), 0, num_heads * width);  // sum [T, H D]
  const TensorView heads = rows(c.act.heads);                                // act [T, H D]
  Linear(device, from, w.queries, nullptr, queries);
  Linear(device, normed, w.row, w.row_bias, row);
  LatentRopeAndCache(device, row, w.norm, kInnerEps, queries, num_heads,
                     {latent.nope, latent.rope, latent.rank, latent.interleaved}, c.rope, input.batch, cache,
                     lifted);
  Activate(device, queries, UnaryActivation::kIdentity, queries_act);
  HeadProducts(device, queries_act, latent.nope + latent.rope, w.keys, lifted, width);
  PagedAttention(device, lifted, num_heads, c.kv_head_of_head,
                 {.scale = static_cast<float>(config.attention_scale)}, input.batch, cache, heads);
  HeadProducts(device, heads, width, w.values, values, latent.value);
  Activate(device, values, UnaryActivation::kIdentity, rows(c.act.latent.values_act));
}

}  // namespace somnus
