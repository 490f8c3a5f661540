// Mixtures of experts but for the products: the choice of experts, the order of rows, the weighted sum. Small
// beside the weights of experts; nothing waits for the host, and grids depend on the number of tokens alone,
// so that graphs can be captured.

#include <cstdint>

#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/ptx.h"
#include "kernels/cuda/rows_plan.h"
#include "kernels/cuda_types.h"

namespace somnus::SOMNUS_CUDA_NAMESPACE {
namespace {

constexpr int kRouteWarps = 4;  // of a block; each has a token
constexpr int kLanes = 32;

// Behind this struct: [kRouteWarps][experts] scores, a row for each warp, then as many choices.
struct alignas(128) RouteShared {
  float groups[kRouteWarps][kMaxExperts / 2];
};

struct RouteArgs {
  const float* logits;
  int64_t logits_stride;
  const float* correction;
  int32_t* ids;
  float* weights;
  int32_t num_tokens, num_experts, per_token;
  int32_t sigmoid, renormalize;
  float scale;
  int32_t num_groups, top_groups;
};

struct Best {
  float value;
  int index;
};

// The largest of values[0, n) and its smallest index, in all lanes; `otherwise` where no value is above -inf.
__device__ __forceinline__ Best WarpBest(const float* values, int n, int otherwise) {
  Best best{-INFINITY, n};
  for (int i = LaneId(); i < n; i += kLanes) {
    if (values[i] > best.value) best = {values[i], i};
  }
  for (int lanes = kLanes / 2; lanes > 0; lanes /= 2) {
    const float value = ShflXor(best.value, lanes);
    const int index = ShflXor(best.index, lanes);
    if (value > best.value || (value == best.value && index < best.index)) best = {value, index};
  }
  if (best.index == n) best.index = otherwise;
  return best;
}

// Scores of a token's experts from its logits.
__device__ __forceinline__ void Score(const RouteArgs& args, const float* logits, float* scores) {
  if (args.sigmoid != 0) {
    for (int e = LaneId(); e < args.num_experts; e += kLanes) scores[e] = 1.0f / (1.0f + expf(-logits[e]));
    return;
  }
  float max = -INFINITY, sum = 0;
  for (int e = LaneId(); e < args.num_experts; e += kLanes) max = fmaxf(max, logits[e]);
  for (int lanes = kLanes / 2; lanes > 0; lanes /= 2) max = fmaxf(max, ShflXor(max, lanes));
  for (int e = LaneId(); e < args.num_experts; e += kLanes) {
    scores[e] = expf(logits[e] - max);
    sum += scores[e];
  }
  for (int lanes = kLanes / 2; lanes > 0; lanes /= 2) sum += ShflXor(sum, lanes);
  for (int e = LaneId(); e < args.num_experts; e += kLanes) scores[e] /= sum;
}

// Makes the choices of all groups but the best -inf. sums: [num_groups].
__device__ __forceinline__ void DropGroups(const RouteArgs& args, float* choice, float* sums) {
  const int size = args.num_experts / args.num_groups;
  for (int g = LaneId(); g < args.num_groups; g += kLanes) {
    float best = -INFINITY, second = -INFINITY;
    for (int e = g * size; e < (g + 1) * size; ++e) {
      second = fmaxf(second, fminf(best, choice[e]));
      best = fmaxf(best, choice[e]);
    }
    sums[g] = best + second;
  }
  // The sum of a group that is kept becomes -inf, so that the next best is found. A lane reads and writes the
  // sums of its own groups alone, here and in WarpBest.
  uint32_t kept[kMaxExperts / 2 / kLanes] = {};
  for (int i = 0; i < args.top_groups; ++i) {
    const int group = WarpBest(sums, args.num_groups, i).index;
    if (group % kLanes == LaneId()) sums[group] = -INFINITY;
#pragma unroll
    for (int part = 0; part < kMaxExperts / 2 / kLanes; ++part) {
      if (group / kLanes == part && group % kLanes == LaneId()) kept[part] = 1;
    }
  }
#pragma unroll
  for (int part = 0; part < kMaxExperts / 2 / kLanes; ++part) {
    const int group = part * kLanes + LaneId();
    if (group >= args.num_groups || kept[part] != 0) continue;
    for (int e = group * size; e < (group + 1) * size; ++e) choice[e] = -INFINITY;
  }
  SyncWarp();
}

// A warp chooses a token's experts.
__global__ void __launch_bounds__(kRouteWarps* kLanes) RouteKernel(RouteArgs args) {
  auto& shared = SharedStorage<RouteShared>();
  GridDependencyWait();
  const int warp = WarpId(), token = static_cast<int>(blockIdx.x) * kRouteWarps + warp;
  if (token >= args.num_tokens) return;
  float* const scores = reinterpret_cast<float*>(&shared + 1) + 2 * warp * args.num_experts;
  float* const choice = scores + args.num_experts;
  Score(args, args.logits + token * args.logits_stride, scores);
  for (int e = LaneId(); e < args.num_experts; e += kLanes)
    choice[e] = args.correction == nullptr ? scores[e] : scores[e] + args.correction[e];
  SyncWarp();
  if (args.num_groups > 1) DropGroups(args, choice, shared.groups[warp]);
  float sum = 0, own = 0;  // `own`: of the lane's place among the token's experts
  int own_id = 0;
  for (int i = 0; i < args.per_token; ++i) {
    const int best = WarpBest(choice, args.num_experts, i).index;
    SyncWarp();
    if (LaneId() == 0) choice[best] = -INFINITY;
    SyncWarp();
    const float score = scores[best];
    sum += score;
    if (i == LaneId()) {
      own = score;
      own_id = best;
    }
  }
  if (LaneId() >= args.per_token) return;
  const float divisor = args.renormalize != 0 ? sum + (args.sigmoid != 0 ? 1e-20f : 0.0f) : 1.0f;
  args.ids[token * args.per_token + LaneId()] = own_id;
  args.weights[token * args.per_token + LaneId()] = own / divisor * args.scale;
}

constexpr int kSortThreads = 256;
constexpr int kSortWarps = kSortThreads / kLanes;

struct SortShared {
  int32_t counts[kMaxExperts];  // pairs of each of the rank's experts
  int32_t warps[kSortWarps];
  int32_t rows, tiles;  // of the experts before the block's
  uint32_t load;        // tokens of the block's expert, without padded rows
};

__device__ __forceinline__ int TilesOf(int rows) {
  return (rows + static_cast<int>(kExpertTileRows) - 1) / static_cast<int>(kExpertTileRows);
}

// The number of threads before this one whose predicate holds; `total`: of all threads.
__device__ __forceinline__ int CountBefore(bool predicate, SortShared& shared, int& total) {
  const uint32_t votes = Ballot(predicate);
  if (LaneId() == 0) shared.warps[WarpId()] = PopCount(votes);
  __syncthreads();
  int before = PopCount(votes & ((1u << LaneId()) - 1));
  total = 0;
  for (int w = 0; w < kSortWarps; ++w) {
    before += w < WarpId() ? shared.warps[w] : 0;
    total += shared.warps[w];
  }
  __syncthreads();
  return before;
}

// Block e sorts the pairs of the rank's expert e: by token, so that nothing depends on the order of threads.
// One further block marks the pairs of other ranks' experts, and the tiles that are not needed.
__global__ void __launch_bounds__(kSortThreads) SortKernel(ExpertRouting routing, int32_t max_tiles) {
  auto& shared = SharedStorage<SortShared>();
  GridDependencyWait();
  const int pairs = static_cast<int>(routing.num_tokens * routing.per_token);
  const int experts = static_cast<int>(routing.num_experts), first = static_cast<int>(routing.first_expert);
  const int block = static_cast<int>(blockIdx.x), thread = static_cast<int>(threadIdx.x);
  for (int e = thread; e < experts; e += kSortThreads) shared.counts[e] = 0;
  if (thread == 0) {
    shared.rows = shared.tiles = 0;
    shared.load = 0;
  }
  __syncthreads();
  for (int p = thread; p < pairs; p += kSortThreads) {
    const int expert = routing.ids[p] - first;
    if (expert >= 0 && expert < experts) AtomicAdd(&shared.counts[expert], 1);
  }
  __syncthreads();
  for (int e = thread; e < block; e += kSortThreads) {
    AtomicAdd(&shared.rows, shared.counts[e]);
    AtomicAdd(&shared.tiles, TilesOf(shared.counts[e]));
  }
  __syncthreads();
  const int begin = shared.rows, first_tile = shared.tiles;
  if (thread == 0) routing.begin[block] = begin;
  if (block == experts) {
    for (int i = first_tile + thread; i < max_tiles; i += kSortThreads) routing.tiles[2 * i] = -1;
    for (int p = thread; p < pairs; p += kSortThreads) {
      const int expert = routing.ids[p] - first;
      if (expert < 0 || expert >= experts) routing.row_of[p] = -1;
    }
    return;
  }
  for (int i = thread; i < TilesOf(shared.counts[block]); i += kSortThreads) {
    routing.tiles[2 * (first_tile + i)] = block;
    routing.tiles[2 * (first_tile + i) + 1] = begin + i * static_cast<int>(kExpertTileRows);
  }
  int row = begin;
  for (int p = 0; p < pairs; p += kSortThreads) {
    const int pair = p + thread;
    const bool mine = pair < pairs && routing.ids[pair] - first == block;
    int total;
    const int before = CountBefore(mine, shared, total);
    if (mine) {
      const int token = pair / static_cast<int>(routing.per_token);
      routing.row_of[pair] = row + before;
      routing.token_of[row + before] = token;
      if (routing.load != nullptr && routing.slots[token] != 0) AtomicAdd(&shared.load, 1u);
    }
    row += total;
  }
  if (routing.load == nullptr) return;
  __syncthreads();
  if (thread == 0) routing.load[block] = shared.load + (routing.adds_load ? routing.load[block] : 0);
}

constexpr int kCombineThreads = 128;

struct CombineArgs {
  const void* x;
  const int32_t* row_of;
  const float* weights;
  const void* shared;  // or nullptr
  const float* mix;    // or nullptr
  void* out;
  int64_t x_stride, shared_stride, mix_stride, out_stride;
  int32_t cols, per_token;
};

// A block makes some columns of a token's sum.
template <typename T, typename Out>
__global__ void __launch_bounds__(kCombineThreads) CombineKernel(CombineArgs args) {
  GridDependencyWait();
  const int64_t token = blockIdx.y;
  const int column = static_cast<int>(blockIdx.x) * kCombineThreads + static_cast<int>(threadIdx.x);
  if (column >= args.cols) return;
  float sum = 0;
  for (int64_t i = token * args.per_token; i < (token + 1) * args.per_token; ++i) {
    const int row = args.row_of[i];
    if (row >= 0)
      sum = fmaf(args.weights[i], ToFloat(static_cast<const T*>(args.x)[row * args.x_stride + column]), sum);
  }
  if (args.shared != nullptr) {
    const float mix = args.mix == nullptr ? 1.0f : 1.0f / (1.0f + expf(-args.mix[token * args.mix_stride]));
    sum = fmaf(mix, ToFloat(static_cast<const Out*>(args.shared)[token * args.shared_stride + column]), sum);
  }
  static_cast<Out*>(args.out)[token * args.out_stride + column] = FromFloat<Out>(sum);
}

}  // namespace

void RouteExperts(Device& device, const TensorView& logits, const float* correction, const RouterRule& rule,
                  const ExpertRouting& routing) {
  CudaDevice& cuda = AsCuda(device);
  const RouteArgs args{.logits = logits.row<float>(0),
                       .logits_stride = logits.stride,
                       .correction = correction,
                       .ids = routing.ids,
                       .weights = routing.weights,
                       .num_tokens = static_cast<int32_t>(logits.rows),
                       .num_experts = static_cast<int32_t>(logits.cols),
                       .per_token = static_cast<int32_t>(rule.per_token),
                       .sigmoid = rule.sigmoid,
                       .renormalize = rule.renormalize,
                       .scale = rule.scale,
                       .num_groups = static_cast<int32_t>(rule.num_groups),
                       .top_groups = static_cast<int32_t>(rule.top_groups)};
  Launch(cuda,
         {.grid = dim3(static_cast<unsigned>(CeilDiv(logits.rows, kRouteWarps))),
          .block = dim3(kRouteWarps * kLanes),
          .shared_bytes = static_cast<int64_t>(sizeof(RouteShared)) +
                          2 * kRouteWarps * logits.cols * static_cast<int64_t>(sizeof(float))},
         RouteKernel, args);
  Launch(cuda,
         {.grid = dim3(static_cast<unsigned>(routing.num_experts + 1)),
          .block = dim3(kSortThreads),
          .shared_bytes = sizeof(SortShared)},
         SortKernel, routing, static_cast<int32_t>(ExpertTiles(routing.NumPairs(), routing.num_experts)));
}

void CombineExperts(Device& device, const TensorView& x, const ExpertRouting& routing,
                    const TensorView& shared, const TensorView& mix, const TensorView& out) {
  const CombineArgs args{.x = x.data,
                         .row_of = routing.row_of,
                         .weights = routing.weights,
                         .shared = shared.data,
                         .mix = static_cast<const float*>(mix.data),
                         .out = out.data,
                         .x_stride = x.stride,
                         .shared_stride = shared.stride,
                         .mix_stride = mix.stride,
                         .out_stride = out.stride,
                         .cols = static_cast<int32_t>(out.cols),
                         .per_token = static_cast<int32_t>(routing.per_token)};
  const LaunchConfig config{.grid = dim3(static_cast<unsigned>(CeilDiv(out.cols, kCombineThreads)),
                                         static_cast<unsigned>(out.rows)),
                            .block = dim3(kCombineThreads)};
  DispatchAct(x.dtype, [&](auto from) {
    using T = typename decltype(from)::type;
    DispatchAct(out.dtype, [&](auto to) {
      using Out = typename decltype(to)::type;
      // The sums' type, or f32 of either.
      if constexpr (std::is_same_v<T, Out> || std::is_same_v<T, float> || std::is_same_v<Out, float>)
        Launch(AsCuda(device), config, CombineKernel<T, Out>, args);
    });
  });
}

}  // namespace somnus::SOMNUS_CUDA_NAMESPACE
