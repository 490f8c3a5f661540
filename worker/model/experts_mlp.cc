#include "worker/model/experts_mlp.h"

#include <algorithm>

#include "worker/model/linears.h"

namespace somnus {
namespace {

static_assert(kMaxRoutedExperts <= kMaxExperts && kMaxRoutedPerToken <= kMaxExpertsPerToken);

RouterRule RuleOf(const ExpertsConfig& config) {
  return {.per_token = config.per_token,
          .sigmoid = config.score == RouterScore::kSigmoid,
          .renormalize = config.renormalize,
          .scale = static_cast<float>(config.scale),
          .num_groups = config.num_groups,
          .top_groups = config.top_groups};
}

TensorView Rows(const TensorView& view, int64_t begin, int64_t count) {
  TensorView rows = view;
  rows.data = static_cast<char*>(view.data) + begin * view.stride * SizeOf(view.dtype);
  rows.rows = count;
  return rows;
}

ExpertRouting CarveRouting(Carver* carver, int64_t max_tokens, const ExpertsConfig& config,
                           const Range& experts) {
  ExpertRouting routing;
  routing.num_tokens = max_tokens;
  routing.per_token = config.per_token;
  routing.first_expert = experts.begin;
  routing.num_experts = experts.size();
  const int64_t pairs = routing.NumPairs();
  routing.ids = carver->Take<int32_t>(pairs);
  routing.weights = carver->Take<float>(pairs);
  routing.begin = carver->Take<int32_t>(routing.num_experts + 1);
  routing.token_of = carver->Take<int32_t>(pairs);
  routing.row_of = carver->Take<int32_t>(pairs);
  routing.tiles = carver->Take<int32_t>(2 * ExpertTiles(pairs, routing.num_experts));
  return routing;
}

}  // namespace

ExpertActivations ExpertActivations::Carve(Carver* carver, const ModelConfig& config,
                                           const ModelShards& shards, DataType act, DataType sum,
                                           int64_t max_tokens) {
  ExpertActivations a;
  const ExpertsConfig& experts = config.experts;
  if (experts.num_experts == 0) return a;
  const int64_t tokens = std::min(max_tokens, kMaxTokens), pairs = tokens * experts.per_token;
  a.logits = carver->TakeMatrix(DataType::kF32, tokens, experts.num_experts);
  a.routing = CarveRouting(carver, tokens, experts, shards.experts);
  a.up = carver->TakeMatrix(sum, pairs, 2 * shards.expert_mlp.size());
  a.hidden = carver->TakeMatrix(act, pairs, shards.expert_mlp.size());
  a.down = carver->TakeMatrix(sum, pairs, config.hidden_size);
  a.shared_up = carver->TakeMatrix(sum, tokens, 2 * shards.shared_mlp.size());
  a.shared = carver->TakeMatrix(act, tokens, shards.shared_mlp.size());
  if (experts.shared_gate) a.mix = carver->TakeMatrix(DataType::kF32, tokens, 1);
  return a;
}

void ExpertsMlp::Run(const ExpertsWeights& w, const TensorView& normed, const ExpertTally& tally,
                     const TensorView& delta) {
  for (int64_t begin = 0; begin < normed.rows; begin += ExpertActivations::kMaxTokens) {
    const int64_t count = std::min(normed.rows - begin, ExpertActivations::kMaxTokens);
    ExpertRouting routing = act_.routing;
    routing.num_tokens = count;
    if (tally.load != nullptr) {
      routing.load = tally.load;
      routing.adds_load = begin > 0;
      routing.slots = tally.slots + begin;
    }
    RunPiece(w, Rows(normed, begin, count), routing, Rows(delta, begin, count));
  }
}

void ExpertsMlp::RunPiece(const ExpertsWeights& w, const TensorView& normed, const ExpertRouting& routing,
                          const TensorView& delta) {
  const int64_t tokens = normed.rows;
  const TensorView logits = FirstRows(act_.logits, tokens);
  Linear(device_, normed, w.router, w.router_bias, logits);
  RouteExperts(device_, logits, w.correction, RuleOf(config_.experts), routing);
  const TensorView down = FirstRows(act_.down, routing.NumPairs());
  if (routing.num_experts > 0) {
    const TensorView up = FirstRows(act_.up, routing.NumPairs());
    const TensorView hidden = FirstRows(act_.hidden, routing.NumPairs());
    MultiplyUp(w, normed, routing, up);
    GateAndMul(device_, config_, up, hidden);
    ExpertsLinear(device_, hidden, ExpertInput::kRows, routing, w.down, {w.down_bias, down.cols}, down);
  }
  const TensorView shared = RunShared(w, normed, delta);
  TensorView mix = {};
  if (w.shared_mix.n > 0) {
    mix = FirstRows(act_.mix, tokens);
    Linear(device_, normed, w.shared_mix, nullptr, mix);
  }
  CombineExperts(device_, down, routing, shared, mix, delta);
}

void ExpertsMlp::MultiplyUp(const ExpertsWeights& w, const TensorView& normed, const ExpertRouting& routing,
                            const TensorView& up) {
  int64_t begin = 0;
  for (const ExpertWeight& part : w.up) {
    if (part.count == 0) continue;
    TensorView columns = up;
    columns.data = static_cast<char*>(up.data) + begin * SizeOf(up.dtype);
    columns.cols = part.first.n;
    const float* const bias = w.up_bias == nullptr ? nullptr : w.up_bias + begin;
    ExpertsLinear(device_, normed, ExpertInput::kTokens, routing, part, {bias, up.cols}, columns);
    begin += part.first.n;
  }
}

TensorView ExpertsMlp::RunShared(const ExpertsWeights& w, const TensorView& normed, const TensorView& delta) {
  if (w.shared_up.n() == 0) return {};
  const TensorView up = FirstRows(act_.shared_up, normed.rows);
  const TensorView hidden = FirstRows(act_.shared, normed.rows);
  FusedLinear(device_, normed, w.shared_up, nullptr, up);
  GateAndMul(device_, config_, up, hidden);
  RowParallel(device_, hidden, w.shared_down, nullptr, delta);
  return delta;
}

}  // namespace somnus
