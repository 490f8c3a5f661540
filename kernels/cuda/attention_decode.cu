// Paged attention for one token a sequence. Reads K and V of every context once for each 16 heads that share
// a KV head (2 * head_dim * sizeof(E) bytes a token and KV head), and little else: bound by memory.
//
// Split-KV, decided on the device by stream-K: the tiles of 64 tokens of all (sequence, group of heads)s lie
// end to end, and a persistent grid of as many blocks as fit the chip takes even runs of them. So a single
// long context fills the chip as well as many short contexts, and a captured graph serves any lengths. Pieces
// of a run that are only a part of a context go to scratch (at most two pieces a block), and a second kernel
// adds the parts up in the order of the context.
//
// With a window a context begins at the tile in which the window begins; kRule says whether there is a window
// or a soft cap.
//
// A block is four warps that do not wait for each other: warp w takes sub-tiles w, w + 4, ... of 16 tokens
// through a ring of its own in shared memory, filled by 16-byte cp.async two or three sub-tiles ahead (by
// plan 100-140 KiB are under way per multiprocessor; HBM3's latency needs 40-64, an estimate), with a softmax
// of its own; the four meet at the end of a piece. On an H100 32 contexts of 4096 tokens are read at 0.90 of
// copy bandwidth. The queries of the heads are the 16 rows of m16n8k16, in registers.

#include <algorithm>

#include "kernels/cuda/attention_scratch.h"
#include "kernels/cuda/attention_tiles.h"
#include "kernels/cuda/attention_work.h"
#include "kernels/cuda/launch.h"

namespace somnus::SOMNUS_CUDA_NAMESPACE {
namespace {

constexpr int kThreads = kDecodeWarps * 32;

struct alignas(16) DecodeShared {
  ScanShared<kThreads> scan;
  float max[kDecodeWarps][kDecodeRows];
  float sum[kDecodeWarps][kDecodeRows];
  int num_head_tiles;
  // Then HeadTiles, then queries (kQueryBytes), then the rings.
};

// Tiles [tile_begin, tile_end) of a context, for the heads of one tile of heads.
struct Piece {
  int seq = 0;
  int first = 0;    // token that the query sees
  int context = 0;  // tokens
  int tile_begin = 0, tile_end = 0;
  int head_begin = 0, num_rows = 0;  // in HeadTiles
  int kv_head = 0;
};

// A warp's sub-tiles of a piece, and their way into the warp's ring.
template <bool kRule, typename E, int kDims>
class SubTiles {
 public:
  static constexpr int kTileBytes = kSubTileTokens * kTilePitch<E, kDims>;

  __device__ SubTiles(const AttentionParams& p, const Piece& piece, char* ring)
      : p_(p), piece_(piece), ring_(ring), table_(p.block_tables + piece.seq * p.max_blocks_per_seq) {
    count_ = piece.tile_end - piece.tile_begin;
    if (count_ > 0 && Token(count_ - 1) >= piece.context) --count_;
  }

  __device__ int count() const { return count_; }
  __device__ int Token(int i) const {
    return (piece_.tile_begin + i) * kDecodeTileTokens + WarpId() * kSubTileTokens;
  }
  __device__ char* K(int slot) const { return ring_ + slot * 2 * kTileBytes; }
  __device__ char* V(int slot) const { return K(slot) + kTileBytes; }

  // Queues the load of sub-tile i, if it exists, as one group. Called for i = 0, 1, 2 ... by the whole warp.
  __device__ void Load(int i, int slot) {
    if (i < count_) {
      if (i % 32 == 0) FindBlocks(i);
      const int block = ShflIdx(block_, i % 32), in_block = ShflIdx(in_block_, i % 32);
      const E* const cache = static_cast<const E*>(p_.cache);
      const E* const k = cache + KeyOffset(p_, block, piece_.kv_head, in_block);
      const ValidRows<kRule> valid(piece_.first - Token(i), piece_.context - Token(i));
      const int head_dim = p_.head_dim;
      CopyTiles<E, kDims, kSubTileTokens, 32>(K(slot), V(slot), LaneId(), valid, head_dim, cache,
                                              p_.run_size * static_cast<int64_t>(sizeof(E)),
                                              [&](int row) { return k + row * head_dim; });
      if constexpr (kIsI8<E>) {
        const char* const scales =
            static_cast<const char*>(p_.cache) + KeyScaleOffset(p_, block, piece_.kv_head, in_block);
        CopyScales<kDims, kSubTileTokens, 32>(K(slot), LaneId(), valid, cache,
                                              [&](unsigned row) { return scales + 4 * row; });
        CopyScales<kDims, kSubTileTokens, 32>(V(slot), LaneId(), valid, cache,
                                              [&](unsigned row) { return scales + p_.run_size + 4 * row; });
      }
    }
    CpAsyncCommit();
  }

 private:
  // Lane l looks up where sub-tile i + l is.
  __device__ void FindBlocks(int i) {
    const int token = Token(i + LaneId());
    const int index = token / p_.block_size;
    in_block_ = token - index * p_.block_size;
    block_ = i + LaneId() < count_ ? table_[index] : 0;
  }

  const AttentionParams& p_;
  const Piece& piece_;
  char* const ring_;
  const int32_t* const table_;
  int count_;
  int block_ = 0;
  int in_block_ = 0;
};

// A warp leaves its sums in its ring when its sub-tiles are done: [kDecodeRows][kPitch].
template <int kDims>
constexpr int kSumPitch = kDims + 8;

template <typename E, int kDims>
__device__ void LeaveSums(DecodeShared& shared, float* sums, const SoftmaxState& state,
                          const float (&o)[kDims / 8][4]) {
  const int lane = LaneId(), g = lane / 4, t = lane % 4;
  SyncWarp();  // The ring is read no more.
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float* const row = sums + (g + 8 * r) * kSumPitch<kDims>;
    const float sum = RowSum(state.sum[r]);
    if (t == 0) {
      shared.max[WarpId()][g + 8 * r] = state.max[r];
      shared.sum[WarpId()][g + 8 * r] = sum;
    }
#pragma unroll
    for (int f = 0; f < kDims / 8; ++f) {
#pragma unroll
      for (int i = 0; i < 2; ++i) row[OutputDim<E>(f, 2 * t + i)] = o[f][2 * r + i];
    }
  }
}

// A warp's part of a piece.
template <bool kRule, typename T, typename E, int kDims>
__device__ void AttendPiece(const AttentionParams& p, const Piece& piece, const HeadTiles& heads,
                            DecodeShared& shared, void* shared_queries, char* ring) {
  SubTiles<kRule, E, kDims> tiles(p, piece, ring);
  for (int i = 0; i < p.stages - 1; ++i) tiles.Load(i, i);
  const int g = LaneId() / 4;
  const T* const queries = static_cast<const T*>(p.q) + p.query_start[piece.seq] * p.q_stride;
  const T* rows[2] = {nullptr, nullptr};
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    if (g + 8 * r < piece.num_rows)
      rows[r] = queries + heads.heads[piece.head_begin + g + 8 * r] * p.head_dim;
  }
  QueryOperand<kDims, 1> q[1];
  PrepareQueries<T, E>(p, rows[0], rows[1], shared_queries, kDecodeWarps, WarpId(), q[0]);
  if constexpr (kQueriesShared<kDims, 1>) __syncthreads();
  SoftmaxState state[1];
  float o[1][kDims / 8][4] = {};
  const int limit[1][2] = {{piece.context, piece.context}};
  int slot = 0, free_slot = p.stages - 1;
  for (int i = 0; i < tiles.count(); ++i) {
    WaitForStage(p.stages);
    SyncWarp();
    tiles.Load(i + p.stages - 1, free_slot);
    const int token = tiles.Token(i);
    const bool masked = token + kSubTileTokens > piece.context || (kRule && token < piece.first);
    AttendTile<kRule, E, kDims, kSubTileTokens>(p, q, tiles.K(slot), tiles.V(slot), token, masked, limit,
                                                state, o);
    free_slot = slot;
    slot = slot + 1 == p.stages ? 0 : slot + 1;
  }
  LeaveSums<E, kDims>(shared, reinterpret_cast<float*>(ring), state[0], o[0]);
}

// Adds up the four warps' parts: eight threads a row. `slot` nullptr: the context is whole, and the output is
// written.
template <typename T, int kDims>
__device__ void FinishPiece(const AttentionParams& p, const Piece& piece, const HeadTiles& heads,
                            const DecodeShared& shared, const char* rings, int64_t ring_bytes, float* slot) {
  const int row = static_cast<int>(threadIdx.x) / 8, part = static_cast<int>(threadIdx.x) % 8;
  float top = -INFINITY, sum = 0, weight[kDecodeWarps];
#pragma unroll
  for (int w = 0; w < kDecodeWarps; ++w) top = fmaxf(top, shared.max[w][row]);
#pragma unroll
  for (int w = 0; w < kDecodeWarps; ++w) {
    weight[w] = shared.max[w][row] == -INFINITY ? 0.0f : Exp2Approx(shared.max[w][row] - top);
    sum += weight[w] * shared.sum[w][row];
  }
  if (slot != nullptr && part == 0) {
    slot[kDecodeRows * kDims + row] = top;
    slot[kDecodeRows * kDims + kDecodeRows + row] = sum;
  }
  const bool there = row < piece.num_rows;
  T* const out = there ? static_cast<T*>(p.out) + p.query_start[piece.seq] * p.out_stride +
                             heads.heads[piece.head_begin + row] * p.head_dim
                       : nullptr;
  // The sink enters once, where the context is whole; a row has a head only where `there` is true.
  if (slot == nullptr && there) sum = SumWithSink(p, heads.heads[piece.head_begin + row], top, sum);
  const float scale = slot != nullptr ? p.v_scale : p.v_scale / sum;
#pragma unroll
  for (int d = 4 * part; d < kDims; d += 32) {
    Vec<float, 4> total{};
#pragma unroll
    for (int w = 0; w < kDecodeWarps; ++w) {
      const float* const sums =
          reinterpret_cast<const float*>(rings + w * ring_bytes) + row * kSumPitch<kDims> + d;
      const Vec<float, 4> x = LoadVec<float, 4>(sums);
#pragma unroll
      for (int i = 0; i < 4; ++i) total[i] = fmaf(weight[w], x[i], total[i]);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) total[i] *= scale;
    if (slot != nullptr) {
      StoreVec(slot + row * kDims + d, total);
    } else if (there && d < p.head_dim) {
      StoreVec(reinterpret_cast<uint32_t*>(out + d),
               Vec<uint32_t, 2>{Pack2<T>(total[0], total[1]), Pack2<T>(total[2], total[3])});
    }
  }
}

// Output rows of padding.
template <typename T>
__device__ void ZeroPadding(const AttentionParams& p) {
  for (int seq = static_cast<int>(blockIdx.x); seq < p.num_seqs; seq += static_cast<int>(gridDim.x)) {
    if (p.context_len[seq] > 0) continue;
    T* const out = static_cast<T*>(p.out) + p.query_start[seq] * p.out_stride;
    for (int i = static_cast<int>(threadIdx.x); i < p.num_heads * p.head_dim; i += kThreads)
      out[i] = FromFloat<T>(0);
  }
}

// Blocks 0 .. blocks - 1 share units [0, units): block b takes [Begin(b), Begin(b + 1)), no share is empty.
struct Shares {
  int64_t units;
  int64_t blocks;
  __device__ int64_t Begin(int64_t block) const { return block * units / blocks; }
  __device__ int64_t Owner(int64_t unit) const { return ((unit + 1) * blocks - 1) / units; }
};

// For the first piece of block b, which begins `within` a context that is units [begin, end).
__device__ inline void LeaveRecord(const AttentionParams& p, const PartsScratch& scratch,
                                   const Shares& shares, const Piece& piece, const HeadTiles& heads,
                                   int64_t begin, int64_t end) {
  const int64_t block = blockIdx.x;
  const int thread = static_cast<int>(threadIdx.x);
  DecodeRecord& record = scratch.Record(block);
  const bool second = shares.Begin(block - 1) <= begin;
  if (thread == 0) {
    record.parts = second ? static_cast<int32_t>(shares.Owner(end - 1) - block + 2) : 0;
    record.row = p.query_start[piece.seq];
  }
  if (second && thread < kDecodeRows) {
    record.heads[thread] = thread < piece.num_rows ? heads.heads[piece.head_begin + thread] : -1;
  }
}

template <bool kRule, typename T, typename E, int kDims>
__global__ void __launch_bounds__(kThreads, DecodeBlocksPerSm(kDims, sizeof(E)))
    DecodeKernel(AttentionParams p, PartsScratch scratch, int64_t ring_bytes) {
  GridDependencyLaunch();
  GridDependencyWait();
  DecodeShared& shared = SharedStorage<DecodeShared>();
  char* const extra = reinterpret_cast<char*>(&shared) + sizeof(DecodeShared);
  const HeadTiles heads(extra, p.num_heads);
  char* const queries = extra + HeadTiles::Bytes(p.num_heads);
  char* const rings = queries + kQueryBytes<kDims, 1>;
  ZeroPadding<T>(p);
  SortHeads<kThreads>(p.kv_head_of_head, heads, shared.num_head_tiles);
  const auto first_tile_of = [&](int seq) {
    return kRule ? FirstToken(p, p.context_len[seq]) / kDecodeTileTokens : 0;
  };
  const auto tiles_of = [&](int seq) {
    return (p.context_len[seq] + kDecodeTileTokens - 1) / kDecodeTileTokens - first_tile_of(seq);
  };
  TileScan<kThreads, decltype(tiles_of)> scan(shared.scan, p.num_seqs, tiles_of);
  const int num_head_tiles = shared.num_head_tiles;
  const int64_t units = int64_t{scan.total()} * num_head_tiles;
  const Shares shares{units, min(units, int64_t{gridDim.x})};
  if (threadIdx.x == 0) scratch.Record(blockIdx.x).parts = 0;
  if (blockIdx.x >= shares.blocks) return;
  int64_t unit = shares.Begin(blockIdx.x);
  const int64_t end = shares.Begin(blockIdx.x + 1);
  int seq, before;
  scan.Find(static_cast<int>(unit / num_head_tiles), seq, before);
  int64_t seq_begin = int64_t{before} * num_head_tiles;
  while (unit < end) {
    const int tiles = tiles_of(seq), at = static_cast<int>(unit - seq_begin), head_tile = at / tiles;
    const int first_tile = first_tile_of(seq);
    Piece piece{.seq = seq, .context = p.context_len[seq], .tile_begin = first_tile + at % tiles};
    if (kRule) piece.first = FirstToken(p, piece.context);
    piece.tile_end = static_cast<int>(min(int64_t{first_tile} + tiles, piece.tile_begin + (end - unit)));
    piece.head_begin = heads.begins[head_tile];
    piece.num_rows =
        (head_tile + 1 < num_head_tiles ? heads.begins[head_tile + 1] : p.num_heads) - piece.head_begin;
    piece.kv_head = heads.kv_heads[piece.head_begin];
    AttendPiece<kRule, T, E, kDims>(p, piece, heads, shared, queries, rings + WarpId() * ring_bytes);
    __syncthreads();
    const bool within = piece.tile_begin > first_tile;  // The context began in an earlier block.
    const bool whole = !within && piece.tile_end == first_tile + tiles;
    FinishPiece<T, kDims>(p, piece, heads, shared, rings, ring_bytes,
                          whole ? nullptr : scratch.Slot(blockIdx.x, within ? 0 : 1));
    if (within) {
      const int64_t begin = seq_begin + int64_t{head_tile} * tiles;
      LeaveRecord(p, scratch, shares, piece, heads, begin, begin + tiles);
    }
    __syncthreads();  // The rings are free again.
    unit += piece.tile_end - piece.tile_begin;
    if (unit - seq_begin < int64_t{tiles} * num_head_tiles) continue;
    seq_begin = unit;
    do {
      ++seq;
    } while (unit < end && p.context_len[seq] == 0);
  }
}

}  // namespace

bool DecodeAttention(CudaDevice& device, const AttentionShape& shape, const AttentionParams& params,
                     int64_t max_context_len, char* scratch) {
  const int64_t query_bytes = CompiledHeadDim(shape.head_dim) == 256 ? kQueryBytes<256, 1> : 0;
  const int64_t header =
      static_cast<int64_t>(sizeof(DecodeShared)) + HeadTiles::Bytes(shape.num_heads) + query_bytes;
  // The most tokens of the tiles of a window, which may begin anywhere in a tile.
  const int64_t window = int64_t{params.window} + kDecodeTileTokens - 1;
  const DecodePlan plan =
      PlanDecode(AttentionChipOf(device), shape, params.num_seqs, std::min(max_context_len, window), header);
  if (plan.stages == 0) return false;
  AttentionParams p = params;
  p.stages = plan.stages;
  const PartsScratch at(scratch, plan.scratch);
  const unsigned blocks = static_cast<unsigned>(plan.num_blocks);
  DispatchDims(plan.dims, [&](auto dims) {
    DispatchTypes(shape, [&](auto act, auto element) {
      using T = typename decltype(act)::type;
      using E = typename decltype(element)::type;
      DispatchRule(p, [&](auto rule) {
        Launch(device,
               {.grid = dim3(blocks),
                .block = dim3(kThreads),
                .shared_bytes = plan.shared_bytes,
                .overlaps_previous = true},
               DecodeKernel<decltype(rule)::value, T, E, decltype(dims)::value>, p, at,
               (plan.shared_bytes - header) / kDecodeWarps);
      });
    });
  });
  if (blocks > 1) CombineParts(device, shape.act, p, at, blocks);  // One block cuts nothing.
  return true;
}

}  // namespace somnus::SOMNUS_CUDA_NAMESPACE
