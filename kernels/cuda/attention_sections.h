#pragma once
// How prefill adds up the sums of a context's sections, so that it may cut contexts anywhere between sections
// without changing a bit of the result.
//
// Section s is tokens [kSectionTokens * s, kSectionTokens * (s + 1)). The sums of sections 2 i and 2 i + 1
// make the sums of a node, two neighbouring nodes the next node, and so on: a binary tree over the whole
// context. Sections that a row does not see change nothing, bit for bit. So a row's result depends on its own
// position and context alone: not on the chunk of the row, not on the rest of the batch, and not on how many
// blocks share the work. Each block does the whole tree or whole subtrees.
//
// Everything here is about one lane's rows 0 and 1 (attention_tiles.h) of each of the warp's groups of 16
// rows: warp w has groups w, w + kPrefillWarps ... of a tile's eight. Lanes are counted by group and lane of
// the group, and each lane reads in scratch only data that the lane of the same number wrote.

#include "kernels/cuda/attention_tiles.h"
#include "kernels/cuda/attention_work.h"

namespace somnus::SOMNUS_CUDA_NAMESPACE {

// ---- Two neighbours

// How a row's older sums (of earlier tokens) and newer sums are brought to a common maximum.
struct MergeWeights {
  float older, newer;
  bool nothing_newer;

  __device__ float Add(float old_sum, float new_sum) const {
    return nothing_newer ? old_sum : fmaf(old_sum, older, new_sum * newer);
  }
};

// Adds a row's older maximum and sum of weights to the newer. A sum of zero has seen nothing; NaN is not
// nothing.
__device__ inline MergeWeights MergeRow(float older_max, float older_sum, float& max, float& sum) {
  const float top = fmaxf(older_max, max);
  const float base = top == -INFINITY ? 0.0f : top;
  const MergeWeights weights{Exp2Approx(older_max - base), Exp2Approx(max - base), sum == 0};
  sum = weights.Add(older_sum, sum);
  max = top;
  return weights;
}

__device__ inline void MergeFragment(const MergeWeights (&weights)[2], const Vec<float, 4>& older,
                                     float (&newer)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) newer[i] = weights[i / 2].Add(older[i], newer[i]);
}

// ---- Scratch

// A record of a part: how many parts the tile has, and the tile's sequence, if this part is the first; else
// 0.
struct PartRecord {
  int32_t parts;
  int32_t seq;        // in [first_seq, ...)
  int32_t first_row;  // of the sequence's queries times heads
};
static_assert(sizeof(PartRecord) <= PrefillScratch::kRecordBytes);

// A lane's place in a tile of sums: [dims / 8] fragments, then the rows' maxima and sums. Vectors of
// neighbouring lanes are neighbours.
using SumsPlace = Vec<float, 4>*;
constexpr int kTileLanes = kPrefillRows / 16 * 32;
SOMNUS_HD SumsPlace At(SumsPlace place, int fragment) { return place + fragment * kTileLanes; }

struct PrefillParts {
  char* memory;
  int dims;
  int max_sections;  // 1: no scratch
  int max_parts;
  int64_t parts_offset, stacks_offset, tile_bytes, stack_bytes;

  PrefillParts(char* memory, const PrefillPlan& plan)
      : memory(memory),
        dims(plan.dims),
        max_sections(static_cast<int>(plan.sections)),
        max_parts(static_cast<int>(plan.scratch.max_parts)),
        parts_offset(plan.scratch.parts_offset()),
        stacks_offset(plan.scratch.stacks_offset()),
        tile_bytes(plan.scratch.tile_bytes()),
        stack_bytes(plan.scratch.levels * plan.scratch.tile_bytes()) {}

  __device__ PartRecord& Record(int kv_head, int part) const {
    const int64_t index = int64_t{kv_head} * max_parts + part;
    return *reinterpret_cast<PartRecord*>(memory + index * PrefillScratch::kRecordBytes);
  }
  __device__ SumsPlace Part(int kv_head, int part) const {
    const int64_t index = int64_t{kv_head} * max_parts + part;
    return reinterpret_cast<SumsPlace>(memory + parts_offset + index * tile_bytes) + threadIdx.x;
  }
  // The stack of `block`, which is counted over all KV heads.
  __device__ SumsPlace Stack(int64_t block) const {
    return reinterpret_cast<SumsPlace>(memory + stacks_offset + block * stack_bytes) + threadIdx.x;
  }
  // For the sums of all sections of a stack's block.
  __device__ SumsPlace StackTop(SumsPlace stack) const {
    return stack + (stack_bytes - tile_bytes) / static_cast<int64_t>(sizeof(*stack));
  }
};

// Warps of a block of prefill, and the groups of 16 rows that each has.
template <int kDims>
constexpr int kPrefillWarps = PrefillWarps(kDims);
template <int kDims>
constexpr int kPrefillGroups = kPrefillRows / 16 / kPrefillWarps<kDims>;

// The terms of the addition: a lane's state of the softmax and outputs.
template <int kDims>
struct Sums {
  SoftmaxState state[kPrefillGroups<kDims>];
  float o[kPrefillGroups<kDims>][kDims / 8][4];

  __device__ void Clear() {
#pragma unroll
    for (int m = 0; m < kPrefillGroups<kDims>; ++m) {
      state[m] = {};
#pragma unroll
      for (int i = 0; i < kDims / 2; ++i) o[m][i / 4][i % 4] = 0;
    }
  }
  // Afterwards a row's sums are the sums over all lanes of the row.
  __device__ void AddLanes() {
#pragma unroll
    for (int m = 0; m < kPrefillGroups<kDims>; ++m) {
      state[m].sum[0] = RowSum(state[m].sum[0]);
      state[m].sum[1] = RowSum(state[m].sum[1]);
    }
  }
  __device__ void Leave(SumsPlace place) const {
#pragma unroll
    for (int m = 0; m < kPrefillGroups<kDims>; ++m, place += kPrefillWarps<kDims> * 32) {
#pragma unroll
      for (int f = 0; f < kDims / 8; ++f) *At(place, f) = {o[m][f][0], o[m][f][1], o[m][f][2], o[m][f][3]};
      *At(place, kDims / 8) = {state[m].max[0], state[m].max[1], state[m].sum[0], state[m].sum[1]};
    }
  }
};

// ---- The tree, walked from left to right

// Adds the older sums to the newer sums, in place. In memory, since there are no registers for sums beside
// the sums of attention's loop.
template <int kDims>
__device__ inline void MergeSums(SumsPlace older, SumsPlace newer) {
#pragma unroll 1
  for (int m = 0; m < kPrefillGroups<kDims>; ++m) {
    const Vec<float, 4> old_rows = *At(older, kDims / 8);
    Vec<float, 4> rows = *At(newer, kDims / 8);
    const MergeWeights weights[2] = {MergeRow(old_rows[0], old_rows[2], rows[0], rows[2]),
                                     MergeRow(old_rows[1], old_rows[3], rows[1], rows[3])};
    *At(newer, kDims / 8) = rows;
#pragma unroll 1
    for (int base = 0; base < kDims / 8; base += 4) {
      Vec<float, 4> from[4], to[4];
#pragma unroll
      for (int f = 0; f < 4; ++f) {
        from[f] = *At(older, base + f);
        to[f] = *At(newer, base + f);
      }
#pragma unroll
      for (int f = 0; f < 4; ++f) {
        MergeFragment(weights, from[f], to[f].values);
        *At(newer, base + f) = to[f];
      }
    }
    older += kPrefillWarps<kDims> * 32;
    newer += kPrefillWarps<kDims> * 32;
  }
}

// Section `index` of a span has been left at `place`. Adds the nodes that the section completes, or, after
// the span's last section, all nodes on the stack. Level l holds the node of 2^l sections that waits for its
// neighbour, so the occupied levels are the bits of `index`. No row sees the first `skipped` sections of the
// span: the nodes of these sections alone are not there.
template <int kDims>
__device__ inline void MergeStack(SumsPlace stack, int index, int skipped, bool last, SumsPlace place) {
  for (int level = 0; index >> level != 0; ++level) {
    if (index >> level & 1) {
      if (index >> level << level <= skipped) continue;
      MergeSums<kDims>(At(stack, level * (kDims / 8 + 1)), place);
    } else if (!last) {
      break;
    }
  }
}

// Pushes a section that is not the last of its span onto the stack.
template <int kDims>
__device__ inline void PushSection(SumsPlace stack, int index, int skipped, Sums<kDims>& sums) {
  const SumsPlace place = At(stack, (FindFirstSet(~index) - 1) * (kDims / 8 + 1));
  sums.AddLanes();
  sums.Leave(place);
  MergeStack<kDims>(stack, index, skipped, false, place);
  sums.Clear();
}

// ---- Rows

// A tile of 128 rows of one sequence, each a (query, head) of a KV head: whole, or a span of its context.
struct RowTile {
  int seq;
  int group;      // heads that share the KV head
  int first_row;  // of the sequence's queries times group
  int num_rows;   // of the sequence
  int query_begin;
  int context;
  int begin, end;  // tokens of the span
  int part;        // where the sums go; -1: the tile has the whole context

  __device__ int Query(int row) const { return query_begin + row / group; }
  // A row's query and head in a matrix of all tokens; nullptr behind the last row.
  template <typename T>
  __device__ T* RowOf(T* matrix, int64_t stride, const int32_t* heads, int head_dim, int row) const {
    return row < num_rows ? matrix + Query(row) * stride + heads[row % group] * head_dim : nullptr;
  }
  // How many tokens a row sees; 0 for rows behind the last.
  __device__ int Limit(const AttentionParams& p, int row) const {
    return row < num_rows && context > 0 ? p.positions[Query(row)] + 1 : 0;
  }
};

// The final factor of a row's sums over V. A sum of 0: padding.
__device__ inline float OutputScale(const AttentionParams& p, int head, float max, float sum) {
  return sum == 0 ? 0.0f : p.v_scale / SumWithSink(p, head, max, sum);
}

// Two neighbouring values of fragment f (OutputDim) of a row of the output.
template <typename T, typename E>
__device__ inline void StorePair(T* row, int head_dim, int f, float lo, float hi) {
  const int col = OutputDim<E>(f, 2 * (LaneId() % 4));
  if (col >= head_dim) return;
  if constexpr (kOfBytes<E>) {
    row[col] = FromFloat<T>(lo);
    if (col + 4 < head_dim) row[col + 4] = FromFloat<T>(hi);
  } else {
    *reinterpret_cast<uint32_t*>(row + col) = Pack2<T>(lo, hi);
  }
}

SOMNUS_HD int64_t HeadBytes(int64_t num_heads) { return (num_heads * 4 + 15) / 16 * 16; }

// Adds up the parts that the preceding prefill has left: grid (max_parts, num_kv_heads, pairs of fragments).
void CombineSections(CudaDevice& device, const AttentionShape& shape, const AttentionParams& params,
                     const PrefillParts& parts);

}  // namespace somnus::SOMNUS_CUDA_NAMESPACE
