// Paged attention over a bf16 cache on AMX tiles: attention_impl.h's chunks and softmax, with both products
// by TDPBF16PS over groups of 16 tokens. Part of kernels_amx.cc.
//
// K's and V's layouts in a block are those of tiles. A tile of rows has the products of all groups that its
// last row sees; rows that see less have weights of zero there, which change neither a sum that is a normal
// number nor, after FlushSmallSums, any other.

namespace somnus::cpu::SOMNUS_ISA {
namespace {

constexpr int64_t kGroupTokens = 16;
constexpr int64_t kMaxGroups = kPieceTokens / kGroupTokens;
constexpr int64_t kScoreStride = kPieceTokens * 4;   // bytes
constexpr int64_t kWeightStride = kPieceTokens * 2;  // bytes
constexpr int64_t kSumTiles = 4;
constexpr int64_t kMaxTileDims = 256;

// Calls fn.template operator()<i>() for i in [0, count), which is at most kSumTiles: numbers of tiles are
// part of instructions.
template <typename Fn>
SOMNUS_INLINE void ForTiles(int64_t count, const Fn& fn) {
  fn.template operator()<0>();
  if (count > 1) fn.template operator()<1>();
  if (count > 2) fn.template operator()<2>();
  if (count > 3) fn.template operator()<3>();
}

struct TileAttention : Attention<TileBF16> {
  using Base = Attention<TileBF16>;

  static bool Serves(const KvCacheView& cache) {
    return cache.dtype == DataType::kBF16 && cache.head_dim % kStepK == 0 && cache.head_dim <= kMaxTileDims &&
           cache.block_size % kGroupTokens == 0;
  }

  struct Groups {
    const char* k[kMaxGroups];
    const char* v[kMaxGroups];
    int64_t begin;  // position of the first
    int64_t count;
  };
  // Rows of the group of rows, of one tile.
  struct Rows {
    int64_t begin;
    int64_t count;
    int64_t least;  // tokens that the first sees
    int64_t most;   // and the last
  };

  Groups GroupsOf(const Chunk& chunk) const {
    Groups groups{.k = {}, .v = {}, .begin = chunk.pieces[0].position, .count = 0};
    for (int p = 0; p < chunk.num_pieces; ++p) {
      const Piece& piece = chunk.pieces[p];
      for (int64_t t = 0; t < piece.tokens; t += kGroupTokens, ++groups.count) {
        groups.k[groups.count] = piece.k + t * 4;
        groups.v[groups.count] = piece.v + t / 2 * v_row_bytes;
      }
    }
    return groups;
  }

  static int64_t SeenGroups(const Groups& groups, int64_t limit) {
    return Max(0, Min(groups.count, (limit - groups.begin + kGroupTokens - 1) / kGroupTokens));
  }

  void Score(const Groups& groups, const Rows& rows) {
    const int64_t count = SeenGroups(groups, rows.most);
    ForTiles(count, [&]<int i>() { TileZero<i>(); });
    const char* x = reinterpret_cast<const char*>(q + rows.begin * dims);
    for (int64_t d = 0; d < head_dim; d += kStepK) {
      TileLoad<4>(x + 2 * d, dims * 2);
      ForTiles(count, [&]<int i>() {
        TileLoad<6>(groups.k[i] + d * block_size * 2, block_size * 4);
        TileDot<i, 4, 6>();
      });
    }
    float* const to = scores + rows.begin * kPieceTokens;
    ForTiles(count, [&]<int i>() { TileStore<i>(to + i * kGroupTokens, kScoreStride); });
  }

  // The row's scores, scaled in place, and its largest one so far.
  float ScaleAndMax(const Groups& groups, int64_t row) {
    float* const s = scores + row * kPieceTokens;
    VF top = Set(max[row]);
    for (int64_t g = 0; g < SeenGroups(groups, limits[row]); ++g) {
      const int64_t tokens = limits[row] - groups.begin - g * kGroupTokens;
      const VF scaled = MaskFrom(Load(s + g * kGroupTokens) * args.scale, tokens, -__builtin_inff());
      Store(s + g * kGroupTokens, scaled);
      top = MaxV(scaled, top);
    }
    return ReduceMax(top);
  }

  // The row's weights for the first `count` groups, zero where it does not see; returns their sum.
  float WeighRow(const Groups& groups, int64_t row, int64_t count, float new_max) {
    const float* const s = scores + row * kPieceTokens;
    ActType* const w = weights + row * kPieceTokens;
    const int64_t seen = SeenGroups(groups, limits[row]);
    VF total = {};
    for (int64_t g = 0; g < seen; ++g) {
      const VF p = Exp(Load(s + g * kGroupTokens) - new_max);  // 0 of what is masked
      total += p;
      Act::Put(w + g * kGroupTokens, p);
    }
    for (int64_t g = seen; g < count; ++g) Act::Put(w + g * kGroupTokens, VF{});
    return _mm512_reduce_add_ps((__m512)total);
  }

  void Weigh(const Groups& groups, const Rows& rows) {
    const int64_t count = SeenGroups(groups, rows.most);
    float* const old_max = max + rows.begin;
    float* const sums = sum + rows.begin;
    // Lanes beyond the rows stay as they are.
    float new_max[kW], total[kW] = {}, decay[kW];
    Store(new_max, Load(old_max));
    for (int64_t r = 0; r < rows.count; ++r) new_max[r] = ScaleAndMax(groups, rows.begin + r);
    for (int64_t r = 0; r < rows.count; ++r) total[r] = WeighRow(groups, rows.begin + r, count, new_max[r]);
    const VF same = Load(old_max), now = Load(new_max);
    const VF factors = now == same ? Set(1) : Exp(same - now);
    Store(decay, factors);
    Store(sums, Load(sums) * factors + Load(total));
    Store(old_max, now);
    for (int64_t r = 0; r < rows.count; ++r) {
      if (decay[r] == 1) continue;
      float* const a = acc + (rows.begin + r) * dims;
      for (int64_t d = 0; d < dims; d += kW) Store(a + d, Load(a + d) * decay[r]);
    }
  }

  // acc += weights * V for `count` tiles of 16 dims from d, over the groups [begin, end).
  void AccumulateDims(const Groups& groups, int64_t begin, int64_t end, const Rows& rows, int64_t d,
                      int64_t count) {
    float* const sums = acc + rows.begin * dims + d;
    ForTiles(count, [&]<int i>() { TileLoad<i>(sums + i * kW, dims * 4); });
    const char* const w = reinterpret_cast<const char*>(weights + rows.begin * kPieceTokens);
    for (int64_t g = begin; g < end; ++g) {
      TileLoad<5>(w + g * kGroupTokens * 2, kWeightStride);
      ForTiles(count, [&]<int i>() {
        TileLoad<7>(groups.v[g] + (d + i * kW) * 4, v_row_bytes);
        TileDot<i, 5, 7>();
      });
    }
    ForTiles(count, [&]<int i>() { TileStore<i>(sums + i * kW, dims * 4); });
  }

  void AccumulateGroups(const Groups& groups, int64_t begin, int64_t end, const Rows& rows) {
    if (begin >= end) return;
    for (int64_t d = 0; d < dims; d += kSumTiles * kW)
      AccumulateDims(groups, begin, end, rows, d, Min(kSumTiles, (dims - d) / kW));
  }

  // A group's values with zeros for the tokens from `seen` on. Returns whether all are finite.
  bool CopySeen(const char* v, int64_t seen, VU* to) const {
    constexpr uint32_t kLow = 0x7f80, kHigh = 0x7f800000;
    VI infinite = {};
    for (int64_t pair = 0; pair < kGroupTokens / 2; ++pair, v += v_row_bytes) {
      const int64_t tokens = seen - 2 * pair;
      const uint32_t mask = tokens >= 2 ? ~0u : tokens == 1 ? 0xffffu : 0u;
      for (int64_t d = 0; d < dims; d += kW) {
        const VU bits = LoadU(v + d * 4) & mask;
        infinite |= (VI)((bits & kLow) == kLow) | (VI)((bits & kHigh) == kHigh);
        *to++ = bits;
      }
    }
    return _mm512_test_epi32_mask((__m512i)infinite, (__m512i)infinite) == 0;
  }

  // A group of which the rows see different parts, where zero times a value would be NaN: row by row.
  void AccumulateRowByRow(const Groups& groups, int64_t g, const Rows& rows) {
    VU values[kMaxTileDims / 2];
    Groups own = groups;
    own.v[g] = reinterpret_cast<const char*>(values);
    float* const sums = acc + rows.begin * dims;
    const size_t bytes = static_cast<size_t>(rows.count * dims) * 4;
    float before[kTileRows * kMaxTileDims], after[kTileRows * kMaxTileDims];
    __builtin_memcpy(after, sums, bytes);
    __builtin_memcpy(before, sums, bytes);
    for (int64_t r = 0; r < rows.count; ++r) {
      const int64_t seen = limits[rows.begin + r] - groups.begin - g * kGroupTokens;
      if (seen <= 0) continue;
      CopySeen(groups.v[g], seen, values);
      AccumulateGroups(own, g, g + 1, rows);
      __builtin_memcpy(after + r * dims, sums + r * dims, static_cast<size_t>(dims) * 4);
      __builtin_memcpy(sums, before, bytes);
    }
    __builtin_memcpy(sums, after, bytes);
  }

  // Groups that some row does not see whole are replaced by copies without what no row sees.
  void Accumulate(Groups groups, const Rows& rows) {
    const int64_t seen = SeenGroups(groups, rows.most);
    const int64_t whole = Max(0, Min(seen, (rows.least - groups.begin) / kGroupTokens));
    VU copies[kMaxGroups][kMaxTileDims / 2];
    bool finite = true;
    for (int64_t g = whole; g < seen; ++g) {
      finite &= CopySeen(groups.v[g], rows.most - groups.begin - g * kGroupTokens, copies[g]);
      if (finite || rows.least == rows.most) groups.v[g] = reinterpret_cast<const char*>(copies[g]);
    }
    if (finite || rows.least == rows.most) return AccumulateGroups(groups, 0, seen, rows);
    AccumulateGroups(groups, 0, whole, rows);
    for (int64_t g = whole; g < seen; ++g) AccumulateRowByRow(groups, g, rows);
  }

  // Tiles make a sum that is zero or subnormal +0 when they add nothing to it.
  void FlushSmallSums(int64_t rows) {
    for (float* a = acc; a < acc + rows * dims; a += kW) {
      const VF v = Load(a);
      Store(a, (VF)((VU)v & 0x7fffffffu) < 0x1p-126f ? VF{} : v);
    }
  }

  // Calls fn with each tile of rows that sees the position. The last may have rows of scratch beyond the end,
  // which nothing reads.
  template <typename Fn>
  void ForRows(int64_t rows, int64_t height, int64_t position, const Fn& fn) const {
    for (int64_t row = 0; row < rows; row += height) {
      const int64_t count = Min(height, rows - row);
      const Rows tile{row, count, limits[row], limits[row + count - 1]};
      if (tile.most > position) fn(tile);
    }
  }

  void AddTokens(int64_t rows, int64_t begin, int64_t end) {
    const int64_t tiles = (rows + kTileRows - 1) / kTileRows, height = (rows + tiles - 1) / tiles;
    const TileScope scope(height, 2 * kStepK, 2 * kGroupTokens);
    const int64_t last = limits[rows - 1];
    for (int64_t position = begin; position < end;) {
      const Chunk chunk = ChunkAt(position, end);
      if (tiles == 1) Ask(chunk, chunk.end < last ? ChunkAt(chunk.end, last) : chunk);
      const Groups groups = GroupsOf(chunk);
      // Each by itself for all tiles: what one has stored is in the cache when the next loads it.
      ForRows(rows, height, position, [&](const Rows& tile) { Score(groups, tile); });
      ForRows(rows, height, position, [&](const Rows& tile) { Weigh(groups, tile); });
      ForRows(rows, height, position, [&](const Rows& tile) { Accumulate(groups, tile); });
      position = chunk.end;
    }
    FlushSmallSums(rows);
  }
};

const AttentionKernels& TileAttentionFor(const KvCacheView& cache) {
  return TileAttention::Serves(cache) ? AttentionOf<TileAttention>::kKernels : AttentionFor(cache);
}

}  // namespace
}  // namespace somnus::cpu::SOMNUS_ISA
