#include "worker/runner/linear_tuner.h"

#include "base/log.h"
#include "base/status_macros.h"

namespace somnus {

// The largest sizes come first, because a choice also serves sizes that are a little smaller.
absl::Status LinearTuner::Run(int32_t most_tokens, const std::vector<int32_t>& sizes) {
  if (done_ || c_.device->kind() == DeviceKind::kCpu) return absl::OkStatus();
  done_ = true;
  const Clock::time_point start = Clock::now();
  const Clock::time_point deadline = start + absl::ToChronoNanoseconds(max_time_);
  int64_t choices = TuneLayers(most_tokens, deadline);
  for (auto size = sizes.rbegin(); size != sizes.rend() && Clock::now() < deadline; ++size) {
    if (c_.shards->last_stage) choices += head_.Tune(*size);
    choices += TuneLayers(*size, deadline);
  }
  RETURN_IF_ERROR(c_.device->Synchronize());
  if (choices > 0) {
    LogInfo("measured {} matrix products in {:.2f} s", choices,
            std::chrono::duration<double>(Clock::now() - start).count());
  }
  return absl::OkStatus();
}

// Products that every rank computes alike (an embedding's projection) are left out, because ranks that
// measure apart might choose differently.
int64_t LinearTuner::TuneLayers(int64_t num_tokens, Clock::time_point deadline) const {
  struct Product {
    TensorView x, y;
    const LinearWeight& (*weight)(const LayerWeights& layer);
    const float* LayerWeights::*bias;
  };
  const Activations& a = c_.act;
  using Layer = const LayerWeights&;
  using Weight = const LinearWeight&;
  // Fused weights have several parts only where quantized, and then there is nothing to choose.
  const Product products[] = {
      {a.normed, a.qkv, [](Layer w) -> Weight { return w.qkv.parts[0]; }, &LayerWeights::qkv_bias},
      {a.heads, a.delta, [](Layer w) -> Weight { return w.out; }, &LayerWeights::out_bias},
      {a.normed, a.up, [](Layer w) -> Weight { return w.up.parts[0]; }, &LayerWeights::up_bias},
      {a.mlp, a.delta, [](Layer w) -> Weight { return w.down; }, &LayerWeights::down_bias}};
  const std::vector<LayerWeights>& layers = c_.weights->layers;
  int64_t choices = 0;
  std::vector<LinearWeight> weights;
  for (const Product& product : products) {
    weights.clear();
    for (const LayerWeights& layer : layers) weights.push_back(product.weight(layer));
    if (weights.empty() || weights[0].n == 0 || weights[0].k == 0) continue;  // this rank has none
    if (Clock::now() >= deadline) break;
    choices += TuneLinear(*c_.device, FirstRows(product.x, num_tokens), weights.data(),
                          static_cast<int64_t>(weights.size()), layers[0].*product.bias,
                          FirstRows(product.y, num_tokens));
  }
  return choices;
}

}  // namespace somnus
