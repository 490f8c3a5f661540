#pragma once
// Paged attention for chunks of prompts: FlashAttention-2 over the paged cache, with the chunk's K and V
// already in the cache. Bound by arithmetic for long chunks: 4 * head_dim operations for each query, head and
// token that the query sees.
//
// A block takes 128 rows, a row being a (query, head) of one sequence and KV head: the heads that share a KV
// head lie next to each other, so that K and V are read once for all of them and short chunks fill tiles.
// Four warps with 32 rows each (outputs in registers, queries too up to head_dim 96) share tiles of 64 tokens
// (32 from head_dim 96 on) that come through cp.async one or two tiles ahead, gathered by the block table in
// runs of 16 tokens. Data that ldmatrix reads serves two products: by estimate, from 128 bytes a cycle,
// shared memory would take longer than the products on Hopper with 16 rows a warp, and takes 3/4 of their
// time with
// 32. Outputs of head_dim 256 leave room for 16 rows only, so there eight warps share a tile. Two blocks a
//     multiprocessor (one at 256): one is at its softmax while the second multiplies. Tiles that no row of a
//     warp sees are skipped, only those across the diagonal are masked; a warp's two groups of 16 rows lie 64
//     apart, so that the diagonal, which the block waits for, is as far for each. 128 rows a tile make 128
//     operations a byte from L2.
//
// Short chunks on long contexts have too few tiles of rows to fill the chip, so contexts are cut too, at
// sections of 2048 tokens that are the same for every row and batch (attention_sections.h): blocks that share
// a tile leave their sums in scratch (544 bytes a row at head_dim 128), and a second kernel adds them up. A
// block that does several sections adds up their sums in scratch, too: a write and a merge (two reads, a
// write) of 68 KiB a section. By estimate the products of 128 rows take some 50 thousand cycles and L2 takes
// 4 thousand for that, while the multiprocessor's other block goes on.
//
// On an H100 this kernel makes 230 TFLOP/s for 2048 queries of 16384 tokens, FlashAttention-2 350 and a
// kernel with wgmma 650 (docs/gpu_verification.md).
//
// With a window a tile of rows begins at the tile of tokens in which its first row's window begins, at the
// same cuts and the same places of the tree as without; its context is not shared by blocks.
//
// The grid depends on the host's numbers alone: blocks find their sequence in query_start, and the length of
// spans in the context lengths. The longest work comes first.
//
// attention_prefill_64.cu and so on include this file for one head dimension each: all head dimensions in one
// file keep nvcc busy for minutes.

#include "kernels/cuda/attention_sections.h"
#include "kernels/cuda/attention_work.h"
#include "kernels/cuda/launch.h"

namespace somnus::SOMNUS_CUDA_NAMESPACE {

template <int kDims>
constexpr int kThreads = kPrefillWarps<kDims> * 32;
template <int kDims>
constexpr int kTileQueryBytes = kPrefillRows / 16 * kQueryBytes<kDims, kPrefillGroups<kDims>>;
constexpr int kMaxRuns = 64 / kSubTileTokens;  // of a tile

template <int kDims>
struct alignas(16) PrefillShared {
  ScanShared<kThreads<kDims>> work, spans, wholes;
  // Where 16 tokens' K, and in an i8 cache its scales, begin in the cache, for the tiles to come.
  int64_t runs[kMaxStages][kMaxRuns], scales[kMaxStages][kMaxRuns];
  RowTile rows;  // the current unit; here rather than in every thread's registers
  int num_heads;
  // Then the heads, then queries (kTileQueryBytes), then the stages.
};

// Tokens with scores in registers at the same time.
template <int kDims>
constexpr int kFoldTokens = 32;

// K/V tiles of a span of a sequence on their way into the stages of shared memory; used by all threads of the
// block together.
template <bool kRule, typename E, int kDims>
class KvTiles {
 public:
  static constexpr int kTokens = PrefillTileTokens(kDims);
  static constexpr int kRuns = kTokens / kSubTileTokens;
  static constexpr int kTileBytes = kTokens * kTilePitch<E, kDims>;

  // Tokens [begin, end) of shared.rows; tokens before `first` are not loaded.
  __device__ KvTiles(const AttentionParams& p, int begin, int first, int end, PrefillShared<kDims>& shared,
                     char* stages)
      : p_(p), begin_(begin), first_(first), end_(end), shared_(shared), stages_(stages) {}

  __device__ int count() const { return (end_ - begin_ + kTokens - 1) / kTokens; }
  __device__ int Token(int i) const { return begin_ + i * kTokens; }
  // Tile i is in slot i % stages, which callers count.
  __device__ char* K(int slot) const { return stages_ + slot * 2 * kTileBytes; }
  __device__ char* V(int slot) const { return K(slot) + kTileBytes; }

  // The cache block that tile i's run is in. Run r of tiles 0 .. stages - 1 is looked up by thread tile *
  // kRuns + r.
  __device__ int FindRun(int i, int run) const {
    const int token = Token(i) + run * kSubTileTokens;
    const int32_t* const table = p_.block_tables + shared_.rows.seq * p_.max_blocks_per_seq;
    return token < end_ ? table[token / p_.block_size] : 0;
  }
  __device__ void PutRun(int i, int slot, int run, int block) {
    const int in_block = (Token(i) + run * kSubTileTokens) % p_.block_size;
    const int kv_head = static_cast<int>(blockIdx.y);
    shared_.runs[slot][run] = KeyOffset(p_, block, kv_head, in_block);
    if constexpr (kIsI8<E>) {
      shared_.scales[slot][run] = KeyScaleOffset(p_, block, kv_head, in_block);
    }
  }

  // Queues the load of tile i, if it exists, as one group; the tile's runs have been put before a barrier.
  __device__ void Load(int i, int slot) {
    if (i < count()) {
      const E* const cache = static_cast<const E*>(p_.cache);
      const int64_t to_v = p_.run_size;
      const int64_t* const runs = shared_.runs[slot];
      const int head_dim = p_.head_dim;
      const ValidRows<kRule> valid(first_ - Token(i), end_ - Token(i));
      const auto k = [&](unsigned row) {
        return cache + runs[row / kSubTileTokens] + static_cast<int>(row % kSubTileTokens) * head_dim;
      };
      const int thread = static_cast<int>(threadIdx.x);
      CopyTiles<E, kDims, kTokens, kThreads<kDims>>(K(slot), V(slot), thread, valid, head_dim, cache,
                                                    to_v * static_cast<int64_t>(sizeof(E)), k);
      if constexpr (kIsI8<E>) {
        const int64_t* const scales = shared_.scales[slot];
        const auto k_scale = [&](unsigned row) {
          return static_cast<const char*>(p_.cache) + scales[row / kSubTileTokens] + row % kSubTileTokens * 4;
        };
        CopyScales<kDims, kTokens, kThreads<kDims>>(K(slot), thread, valid, cache, k_scale);
        CopyScales<kDims, kTokens, kThreads<kDims>>(V(slot), thread, valid, cache,
                                                    [&](unsigned row) { return k_scale(row) + to_v; });
      }
    }
    CpAsyncCommit();
  }

 private:
  const AttentionParams& p_;
  const int begin_, first_, end_;
  PrefillShared<kDims>& shared_;
  char* const stages_;
};

// The first row of a warp's group m.
template <int kDims>
__device__ inline int GroupRow(const RowTile& rows, int m) {
  return rows.first_row + (m * kPrefillWarps<kDims> + WarpId()) * 16;
}

template <typename T, typename E, int kDims>
__device__ inline void StoreRows(const AttentionParams& p, const RowTile& rows, const int32_t* heads,
                                 const Sums<kDims>& sums) {
#pragma unroll
  for (int m = 0; m < kPrefillGroups<kDims>; ++m) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = GroupRow<kDims>(rows, m) + LaneId() / 4 + 8 * r;
      T* const out = rows.RowOf(static_cast<T*>(p.out), p.out_stride, heads, p.head_dim, row);
      if (out == nullptr) continue;
      const float scale = OutputScale(p, heads[row % rows.group], sums.state[m].max[r], sums.state[m].sum[r]);
#pragma unroll
      for (int f = 0; f < kDims / 8; ++f) {
        StorePair<T, E>(out, p.head_dim, f, sums.o[m][f][2 * r] * scale, sums.o[m][f][2 * r + 1] * scale);
      }
    }
  }
}

// The same for sums in scratch.
template <typename T, typename E, int kDims>
__device__ inline void StoreRows(const AttentionParams& p, const RowTile& rows, const int32_t* heads,
                                 SumsPlace place) {
#pragma unroll 1
  for (int i = 0; i < 2 * kPrefillGroups<kDims>; ++i) {
    const int m = i / 2, r = i % 2, row = GroupRow<kDims>(rows, m) + LaneId() / 4 + 8 * r;
    T* const out = rows.RowOf(static_cast<T*>(p.out), p.out_stride, heads, p.head_dim, row);
    if (out == nullptr) continue;
    const float* const values = reinterpret_cast<const float*>(place + m * kThreads<kDims>) + 2 * r;
    const float* const state = reinterpret_cast<const float*>(place + m * kThreads<kDims>) + r;
    const float* const max_and_sum = state + 4 * kTileLanes * (kDims / 8);
    const float scale = OutputScale(p, heads[row % rows.group], max_and_sum[0], max_and_sum[2]);
#pragma unroll 8
    for (int f = 0; f < kDims / 8; ++f) {
      const Vec<float, 2> x = LoadVec<float, 2>(values + 4 * kTileLanes * f);
      StorePair<T, E>(out, p.head_dim, f, x[0] * scale, x[1] * scale);
    }
  }
}

// The warp's queries, and how many tokens each row sees. `shared`: kTileQueryBytes.
template <typename T, typename E, int kDims, int kGroups>
__device__ inline void TakeQueries(const AttentionParams& p, const RowTile& rows, const int32_t* heads,
                                   char* shared, QueryOperand<kDims, kGroups> (&q)[kGroups],
                                   int (&limit)[kGroups][2]) {
#pragma unroll
  for (int m = 0; m < kGroups; ++m) {
    const T* from[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = GroupRow<kDims>(rows, m) + LaneId() / 4 + 8 * r;
      limit[m][r] = rows.Limit(p, row);
      from[r] = rows.RowOf(static_cast<const T*>(p.q), p.q_stride, heads, p.head_dim, row);
    }
    const int group = m * kPrefillWarps<kDims> + WarpId();
    PrepareQueries<T, E>(p, from[0], from[1], shared + group * kQueryBytes<kDims, kGroups>, 1, 0, q[m]);
  }
}

// The first token that the tile's rows see.
template <bool kRule>
__device__ inline int FirstTokenOf(const AttentionParams& p, const RowTile& rows) {
  return kRule ? FirstToken(p, rows.Limit(p, rows.first_row)) : 0;
}
// The sections of a span before that token, which are left out.
template <bool kRule>
__device__ inline int SkippedSections(const AttentionParams& p, const RowTile& rows) {
  return kRule ? max(0, FirstTokenOf<kRule>(p, rows) - rows.begin) / kSectionTokens : 0;
}

// The sums of the last section of the span of shared.rows that the warp sees, and that section's number.
template <bool kRule, typename T, typename E, int kDims>
__device__ int AttendSpan(const AttentionParams& p, const int32_t* heads, PrefillShared<kDims>& shared,
                          char* queries, SumsPlace stack, Sums<kDims>& sums) {
  using Tiles = KvTiles<kRule, E, kDims>;
  constexpr int kGroups = kPrefillGroups<kDims>, kFold = kFoldTokens<kDims>;
  const RowTile& rows = shared.rows;
  const int thread = static_cast<int>(threadIdx.x);
  const int seen = rows.Limit(p, min(rows.first_row + kPrefillRows, rows.num_rows) - 1);
  const int first = FirstTokenOf<kRule>(p, rows);
  const int begin = kRule ? max(rows.begin, first / Tiles::kTokens * Tiles::kTokens) : rows.begin;
  Tiles tiles(p, begin, first, min(rows.end, seen), shared, queries + kTileQueryBytes<kDims>);
  if (thread < p.stages * Tiles::kRuns) {
    const int tile = thread / Tiles::kRuns, run = thread % Tiles::kRuns;
    tiles.PutRun(tile, tile, run, tiles.FindRun(tile, run));
  }
  __syncthreads();
  for (int i = 0; i < p.stages - 1; ++i) tiles.Load(i, i);

  QueryOperand<kDims, kGroups> q[kGroups];
  int limit[kGroups][2];
  TakeQueries<T, E>(p, rows, heads, queries, q, limit);
  const int least = rows.Limit(p, GroupRow<kDims>(rows, 0));
  int most = least;
#pragma unroll
  for (int m = 0; m < kGroups; ++m) {
    const int row = GroupRow<kDims>(rows, m);
    if (row < rows.num_rows) most = min(rows.end, rows.Limit(p, min(row + 15, rows.num_rows - 1)));
  }
  sums.Clear();
  const int skipped = SkippedSections<kRule>(p, rows);
  int section = skipped, slot = 0, free_slot = p.stages - 1;
  for (int i = 0; i < tiles.count(); ++i) {
    WaitForStage(p.stages);
    __syncthreads();
    int run = 0;
    if (thread < Tiles::kRuns) run = tiles.FindRun(i + p.stages, thread);
    tiles.Load(i + p.stages - 1, free_slot);
    const int token = tiles.Token(i);
#pragma unroll
    for (int part = 0; part < Tiles::kTokens; part += kFold) {
      if (token + part >= most) break;
      if (kRule && token + part + kFold <= least - p.window) continue;
      const int offset = part * kTilePitch<E, kDims>;
      const bool masked = token + part + kFold > least || (kRule && token + part < most - p.window);
      AttendTile<kRule, E, kDims, kFold, kGroups>(p, q, tiles.K(slot) + offset, tiles.V(slot) + offset,
                                                  token + part, masked, limit, sums.state, sums.o);
    }
    if (thread < Tiles::kRuns) tiles.PutRun(i + p.stages, slot, thread, run);
    free_slot = slot;
    slot = slot + 1 == p.stages ? 0 : slot + 1;
    const int next = token + Tiles::kTokens;
    if (next % kSectionTokens == 0 && next < most) PushSection(stack, section++, skipped, sums);
  }
  sums.AddLanes();
  return section;
}

// shared.rows, to its end.
template <bool kRule, typename T, typename E, int kDims>
__device__ void AttendUnit(const AttentionParams& p, const PrefillParts& parts, const int32_t* heads,
                           PrefillShared<kDims>& shared, char* queries) {
  Sums<kDims> sums;
  const SumsPlace stack = parts.Stack(int64_t{blockIdx.y} * gridDim.x + blockIdx.x);
  const int last = AttendSpan<kRule, T, E, kDims>(p, heads, shared, queries, stack, sums);
  const int part = shared.rows.part, skipped = SkippedSections<kRule>(p, shared.rows);
  if (last == skipped && part < 0) {
    StoreRows<T, E, kDims>(p, shared.rows, heads, sums);
    return;
  }
  const SumsPlace place = part < 0 ? parts.StackTop(stack) : parts.Part(static_cast<int>(blockIdx.y), part);
  sums.Leave(place);
  MergeStack<kDims>(stack, last, skipped, true, place);
  if (part < 0) StoreRows<T, E, kDims>(p, shared.rows, heads, place);
}

// The cuts of the sequences' tiles of rows and of their contexts, for the heads of one KV head.
struct Cuts {
  const AttentionParams& p;
  int group;
  int span = 1 << 30;  // sections

  __device__ int Rows(int i) const {
    return (p.query_start[p.first_seq + i + 1] - p.query_start[p.first_seq + i]) * group;
  }
  __device__ int Tiles(int i) const { return (Rows(i) + kPrefillRows - 1) / kPrefillRows; }
  __device__ int Sections(int i) const {
    return (p.context_len[p.first_seq + i] + kSectionTokens - 1) / kSectionTokens;
  }
  __device__ int Spans(int i) const { return (Sections(i) + span - 1) / span; }
};

// Parts [first, max_parts) are not used.
template <int kDims>
__device__ inline void ClearRecords(const PrefillParts& parts, int first) {
  const int stride = static_cast<int>(gridDim.x) * kThreads<kDims>;
  for (int i = first + static_cast<int>(blockIdx.x * kThreads<kDims> + threadIdx.x); i < parts.max_parts;
       i += stride) {
    parts.Record(static_cast<int>(blockIdx.y), i).parts = 0;
  }
}

// Units are dealt to the blocks back and forth, so that the block with the longest unit of a round gets the
// shortest unit of the next.
__device__ inline int UnitOf(int round) {
  const int blocks = static_cast<int>(gridDim.x), block = static_cast<int>(blockIdx.x);
  return round * blocks + (round % 2 == 0 ? block : blocks - 1 - block);
}

// Writes shared.rows: span `part` of the cut tiles, or (part < 0) a whole tile, which is number `at` of the
// tiles of sequence `seq` (from first_seq on). By one thread.
template <int kDims>
__device__ inline void TakeUnit(const AttentionParams& p, const PrefillParts& parts, const Cuts& cuts,
                                int seq, int at, int part, PrefillShared<kDims>& shared) {
  RowTile& rows = shared.rows;
  const int spans = part < 0 ? 1 : cuts.Spans(seq), span = at % spans;
  rows.seq = p.first_seq + seq;
  rows.group = cuts.group;
  rows.first_row = at / spans * kPrefillRows;
  rows.num_rows = cuts.Rows(seq);
  rows.query_begin = p.query_start[rows.seq];
  rows.context = p.context_len[rows.seq];
  rows.begin = part < 0 ? 0 : span * cuts.span * kSectionTokens;
  rows.end = part < 0 ? rows.context : rows.begin + cuts.span * kSectionTokens;
  rows.part = part;
  if (part < 0) return;
  parts.Record(static_cast<int>(blockIdx.y), part) = {span == 0 ? spans : 0, rows.seq, rows.first_row};
}

template <bool kRule, typename T, typename E, int kDims>
__global__ void __launch_bounds__(kThreads<kDims>, PrefillBlocksPerSm(kDims))
    PrefillKernel(AttentionParams p, PrefillParts parts) {
  GridDependencyLaunch();
  GridDependencyWait();
  constexpr int kCount = kThreads<kDims>;
  PrefillShared<kDims>& shared = SharedStorage<PrefillShared<kDims>>();
  int32_t* const heads = reinterpret_cast<int32_t*>(&shared + 1);
  char* const queries = reinterpret_cast<char*>(heads) + HeadBytes(p.num_heads);
  const int kv_head = static_cast<int>(blockIdx.y);
  FindHeads(p, kv_head, heads, shared.num_heads);
  Cuts cuts{.p = p, .group = shared.num_heads};
  if (cuts.group == 0) {
    ClearRecords<kDims>(parts, 0);
    return;
  }
  const bool cut = parts.max_sections > 1 && !(kRule && p.window != kNoWindow);
  const auto sections_of = [&](int i) { return cuts.Tiles(i) * cuts.Sections(i); };
  if (cut) {
    const TileScan<kCount, decltype(sections_of)> work(shared.work, p.num_seqs, sections_of);
    cuts.span = static_cast<int>(SpanSections(work.total(), gridDim.x, parts.max_sections));
  }
  const auto spans_of = [&](int i) { return cuts.Spans(i) > 1 ? cuts.Tiles(i) * cuts.Spans(i) : 0; };
  const auto wholes_of = [&](int i) { return cut && cuts.Spans(i) > 1 ? 0 : cuts.Tiles(i); };
  TileScan<kCount, decltype(spans_of)> spans(shared.spans, cut ? p.num_seqs : 0, spans_of);
  TileScan<kCount, decltype(wholes_of)> wholes(shared.wholes, p.num_seqs, wholes_of);
  ClearRecords<kDims>(parts, spans.total());
  for (int round = 0;; ++round) {
    const int unit = UnitOf(round), units = spans.total() + wholes.total();
    if (round * static_cast<int>(gridDim.x) >= units) break;
    if (unit >= units) continue;
    const bool is_span = unit < spans.total();
    // Late tiles, which see the most, come first.
    const int index = is_span ? unit : units - 1 - unit;
    int seq, before;
    // Find's barrier also ends the use of shared memory by the unit before.
    is_span ? spans.Find(index, seq, before) : wholes.Find(index, seq, before);
    if (threadIdx.x == 0) TakeUnit(p, parts, cuts, seq, index - before, is_span ? unit : -1, shared);
    __syncthreads();
    AttendUnit<kRule, T, E, kDims>(p, parts, heads, shared, queries);
  }
}

template <int kDims>
bool PrefillAttentionOf(CudaDevice& device, const AttentionShape& shape, const AttentionParams& params,
                        int64_t num_tokens, int64_t max_context_len, char* scratch) {
  const int64_t header = static_cast<int64_t>(sizeof(PrefillShared<kDims>)) + HeadBytes(shape.num_heads) +
                         kTileQueryBytes<kDims>;
  const PrefillPlan plan =
      PlanPrefill(AttentionChipOf(device), shape, params.num_seqs, num_tokens, max_context_len, header);
  if (plan.stages == 0) return false;
  AttentionParams p = params;
  p.stages = plan.stages;
  const PrefillParts parts(scratch, plan);
  DispatchTypes(shape, [&](auto act, auto element) {
    using T = typename decltype(act)::type;
    using E = typename decltype(element)::type;
    DispatchRule(p, [&](auto rule) {
      Launch(device,
             {.grid = dim3(static_cast<unsigned>(plan.blocks), static_cast<unsigned>(shape.num_kv_heads)),
              .block = dim3(kThreads<kDims>),
              .shared_bytes = plan.shared_bytes,
              .overlaps_previous = true},
             PrefillKernel<decltype(rule)::value, T, E, kDims>, p, parts);
    });
  });
  if (plan.sections > 1 && p.window == kNoWindow) CombineSections(device, shape, p, parts);
  return true;
}

}  // namespace somnus::SOMNUS_CUDA_NAMESPACE
