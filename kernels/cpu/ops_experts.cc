// Mixtures of experts: the choice of experts, and products with the rows of each expert. The arithmetic of
// the products is Linear's, so a row has the same bits whichever rows the other experts have.

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/linear_input.h"
#include "kernels/cpu/workspace.h"
#include "kernels/ops.h"

namespace somnus::cpu {
namespace {

// The best of values[0, n) that is not taken; the smaller index among equals, and the first where none is
// comparable.
int64_t BestOf(const float* values, const bool* taken, int64_t n) {
  int64_t best = -1;
  for (int64_t i = 0; i < n; ++i) {
    if (!taken[i] && (best < 0 || values[i] > values[best])) best = i;
  }
  return best;
}

// Marks the experts of all groups but the best as taken. choice: [E].
void DropGroups(const RouterRule& rule, const float* choice, int64_t num_experts, bool* taken) {
  const int64_t size = num_experts / rule.num_groups;
  float sums[kMaxExperts];
  bool kept[kMaxExperts] = {};
  for (int64_t g = 0; g < rule.num_groups; ++g) {
    float best = -INFINITY, second = -INFINITY;
    for (int64_t e = g * size; e < (g + 1) * size; ++e) {
      const float value = choice[e];
      if (value > best) {
        second = best;
        best = value;
      } else if (value > second) {
        second = value;
      }
    }
    sums[g] = best + second;
  }
  for (int64_t i = 0; i < rule.top_groups; ++i) kept[BestOf(sums, kept, rule.num_groups)] = true;
  for (int64_t e = 0; e < num_experts; ++e) taken[e] = !kept[e / size];
}

// Chooses the experts of a token, and their weights. logits: [E].
void RouteToken(const KernelTable& kernels, const float* logits, const float* correction, int64_t num_experts,
                const RouterRule& rule, int32_t* ids, float* weights) {
  float scores[kMaxExperts], choice[kMaxExperts];
  bool taken[kMaxExperts] = {};
  if (rule.sigmoid) {
    for (int64_t e = 0; e < num_experts; ++e) scores[e] = 1.0f / (1.0f + std::exp(-logits[e]));
  } else {
    kernels.exp_minus(logits, num_experts, *std::max_element(logits, logits + num_experts), scores);
    float sum = 0;
    for (int64_t e = 0; e < num_experts; ++e) sum += scores[e];
    for (int64_t e = 0; e < num_experts; ++e) scores[e] /= sum;
  }
  for (int64_t e = 0; e < num_experts; ++e)
    choice[e] = correction == nullptr ? scores[e] : scores[e] + correction[e];
  if (rule.num_groups > 1) DropGroups(rule, choice, num_experts, taken);
  float sum = 0;
  for (int64_t i = 0; i < rule.per_token; ++i) {
    const int64_t best = BestOf(choice, taken, num_experts);
    taken[best] = true;
    ids[i] = static_cast<int32_t>(best);
    weights[i] = scores[best];
    sum += weights[i];
  }
  // A sum of sigmoids may be 0.
  const float divisor = rule.renormalize ? sum + (rule.sigmoid ? 1e-20f : 0.0f) : 1.0f;
  for (int64_t i = 0; i < rule.per_token; ++i) weights[i] = weights[i] / divisor * rule.scale;
}

// Fills begin, token_of and row_of from ids: a counting sort.
void SortPairs(const ExpertRouting& routing) {
  const int64_t pairs = routing.NumPairs();
  int32_t* const begin = routing.begin;
  const auto local = [&](int64_t pair) { return routing.ids[pair] - routing.first_expert; };
  const auto is_here = [&](int64_t expert) { return expert >= 0 && expert < routing.num_experts; };
  std::fill_n(begin, routing.num_experts + 1, 0);
  for (int64_t p = 0; p < pairs; ++p) {
    if (is_here(local(p))) ++begin[local(p) + 1];
  }
  for (int64_t e = 0; e < routing.num_experts; ++e) begin[e + 1] += begin[e];
  // Where the next row of each expert goes.
  int32_t next[kMaxExperts];
  std::copy_n(begin, routing.num_experts, next);
  for (int64_t p = 0; p < pairs; ++p) {
    const int64_t expert = local(p);
    routing.row_of[p] = is_here(expert) ? next[expert]++ : -1;
    if (routing.row_of[p] >= 0)
      routing.token_of[routing.row_of[p]] = static_cast<int32_t>(p / routing.per_token);
  }
}

// Counts the tokens of each expert, as ExpertRouting::load.
void CountLoad(const ExpertRouting& routing) {
  if (!routing.adds_load) std::fill_n(routing.load, routing.num_experts, 0);
  for (int64_t e = 0; e < routing.num_experts; ++e) {
    const int32_t* const tokens = routing.token_of;
    routing.load[e] +=
        static_cast<uint32_t>(std::count_if(tokens + routing.begin[e], tokens + routing.begin[e + 1],
                                            [&](int32_t token) { return routing.slots[token] != 0; }));
  }
}

// A product's blocks of rows: each of one expert, in order.
struct RowBlocks {
  const int32_t* begin;  // [num_experts + 1] of the routing
  int32_t* first;        // [num_experts + 1]: the number of an expert's first block
  int64_t num_experts;
  int64_t max_rows = 0;  // of an expert
  int64_t active = 0;    // experts that have rows

  RowBlocks(const ExpertRouting& routing, int64_t block_rows, char* memory)
      : begin(routing.begin), first(reinterpret_cast<int32_t*>(memory)), num_experts(routing.num_experts) {
    first[0] = 0;
    for (int64_t e = 0; e < num_experts; ++e) {
      const int64_t rows = begin[e + 1] - begin[e];
      first[e + 1] = first[e] + static_cast<int32_t>((rows + block_rows - 1) / block_rows);
      max_rows = std::max(max_rows, rows);
      active += rows > 0 ? 1 : 0;
    }
  }
  int64_t count() const { return first[num_experts]; }
  int64_t ExpertOf(int64_t block) const {
    return std::upper_bound(first, first + num_experts + 1, static_cast<int32_t>(block)) - first - 1;
  }
  // The rows of a block of an expert.
  Range RowsOf(int64_t block, int64_t expert) const {
    const int64_t blocks = first[expert + 1] - first[expert], at = block - first[expert];
    const int64_t rows = begin[expert + 1] - begin[expert];
    return {begin[expert] + rows * at / blocks, begin[expert] + rows * (at + 1) / blocks};
  }
};

}  // namespace

void RouteExperts(Device& device, const TensorView& logits, const float* correction, const RouterRule& rule,
                  const ExpertRouting& routing) {
  CpuDevice& cpu = AsCpu(device);
  const int64_t per_token = routing.per_token;
  cpu.ParallelFor(logits.rows, logits.rows * logits.cols * (per_token + 4), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      RouteToken(cpu.kernels(), logits.row<float>(t), correction, logits.cols, rule,
                 routing.ids + t * per_token, routing.weights + t * per_token);
    }
  });
  SortPairs(routing);
  if (routing.load != nullptr) CountLoad(routing);
}

void ExpertsLinear(Device& device, const TensorView& x, ExpertInput input, const ExpertRouting& routing,
                   const ExpertWeight& w, const ExpertBias& bias, const TensorView& y) {
  const int64_t num_rows = routing.begin[routing.num_experts];
  if (num_rows == 0) return;
  CpuDevice& cpu = AsCpu(device);
  const LinearWeight& shape = w.first;
  LinearArgs args{.x = nullptr,
                  .x_stride = 0,
                  .w = nullptr,
                  .n = shape.n,
                  .k = shape.k,
                  .bias = nullptr,
                  .y = static_cast<float*>(y.data),
                  .y_stride = y.stride,
                  .expands = cpu.kernels().expands,
                  .reads_ahead = cpu.kernels().reads_ahead};
  const RowBlocks blocks(routing, LinearBlockRows(cpu.kernels(), shape.k), cpu.workspace());
  char* const memory = cpu.workspace() + ExpertTableBytes(routing.num_experts);
  TensorView rows = x;
  rows.rows = num_rows;
  if (input == ExpertInput::kRows) {
    PrepareLinearInput(cpu, rows, shape.dtype, memory, &args);
  } else {
    GatherLinearInput(cpu, x, routing.token_of, num_rows, shape.dtype, memory, &args);
  }
  const LinearKernel kernel = LinearKernelOf(cpu.kernels(), shape.dtype, x.dtype);
  const int64_t panels = NumPanels(shape.n);
  // Items are ordered by block, then panel, so that a thread reads a single stream of weights per block.
  const auto compute = [&](int64_t begin, int64_t end) {
    for (int64_t item = begin; item < end;) {
      const int64_t block = item / panels, expert = blocks.ExpertOf(block);
      const int64_t stop = std::min(end, (block + 1) * panels);
      LinearArgs of_expert = args;
      of_expert.w = static_cast<const char*>(w.Of(expert).data);
      if (bias.data != nullptr) of_expert.bias = bias.data + expert * bias.stride;
      const Range block_rows = blocks.RowsOf(block, expert);
      kernel(of_expert, block_rows.begin, block_rows.end, item - block * panels, stop - block * panels);
      item = stop;
    }
  };
  // Experts with different numbers of rows take different times, so threads help each other.
  constexpr int64_t kUnevenPieces = 16;
  const int64_t bytes = blocks.active * panels * PanelBytes(shape.dtype, shape.k);
  const int64_t pieces = blocks.max_rows > cpu.kernels().max_tile_rows
                             ? kUnevenPieces
                             : PiecesOfPart(cpu.kernels(), blocks.max_rows, bytes / cpu.num_threads());
  pieces == 1 ? cpu.ParallelFor(blocks.count() * panels, num_rows * shape.n * shape.k / 32, compute)
              : cpu.BalancedFor(blocks.count() * panels, pieces, compute);
}

void CombineExperts(Device& device, const TensorView& x, const ExpertRouting& routing,
                    const TensorView& shared, const TensorView& mix, const TensorView& out) {
  constexpr int64_t kPiece = 256;  // columns
  const int64_t pieces = (out.cols + kPiece - 1) / kPiece, per_token = routing.per_token;
  const auto combine = [&](int64_t t, int64_t column) {
    const int64_t cols = std::min(kPiece, out.cols - column);
    float* const sum = out.row<float>(t) + column;
    float shared_weight = shared.data == nullptr ? 0.0f : 1.0f;
    if (mix.data != nullptr) shared_weight = 1.0f / (1.0f + std::exp(-*mix.row<float>(t)));
    float total[kPiece] = {};
    for (int64_t i = t * per_token; i < (t + 1) * per_token; ++i) {
      if (routing.row_of[i] < 0) continue;
      const float* const row = x.row<float>(routing.row_of[i]) + column;
      const float weight = routing.weights[i];
      for (int64_t c = 0; c < cols; ++c) total[c] += weight * row[c];
    }
    if (shared.data != nullptr) {
      const float* const row = shared.row<float>(t) + column;
      for (int64_t c = 0; c < cols; ++c) total[c] += shared_weight * row[c];
    }
    std::copy_n(total, cols, sum);
  };
  AsCpu(device).ParallelFor(out.rows * pieces, out.rows * out.cols * (per_token + 1) / 4,
                            [&](int64_t begin, int64_t end) {
                              for (int64_t i = begin; i < end; ++i) combine(i / pieces, i % pieces * kPiece);
                            });
}

}  // namespace somnus::cpu
