// Paged attention on AMX tiles: attention_impl.h's chunks, with both products by TDPBF16PS. Part of
// kernels_amx.cc.
//
// K's layout in a block of bf16 is the layout of tiles of 16 tokens, a group. V is multiplied in steps of 32
// tokens, as a tile of 16 takes as long: a chunk's values are copied side by side, once for all rows. A bf16
// holds every value of a cache of bytes exactly: such a chunk's keys and values become bf16 in that copy. A
// tile of rows has the products of all tokens that some row of the tile sees; rows that see less have weights
// of zero there, which change neither a sum that is a normal number nor, after FlushSmallSums, any other.
// Steps lie where they lie without a window, and those before all windows are left out.

namespace somnus::cpu::SOMNUS_ISA {
namespace {

constexpr int64_t kTileChunkTokens = 128;
constexpr int64_t kGroupTokens = 16;
constexpr int64_t kMaxGroups = kTileChunkTokens / kGroupTokens;
constexpr int64_t kStepTokens = 32;
constexpr int64_t kScoreStride = kTileChunkTokens * 4;   // bytes
constexpr int64_t kWeightStride = kTileChunkTokens * 2;  // bytes
constexpr int64_t kSumTiles = 4;
constexpr int64_t kMaxTileDims = 256;
constexpr float kLog2E = 1.44269504f;

// Calls fn.template operator()<i>() for i in [0, count), which is at most kSumTiles: numbers of tiles are
// part of instructions.
template <typename Fn>
SOMNUS_INLINE void ForTiles(int64_t count, const Fn& fn) {
  fn.template operator()<0>();
  if (count > 1) fn.template operator()<1>();
  if (count > 2) fn.template operator()<2>();
  if (count > 3) fn.template operator()<3>();
}

// 2^t for t <= 0, within 2.1 ulp where that is a normal number; 0 for -inf.
SOMNUS_INLINE VF Exp2(VF t) {
  const VF r = (VF)_mm512_reduce_ps((__m512)t, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const VF n = t - r;
  VF p = Set(0.00132647273f);
  p = Fma(p, r, Set(0.00967151299f));
  p = Fma(p, r, Set(0.0555073358f));
  p = Fma(p, r, Set(0.240222424f));
  p = Fma(p, r, Set(0.693147004f));
  p = Fma(p, r, Set(1.0f));
  return (VF)_mm512_scalef_ps((__m512)p, (__m512)n);
}

// Lane r becomes the lanes of v[r], folded by `op` in a fixed order.
template <typename Op>
SOMNUS_INLINE VF FoldRows(VF (&v)[kW], const Op& op) {
#pragma GCC unroll 4
  for (int w = kW / 2; w > 0; w /= 2) {
    VI low, high;
    for (int lane = 0; lane < kW; ++lane) {
      low[lane] = lane & w ? lane - w + kW : lane;
      high[lane] = lane & w ? lane + kW : lane + w;
    }
#pragma GCC unroll 8
    for (int i = 0; i < w; ++i)
      v[i] = op(__builtin_shuffle(v[i], v[i + w], low), __builtin_shuffle(v[i], v[i + w], high));
  }
  return v[0];
}

template <typename S>
struct TileAttention : Attention<S, kTileChunkTokens> {
  using Base = Attention<S, kTileChunkTokens>;
  using Base::acc, Base::args, Base::block_size, Base::dims, Base::firsts, Base::head_dim, Base::kScaled,
      Base::limits, Base::max, Base::q, Base::scores, Base::sum, Base::v_row_bytes, Base::weights;
  using typename Base::Act;
  using typename Base::ActType;
  static constexpr bool kInPlace = S::E::kType == DataType::kBF16;  // K's tiles
  static constexpr int64_t kColumnBytes = Base::kPair * static_cast<int64_t>(sizeof(typename S::E::Type));

  // Capped scores are final: neither a token's scale of K nor `scale` is to be multiplied any more.
  const bool capped = args.logit_softcap > 0;
  const float scale = capped ? 1 : args.scale;

  static bool Serves(const KvCacheView& cache) {
    return !cache.latent && cache.head_dim % kStepK == 0 && cache.head_dim <= kMaxTileDims &&
           cache.block_size % kGroupTokens == 0;
  }

  struct Groups {
    const char* k[kMaxGroups];
    const char* v[kMaxGroups];
    const float* k_scales[kMaxGroups];
    const float* v_scales[kMaxGroups];
    int64_t begin;  // position of the first
    int64_t count;
  };
  // K of a chunk, as tiles take K: [groups][dims / 2][kGroupTokens][2].
  struct Keys {
    VU data[kInPlace ? 1 : kMaxGroups * kMaxTileDims / 2];
  };
  // V of a chunk, as tiles take V: [tokens / 2][dims][2].
  struct Values {
    VU data[kTileChunkTokens / 2 * kMaxTileDims / kW];
    bool finite[kTileChunkTokens / kStepTokens];  // each step that may be unseen by some row
  };
  // Rows of one tile, out of the group of rows.
  struct Rows {
    int64_t begin;
    int64_t count;
    int64_t first;  // token that the first row sees
    int64_t end;    // of the tokens that the last row sees
  };
  // Tokens [first, end), of which each row sees [all_first, all_end).
  struct Tokens {
    int64_t first, all_first, all_end, end;
  };

  Groups GroupsOf(const Chunk& chunk) const {
    Groups groups;
    groups.begin = chunk.pieces[0].position;
    groups.count = 0;
    for (int p = 0; p < chunk.num_pieces; ++p) {
      const Piece& piece = chunk.pieces[p];
      for (int64_t t = 0; t < piece.tokens; t += kGroupTokens, ++groups.count) {
        groups.k[groups.count] = piece.k + t * kColumnBytes;
        groups.v[groups.count] = piece.v + t / Base::kPair * v_row_bytes;
        groups.k_scales[groups.count] = piece.k_scales + t;
        groups.v_scales[groups.count] = piece.v_scales + t;
      }
    }
    return groups;
  }

  // The group, and the step, of the first token at or beyond `first`.
  static int64_t FirstGroup(const Groups& groups, int64_t first) {
    return Max(0, first - groups.begin) / kGroupTokens;
  }
  static int64_t FirstStep(const Groups& groups, int64_t first) {
    return Max(0, first - groups.begin) / kStepTokens;
  }
  // How many groups, and how many steps, hold a token below the limit.
  static int64_t SeenGroups(const Groups& groups, int64_t limit) {
    return Max(0, Min(groups.count, (limit - groups.begin + kGroupTokens - 1) / kGroupTokens));
  }
  static int64_t SeenSteps(const Groups& groups, int64_t limit) {
    return (SeenGroups(groups, limit) * kGroupTokens + kStepTokens - 1) / kStepTokens;
  }
  // Calls fn(column, mask) for each group that the row sees; mask: the tokens of the group that the row sees.
  template <typename Fn>
  SOMNUS_INLINE void ForSeen(const Groups& groups, int64_t row, const Fn& fn) const {
    const int64_t tokens = Min(groups.count * kGroupTokens, limits[row] - groups.begin);
    const int64_t first = Max(0, firsts[row] - groups.begin);
    int64_t t = first / kGroupTokens * kGroupTokens;
    if (t < first && t < tokens) {
      fn(t, static_cast<__mmask16>(Below(tokens - t) & ~Below(first - t)));
      t += kGroupTokens;
    }
    for (; t + kGroupTokens <= tokens; t += kGroupTokens) fn(t, static_cast<__mmask16>(0xffff));
    if (t < tokens) fn(t, static_cast<__mmask16>(Below(tokens - t)));
  }
  static SOMNUS_INLINE uint32_t Below(int64_t lane) {
    return lane >= kGroupTokens ? 0xffffu : (1u << lane) - 1;
  }

  void CopyKeys(const Groups& groups, Keys* keys) const {
    if constexpr (kInPlace) return;
    for (int64_t g = FirstGroup(groups, firsts[0]); g < groups.count; ++g) {
      VU* to = keys->data + g * head_dim / 2;
      for (int64_t d = 0; d < head_dim; d += 2) *to++ = S::Pair(groups.k[g] + d * block_size, block_size);
    }
  }

  // The scores of up to kSumTiles groups from g.
  void ScoreGroups(const Groups& groups, const Keys& keys, int64_t g, int64_t count, const Rows& rows) {
    ForTiles(count, [&]<int i>() { TileZero<i>(); });
    const char* x = reinterpret_cast<const char*>(q + rows.begin * dims);
    for (int64_t d = 0; d < head_dim; d += kStepK) {
      TileLoad<4>(x + 2 * d, dims * 2);
      ForTiles(count, [&]<int i>() {
        if constexpr (kInPlace) {
          TileLoad<6>(groups.k[g + i] + d * block_size * 2, block_size * 4);
        } else {
          TileLoad<6>(keys.data + ((g + i) * head_dim + d) / 2, 64);
        }
        TileDot<i, 4, 6>();
      });
    }
    float* const to = scores + rows.begin * kTileChunkTokens + g * kGroupTokens;
    ForTiles(count, [&]<int i>() { TileStore<i>(to + i * kGroupTokens, kScoreStride); });
  }

  void Score(const Groups& groups, const Keys& keys, const Rows& rows) {
    const int64_t count = SeenGroups(groups, rows.end);
    for (int64_t g = FirstGroup(groups, rows.first); g < count; g += kSumTiles)
      ScoreGroups(groups, keys, g, Min(kSumTiles, count - g), rows);
    if (!capped) return;
    for (int64_t r = rows.begin; r < rows.begin + rows.count; ++r) CapRow(groups, r);
  }

  // The row's scores as they are after the soft cap.
  void CapRow(const Groups& groups, int64_t row) {
    float* const s = scores + row * kTileChunkTokens;
    const float cap = args.logit_softcap, unit = args.scale / cap;
    ForSeen(groups, row, [&](int64_t t, __mmask16) {
      const VF score = Load(s + t) * unit;
      Store(s + t, Tanh(kScaled ? score * Load(groups.k_scales[t / kGroupTokens]) : score) * cap);
    });
  }

  SOMNUS_INLINE VF ScoresAt(const Groups& groups, int64_t row, int64_t t) const {
    const VF s = Load(scores + row * kTileChunkTokens + t);
    return kScaled && !capped ? s * Load(groups.k_scales[t / kGroupTokens]) : s;
  }

  // The row's largest score of the chunk, before scaling, in some lane.
  VF LargestOf(const Groups& groups, int64_t row) const {
    VF top = Set(-__builtin_inff());
    ForSeen(groups, row, [&](int64_t t, __mmask16 seen) {
      top = (VF)_mm512_mask_max_ps((__m512)top, seen, (__m512)ScoresAt(groups, row, t), (__m512)top);
    });
    return top;
  }

  // The row's weights for the steps [begin, end), zero where the row does not see; returns the sum of the
  // weights, over lanes.
  VF WeighRow(const Groups& groups, int64_t row, int64_t begin_step, int64_t end_step, float new_max) {
    ActType* const w = weights + row * kTileChunkTokens;
    const VF unit = Set(scale * kLog2E), less = Set(new_max * -kLog2E);
    VF total = {};
    int64_t end = begin_step * kStepTokens;
    ForSeen(groups, row, [&](int64_t t, __mmask16 seen) {
      for (; end < t; end += kGroupTokens) Act::Put(w + end, VF{});
      const VF p = Exp2(Fma(ScoresAt(groups, row, t), unit, less));
      total = (VF)_mm512_mask_add_ps((__m512)total, seen, (__m512)total, (__m512)p);
      const VF weight = kScaled ? p * Load(groups.v_scales[t / kGroupTokens]) : p;
      Act::Put(w + t, (VF)_mm512_maskz_mov_ps(seen, (__m512)weight));
      end = t + kGroupTokens;
    });
    for (; end < end_step * kStepTokens; end += kGroupTokens) Act::Put(w + end, VF{});
    return total;
  }

  void Weigh(const Groups& groups, const Rows& rows) {
    const int64_t begin = FirstStep(groups, rows.first), end = SeenSteps(groups, rows.end);
    float* const old_max = max + rows.begin;
    float* const sums = sum + rows.begin;
    // Lanes beyond the rows stay unchanged.
    VF lanes[kW];
    for (int64_t r = 0; r < rows.count; ++r) lanes[r] = LargestOf(groups, rows.begin + r);
    for (int64_t r = rows.count; r < kW; ++r) lanes[r] = Set(-__builtin_inff());
    const VF before = Load(old_max);
    const VF now = MaxV(FoldRows(lanes, [](VF a, VF b) { return MaxV(a, b); }) * scale, before);
    float new_max[kW], decay[kW];
    Store(new_max, now);
    for (int64_t r = 0; r < rows.count; ++r)
      lanes[r] = WeighRow(groups, rows.begin + r, begin, end, new_max[r]);
    for (int64_t r = rows.count; r < kW; ++r) lanes[r] = VF{};
    const VF total = FoldRows(lanes, [](VF a, VF b) { return a + b; });
    const VF factors = now == before ? Set(1) : Exp2((before - now) * kLog2E);
    Store(decay, factors);
    Store(sums, Load(sums) * factors + total);
    Store(old_max, now);
    for (int64_t r = 0; r < rows.count; ++r) {
      if (decay[r] == 1) continue;
      float* const a = acc + (rows.begin + r) * dims;
      for (int64_t d = 0; d < dims; d += kW) Store(a + d, Load(a + d) * decay[r]);
    }
  }

  // acc += weights * V for `count` tiles of 16 dims from d, over the steps [begin, end).
  void AccumulateDims(const Values& values, int64_t begin, int64_t end, const Rows& rows, int64_t d,
                      int64_t count) {
    float* const sums = acc + rows.begin * dims + d;
    ForTiles(count, [&]<int i>() { TileLoad<i>(sums + i * kW, dims * 4); });
    const char* const w = reinterpret_cast<const char*>(weights + rows.begin * kTileChunkTokens);
    const char* const v = reinterpret_cast<const char*>(values.data) + d * 4;
    for (int64_t s = begin; s < end; ++s) {
      TileLoad<5>(w + s * kStepTokens * 2, kWeightStride);
      ForTiles(count, [&]<int i>() {
        TileLoad<7>(v + s * kStepTokens / 2 * dims * 4 + i * kW * 4, dims * 4);
        TileDot<i, 5, 7>();
      });
    }
    ForTiles(count, [&]<int i>() { TileStore<i>(sums + i * kW, dims * 4); });
  }

  void AccumulateSteps(const Values& values, int64_t begin, int64_t end, const Rows& rows) {
    if (begin >= end) return;
    for (int64_t d = 0; d < dims; d += kSumTiles * kW)
      AccumulateDims(values, begin, end, rows, d, Min(kSumTiles, (dims - d) / kW));
  }

  // Calls fn(pair, vector) for each pair of tokens of a group and each vector of its dims.
  template <typename Fn>
  SOMNUS_INLINE void ForValues(const char* v, const Fn& fn) const {
    for (int64_t pair = 0; pair < kGroupTokens / 2; ++pair, v += 2 / Base::kPair * v_row_bytes) {
      for (int64_t d = 0; d < dims; d += kW) fn(pair, S::Pair(v + d * kColumnBytes, v_row_bytes));
    }
  }

  // A group's values with zeros for the tokens outside [from, seen). Returns whether all are finite.
  bool CopySeen(const char* v, int64_t from, int64_t seen, VU* to) const {
    constexpr uint32_t kLow = 0x7f80, kHigh = 0x7f800000;
    VI infinite = {};
    ForValues(v, [&](int64_t pair, VU values) {
      const int64_t tokens = seen - 2 * pair, before = from - 2 * pair;
      const uint32_t below = tokens >= 2 ? ~0u : tokens == 1 ? 0xffffu : 0u;
      const uint32_t mask = before <= 0 ? below : before == 1 ? below & 0xffff0000u : 0u;
      const VU bits = values & mask;
      infinite |= (VI)((bits & kLow) == kLow) | (VI)((bits & kHigh) == kHigh);
      *to++ = bits;
    });
    return _mm512_test_epi32_mask((__m512i)infinite, (__m512i)infinite) == 0;
  }

  // The values of the tokens, and zeros up to whole steps.
  void CopyValues(const Groups& groups, const Tokens& tokens, Values* values) const {
    const int64_t vectors = kGroupTokens / 2 * dims / kW, count = SeenGroups(groups, tokens.end);
    const int64_t first = FirstGroup(groups, tokens.first);
    for (bool& finite : values->finite) finite = true;
    for (int64_t g = first; g < count; ++g) {
      VU* to = values->data + g * vectors;
      const int64_t position = groups.begin + g * kGroupTokens;
      if (position >= tokens.all_first && position + kGroupTokens <= tokens.all_end) {
        ForValues(groups.v[g], [&](int64_t, VU pairs) { *to++ = pairs; });
      } else {
        values->finite[g * kGroupTokens / kStepTokens] &=
            CopySeen(groups.v[g], tokens.first - position, tokens.end - position, to);
      }
    }
    const int64_t begin = FirstStep(groups, tokens.first) * kStepTokens / 2 * dims / kW;
    const int64_t end = SeenSteps(groups, tokens.end) * kStepTokens / 2 * dims / kW;
    for (int64_t i = begin; i < first * vectors; ++i) values->data[i] = VU{};
    for (int64_t i = count * vectors; i < end; ++i) values->data[i] = VU{};
  }

  // A step of which the rows see different parts, where zero times a value would be NaN: row by row.
  void AccumulateRowByRow(const Groups& groups, int64_t step, const Rows& rows) {
    Values own;
    float* const sums = acc + rows.begin * dims;
    const size_t bytes = static_cast<size_t>(rows.count * dims) * 4;
    float before[kTileRows * kMaxTileDims], after[kTileRows * kMaxTileDims];
    __builtin_memcpy(after, sums, bytes);
    __builtin_memcpy(before, sums, bytes);
    for (int64_t r = 0; r < rows.count; ++r) {
      const int64_t first = firsts[rows.begin + r], limit = limits[rows.begin + r];
      if (SeenSteps(groups, limit) <= step || FirstStep(groups, first) > step) continue;
      CopyValues(groups, {first, first, limit, limit}, &own);
      AccumulateSteps(own, step, step + 1, rows);
      __builtin_memcpy(after + r * dims, sums + r * dims, static_cast<size_t>(dims) * 4);
      __builtin_memcpy(sums, before, bytes);
    }
    __builtin_memcpy(sums, after, bytes);
  }

  void Accumulate(const Groups& groups, const Values& values, const Rows& rows) {
    const int64_t end = SeenSteps(groups, rows.end);
    int64_t begin = FirstStep(groups, rows.first);
    for (int64_t step = begin; step < end; ++step) {
      if (values.finite[step]) continue;
      AccumulateSteps(values, begin, step, rows);
      AccumulateRowByRow(groups, step, rows);
      begin = step + 1;
    }
    AccumulateSteps(values, begin, end, rows);
  }

  // When tiles add nothing to a sum that is zero or subnormal, the sum becomes +0.
  void FlushSmallSums(int64_t rows) {
    for (float* a = acc; a < acc + rows * dims; a += kW) {
      const VF v = Load(a);
      Store(a, (VF)((VU)v & 0x7fffffffu) < 0x1p-126f ? VF{} : v);
    }
  }

  // Calls fn with each tile of rows that sees a token of the chunk. The last may have rows of scratch beyond
  // the end, which nothing reads.
  template <typename Fn>
  void ForRows(int64_t rows, int64_t height, const Chunk& chunk, const Fn& fn) const {
    for (int64_t row = 0; row < rows; row += height) {
      const int64_t count = Min(height, rows - row);
      const Rows tile{row, count, firsts[row], limits[row + count - 1]};
      if (tile.end > chunk.pieces[0].position && tile.first < chunk.end) fn(tile);
    }
  }

  // With few rows memory bounds the loop: prefetches this chunk's values and the next chunk's keys.
  void Ask(const Chunk& chunk, const Chunk& next) const {
    const auto ask = [](const char* data, int64_t bytes) {
      for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(data + i, 0, 2);
    };
    const int64_t scales = 2 * this->scale_bytes, k_bytes = KBytes(S::E::kType, block_size, head_dim);
    for (int p = 0; p < chunk.num_pieces; ++p)
      ask(chunk.pieces[p].v, chunk.pieces[p].tokens / Base::kPair * v_row_bytes);
    if (next.end == chunk.end || block_size > kTileChunkTokens) return;
    for (int p = 0; p < next.num_pieces; ++p) ask(next.pieces[p].k - scales, scales + k_bytes);
  }

  void AddTokens(int64_t rows, int64_t begin, int64_t end) {
    const int64_t tiles = (rows + kTileRows - 1) / kTileRows, height = (rows + tiles - 1) / tiles;
    const TileScope scope(height, 2 * kStepK, 2 * kStepTokens);
    const int64_t last = limits[rows - 1];
    const Tokens tokens{firsts[0], firsts[rows - 1], limits[0], last};
    Keys keys;
    Values values;
    for (int64_t position = this->FirstChunk(begin); position < end;) {
      const Chunk chunk = this->ChunkAt(position, end, 0);
      if (tiles == 1) Ask(chunk, chunk.end < last ? this->ChunkAt(chunk.end, last, 0) : chunk);
      const Groups groups = GroupsOf(chunk);
      CopyKeys(groups, &keys);
      // Each phase runs for all tiles before the next phase: the results of a phase are in the cache when the
      // next phase loads them.
      ForRows(rows, height, chunk, [&](const Rows& tile) { Score(groups, keys, tile); });
      ForRows(rows, height, chunk, [&](const Rows& tile) { Weigh(groups, tile); });
      CopyValues(groups, tokens, &values);
      ForRows(rows, height, chunk, [&](const Rows& tile) { Accumulate(groups, values, tile); });
      position = chunk.end;
    }
    FlushSmallSums(rows);
  }
};

// Over bytes, tiles round q and weights to bf16.
const AttentionKernels* TileAttentionFor(const KvCacheView& cache, DataType activations) {
  if (!TileAttention<StoredBF16>::Serves(cache)) return nullptr;  // all types alike
  if (cache.dtype == DataType::kBF16) return &AttentionOf<TileAttention<StoredBF16>>::kKernels;
  if (activations != DataType::kBF16) return nullptr;
  if (cache.dtype == DataType::kF8E4M3) return &AttentionOf<TileAttention<StoredF8>>::kKernels;
  return cache.dtype == DataType::kI8 ? &AttentionOf<TileAttention<StoredI8>>::kKernels : nullptr;
}

}  // namespace
}  // namespace somnus::cpu::SOMNUS_ISA
