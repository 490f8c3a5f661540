// Paged attention for chunks of prompts: FlashAttention-2 over the paged cache, K and V of the chunk already
// in it. Bound by arithmetic for long chunks: 4 * head_dim operations for each query, head and token that it
// sees.
//
// A block takes 128 rows, a row being a (query, head) of one sequence and KV head: the heads that share a KV
// head lie next to each other, so that K and V are read once for all of them and short chunks fill tiles.
// Eight warps with 16 rows each (queries and outputs in registers) share tiles of 64 tokens (32 for head_dim
// above 128) that come through cp.async one or two tiles ahead, gathered by the block table in runs of 16
// tokens. Tiles that no row of a warp sees are skipped, and only those across the diagonal are masked. 128
// rows a tile make 128 operations a byte from L2.
//
// The grid depends on the host's numbers alone: blocks find their sequence in query_start. Late queries,
// which see the most, come first.

#include "kernels/cuda/attention_tiles.h"
#include "kernels/cuda/attention_work.h"
#include "kernels/cuda/launch.h"

namespace somnus::SOMNUS_CUDA_NAMESPACE {
namespace {

constexpr int kThreads = kPrefillWarps * 32;
constexpr int kMaxRuns = 64 / kSubTileTokens;  // of a tile

struct alignas(16) PrefillShared {
  ScanShared<kThreads> scan;
  int64_t runs[kMaxStages][kMaxRuns];  // where 16 tokens' K begin in the cache, for the tiles to come
  int num_heads;
  // Then the heads, then queries (kQueryBytes a warp), then the stages.
};

SOMNUS_HD int64_t HeadBytes(int64_t num_heads) { return (num_heads * 4 + 15) / 16 * 16; }

// Tokens whose scores are in registers at once. Heads of 64 leave room for a second block on the
// multiprocessor, if their scores do too; those of 256 leave no more.
template <int kDims>
constexpr int kFoldTokens = kDims == 96 || kDims == 128 ? 64 : 32;

// A block's 128 rows of a sequence.
struct RowTile {
  int seq;
  int kv_head;
  int group;      // heads that share it
  int first_row;  // of the sequence's queries times group
  int num_rows;   // of the sequence
  int query_begin;
  int context;

  __device__ int Query(int row) const { return query_begin + row / group; }
  // A row's query and head in a matrix of all tokens; nullptr behind the last row.
  template <typename T>
  __device__ T* At(T* matrix, int64_t stride, const int32_t* heads, int head_dim, int row) const {
    return row < num_rows ? matrix + Query(row) * stride + heads[row % group] * head_dim : nullptr;
  }
  // How many tokens a row sees; 0 for rows behind the last.
  __device__ int Limit(const AttentionParams& p, int row) const {
    return row < num_rows && context > 0 ? p.positions[Query(row)] + 1 : 0;
  }
};

// K/V tiles of a sequence on their way into the stages of shared memory; used by all threads of the block
// together.
template <typename E, int kDims>
class KvTiles {
 public:
  static constexpr int kTokens = PrefillTileTokens(kDims);
  static constexpr int kRuns = kTokens / kSubTileTokens;
  static constexpr int kTileBytes = kTokens * kTilePitch<E, kDims>;

  __device__ KvTiles(const AttentionParams& p, const RowTile& rows, int end, PrefillShared& shared,
                     char* stages)
      : p_(p),
        kv_head_(rows.kv_head),
        end_(end),
        table_(p.block_tables + rows.seq * p.max_blocks_per_seq),
        shared_(shared),
        stages_(stages) {}

  __device__ int count() const { return (end_ + kTokens - 1) / kTokens; }
  __device__ char* K(int i) const { return stages_ + i % p_.stages * 2 * kTileBytes; }
  __device__ char* V(int i) const { return K(i) + kTileBytes; }

  // Where tile i's run is. Run r of tiles 0 .. stages - 1 is looked up by thread tile * kRuns + r.
  __device__ int64_t FindRun(int i, int run) const {
    const int token = i * kTokens + run * kSubTileTokens;
    if (token >= end_) return 0;
    const int index = token / p_.block_size;
    return KeyOffset(p_, table_[index], kv_head_, token - index * p_.block_size);
  }
  __device__ void PutRun(int i, int run, int64_t at) { shared_.runs[i % p_.stages][run] = at; }

  // Queues the load of tile i, if there is one, as one group; its runs have been put before a barrier.
  __device__ void Load(int i) {
    if (i < count()) {
      const E* const cache = static_cast<const E*>(p_.cache);
      const int64_t to_v = int64_t{p_.block_size} * p_.head_dim;
      const int64_t* const runs = shared_.runs[i % p_.stages];
      const int head_dim = p_.head_dim, valid = end_ - i * kTokens;
      const auto k = [&](int row) {
        return cache + runs[row / kSubTileTokens] + row % kSubTileTokens * head_dim;
      };
      const int thread = static_cast<int>(threadIdx.x);
      CopyTile<E, kDims, kTokens, kThreads>(K(i), thread, valid, head_dim, cache, k);
      CopyTile<E, kDims, kTokens, kThreads>(V(i), thread, valid, head_dim, cache,
                                            [&](int row) { return k(row) + to_v; });
    }
    CpAsyncCommit();
  }

 private:
  const AttentionParams& p_;
  const int kv_head_;
  const int end_;
  const int32_t* const table_;
  PrefillShared& shared_;
  char* const stages_;
};

template <typename T, typename E, int kDims>
__device__ void StoreRows(const AttentionParams& p, T* const (&out)[2], const SoftmaxState& state,
                          const float (&o)[kDims / 8][4]) {
  const int t = LaneId() % 4;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float sum = RowSum(state.sum[r]);
    const float scale = sum == 0 ? 0.0f : p.v_scale / sum;  // 0: padding
    if (out[r] == nullptr) continue;
#pragma unroll
    for (int f = 0; f < kDims / 8; ++f) {
      const int col = OutputDim<E>(f, 2 * t);
      if (col >= p.head_dim) continue;
      const float lo = o[f][2 * r] * scale, hi = o[f][2 * r + 1] * scale;
      if constexpr (kIsF8<E>) {
        out[r][col] = FromFloat<T>(lo);
        if (col + 4 < p.head_dim) out[r][col + 4] = FromFloat<T>(hi);
      } else {
        *reinterpret_cast<uint32_t*>(out[r] + col) = Pack2<T>(lo, hi);
      }
    }
  }
}

template <typename T, typename E, int kDims>
__device__ void AttendRows(const AttentionParams& p, const RowTile& rows, const int32_t* heads,
                           PrefillShared& shared, char* shared_queries, char* stages) {
  using Tiles = KvTiles<E, kDims>;
  const int thread = static_cast<int>(threadIdx.x);
  Tiles tiles(p, rows, rows.Limit(p, min(rows.first_row + kPrefillRows, rows.num_rows) - 1), shared, stages);
  if (thread < p.stages * Tiles::kRuns) {
    const int tile = thread / Tiles::kRuns, run = thread % Tiles::kRuns;
    tiles.PutRun(tile, run, tiles.FindRun(tile, run));
  }
  __syncthreads();
  for (int i = 0; i < p.stages - 1; ++i) tiles.Load(i);

  const int warp_row = rows.first_row + WarpId() * 16;
  const int least = rows.Limit(p, warp_row);
  const int most = least == 0 ? 0 : rows.Limit(p, min(warp_row + 15, rows.num_rows - 1));
  const T* queries[2];
  int limit[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = warp_row + LaneId() / 4 + 8 * r;
    limit[r] = rows.Limit(p, row);
    queries[r] = rows.At(static_cast<const T*>(p.q), p.q_stride, heads, p.head_dim, row);
  }
  QueryOperand<kDims> q;
  PrepareQueries<T, E>(p, queries[0], queries[1], shared_queries + WarpId() * kQueryBytes<kDims>, 1, 0, q);
  SyncWarp();
  SoftmaxState state;
  float o[kDims / 8][4] = {};
  for (int i = 0; i < tiles.count(); ++i) {
    WaitForStage(p.stages);
    __syncthreads();
    int64_t run = 0;
    if (thread < Tiles::kRuns) run = tiles.FindRun(i + p.stages, thread);
    tiles.Load(i + p.stages - 1);
    const int token = i * Tiles::kTokens;
#pragma unroll
    for (int part = 0; part < Tiles::kTokens; part += kFoldTokens<kDims>) {
      if (token + part >= most) break;
      AttendTile<E, kDims, kFoldTokens<kDims>>(q, tiles.K(i) + part * kTilePitch<E, kDims>,
                                               tiles.V(i) + part * kTilePitch<E, kDims>, token + part,
                                               token + part + kFoldTokens<kDims> > least, limit, state, o);
    }
    if (thread < Tiles::kRuns) tiles.PutRun(i + p.stages, thread, run);
  }
  T* out[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    out[r] =
        rows.At(static_cast<T*>(p.out), p.out_stride, heads, p.head_dim, warp_row + LaneId() / 4 + 8 * r);
  }
  StoreRows<T, E, kDims>(p, out, state, o);
}

template <typename T, typename E, int kDims>
__global__ void __launch_bounds__(kThreads, kDims > 64 ? 1 : 2) PrefillKernel(AttentionParams p) {
  GridDependencyLaunch();
  GridDependencyWait();
  PrefillShared& shared = SharedStorage<PrefillShared>();
  char* const extra = reinterpret_cast<char*>(&shared) + sizeof(PrefillShared);
  int32_t* const heads = reinterpret_cast<int32_t*>(extra);
  char* const queries = extra + HeadBytes(p.num_heads);
  RowTile rows{};
  rows.kv_head = static_cast<int>(blockIdx.y);
  FindHeads(p, rows.kv_head, heads, shared.num_heads);
  const int group = rows.group = shared.num_heads;
  if (group == 0) return;
  const int32_t* const starts = p.query_start + p.first_seq;
  const auto tiles_of = [&](int i) {
    return ((starts[i + 1] - starts[i]) * group + kPrefillRows - 1) / kPrefillRows;
  };
  TileScan<kThreads, decltype(tiles_of)> scan(shared.scan, p.num_seqs, tiles_of);
  for (int i = static_cast<int>(blockIdx.x); i < scan.total(); i += static_cast<int>(gridDim.x)) {
    const int tile = scan.total() - 1 - i;
    int seq, before;
    scan.Find(tile, seq, before);  // Its barriers also end the use of shared memory by the tile before.
    rows.seq = p.first_seq + seq;
    rows.first_row = (tile - before) * kPrefillRows;
    rows.query_begin = starts[seq];
    rows.num_rows = (starts[seq + 1] - starts[seq]) * group;
    rows.context = p.context_len[rows.seq];
    AttendRows<T, E, kDims>(p, rows, heads, shared, queries, queries + kPrefillWarps * kQueryBytes<kDims>);
  }
}

}  // namespace

bool PrefillAttention(CudaDevice& device, const AttentionShape& shape, const AttentionParams& params,
                      int64_t num_tokens) {
  const int64_t query_bytes = CompiledHeadDim(shape.head_dim) == 256 ? kPrefillWarps * kQueryBytes<256> : 0;
  const int64_t header =
      static_cast<int64_t>(sizeof(PrefillShared)) + HeadBytes(shape.num_heads) + query_bytes;
  const PrefillPlan plan = PlanPrefill(AttentionChipOf(device), shape, params.num_seqs, num_tokens, header);
  if (plan.stages == 0) return false;
  AttentionParams p = params;
  p.stages = plan.stages;
  const dim3 grid(static_cast<unsigned>(plan.tiles), static_cast<unsigned>(shape.num_kv_heads));
  DispatchMma(shape, plan.dims, [&](auto act, auto element, auto dims) {
    using T = typename decltype(act)::type;
    using E = typename decltype(element)::type;
    Launch(
        device,
        {.grid = grid, .block = dim3(kThreads), .shared_bytes = plan.shared_bytes, .overlaps_previous = true},
        PrefillKernel<T, E, decltype(dims)::value>, p);
  });
  return true;
}

}  // namespace somnus::SOMNUS_CUDA_NAMESPACE
