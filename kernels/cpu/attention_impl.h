// Paged attention with an online softmax (FlashAttention's recurrence over PagedAttention's blocks). Part of
// kernels_*.cc.
//
// The context is cut at fixed positions into sections, which attention_sections_impl.h puts together. A
// section is cut into chunks of whole blocks (or parts of a large block); the chunks' maxima and sums are
// folded in ascending order. A query's result thus depends on its position and its cache alone. Keys and
// values at or beyond a query's limit, or before its window, never enter the query's sums, not even with
// weight zero: there may be NaNs of another request. With a window the cuts stay where they are, and the work
// begins at the chunk with the first token that any row sees; blocks before that token are not looked at.
//
// With an int8 cache the products are with the integers: a complete score is multiplied by its token's scale
// of K, and a weight by the scale of V after entering the sum of weights.

namespace somnus::cpu::SOMNUS_ISA {
namespace {

// Consecutive tokens within one block, at column `column` of the chunk's scores.
struct Piece {
  const char* k;
  const char* v;
  const float* k_scales;  // of an int8 cache alone
  const float* v_scales;
  int64_t position;
  int64_t tokens;
  int64_t column;
};
constexpr int kMaxPieces = kMaxChunkTokens / 16;

struct Chunk {
  Piece pieces[kMaxPieces];
  int num_pieces;
  int64_t end;  // position
};

// The sums over a row's tokens.
struct Sums {
  float* acc = nullptr;  // [rows][dims]
  float* max = nullptr;  // [rows]
  float* sum = nullptr;  // [rows]
};

// P: how products are computed. Stored: how the cache holds the factors; where P and Stored differ, each
// chunk is expanded before (expanded_attention_impl.h). kChunkTokens: the tokens of a whole chunk. Fixed for
// each instruction set and type of cache, as results depend on it.
template <typename P, int64_t kChunkTokens = kDefaultChunkTokens, typename Stored = P>
struct Attention {
  static_assert(kChunkTokens <= kMaxChunkTokens);
  using E = typename Stored::E;
  using Act = typename P::ActElement;
  using ActType = typename Act::Type;
  static constexpr int64_t kPair = P::kStepK;
  static constexpr int64_t kActBytes = sizeof(ActType);
  static constexpr bool kScaled = E::kType == DataType::kI8;  // each token by itself
  static constexpr bool kLatent = requires { Stored::kLatent; };
  static constexpr bool kExpanded = kLatent || P::E::kType != E::kType;
  static constexpr int64_t kStoredBytes = Stored::kStepK * static_cast<int64_t>(sizeof(typename E::Type));

  const AttentionArgs& args;
  const AttentionItem& item;
  const int64_t block_size = args.cache.block_size;
  const int64_t head_dim = args.cache.head_dim;
  const int64_t dims = PaddedHeadDim(head_dim);
  const int64_t head_bytes = HeadBytesOf(args.cache);
  const int64_t scale_bytes = ScaleBytes(E::kType, block_size);
  // In the cache.
  const int64_t v_row_bytes = dims * (kLatent ? ElementBytes(args.cache.dtype) : kStoredBytes);
  // From one step of a product to the next.
  const int64_t k_step_bytes = (kExpanded ? kChunkTokens : block_size) * P::kBBytes / kW;
  const int64_t v_step_bytes = dims * P::kBBytes / kW;

  // The sums of the section that is being added.
  float* acc = nullptr;  // [rows][dims]: weighted values
  float* max = nullptr;  // [rows]: largest score
  float* sum = nullptr;  // [rows]: weights
  Sums older;            // the sums of earlier sections

  ActType* q = nullptr;        // [rows][dims]
  float* scores = nullptr;     // [rows][kChunkTokens]
  ActType* weights = nullptr;  // [rows][kChunkTokens]
  int64_t* limits = nullptr;   // [rows]: the end of the tokens that the row sees; ascending
  int64_t* firsts = nullptr;   // [rows]: the first of these tokens; ascending

  // Returns where the rest begins.
  char* Carve(char* scratch) {
    const auto take = [&scratch](int64_t bytes) {
      char* p = scratch;
      scratch += RoundUp(bytes, 64);
      return p;
    };
    const auto take_floats = [&](int64_t count) { return reinterpret_cast<float*>(take(count * 4)); };
    acc = take_floats(kAttentionRows * dims);
    max = take_floats(kAttentionRows);
    sum = take_floats(kAttentionRows);
    older = {take_floats(kAttentionRows * dims), take_floats(kAttentionRows), take_floats(kAttentionRows)};
    q = reinterpret_cast<ActType*>(take(kAttentionRows * dims * kActBytes));
    scores = take_floats(kAttentionRows * kChunkTokens);
    weights = reinterpret_cast<ActType*>(take(kAttentionRows * kChunkTokens * kActBytes));
    limits = reinterpret_cast<int64_t*>(take(kAttentionRows * 8));
    firsts = reinterpret_cast<int64_t*>(take(kAttentionRows * 8));
    return scratch;
  }

  void Prepare(int64_t row_begin, int64_t rows) {
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t token = item.query_begin + (row_begin + r) / args.num_heads;
      const float* from =
          args.q + token * args.q_stride + args.heads[(row_begin + r) % args.num_heads] * head_dim;
      for (int64_t d = 0; d < dims; d += kW) {
        Act::Put(q + r * dims + d, d < head_dim ? Get<F32>(from + d, head_dim - d) : VF{});
      }
      limits[r] = args.positions[token] + 1;
      firsts[r] = FirstToken(args.positions[token], args.window);
    }
    Restart(rows);
  }

  // No token has been added.
  void Restart(int64_t rows) {
    for (int64_t i = 0; i < rows * dims; i += kW) Store(acc + i, VF{});
    for (int64_t r = 0; r < rows; ++r) {
      max[r] = -__builtin_inff();
      sum[r] = 0;
    }
  }

  // Whether the row sees a token of [begin, end).
  bool Sees(int64_t row, int64_t begin, int64_t end) const {
    return limits[row] > begin && firsts[row] < end;
  }

  // The blocks of a chunk. 1 also where a block has several chunks.
  int64_t ChunkBlocks() const { return Max(1, kChunkTokens / RoundUp(block_size, 16)); }

  // The chunk at which the rows begin, in the section at `begin`.
  int64_t FirstChunk(int64_t begin) const {
    if (firsts[0] <= begin) return begin;
    if (block_size > kChunkTokens) return firsts[0] - firsts[0] % block_size % kChunkTokens;
    const int64_t tokens = ChunkBlocks() * block_size;
    return begin + (firsts[0] - begin) / tokens * tokens;
  }

  // The chunk that starts at `position`, without the pieces that end at or before `first`. The cut depends on
  // block_size alone.
  Chunk ChunkAt(int64_t position, int64_t limit, int64_t first) const {
    Chunk chunk;
    chunk.num_pieces = 0;
    chunk.end = position;
    int64_t column = 0;
    for (int64_t blocks = ChunkBlocks(); blocks > 0 && chunk.end < limit; --blocks) {
      const int64_t offset = chunk.end % block_size, tokens = Min(block_size - offset, kChunkTokens);
      if (chunk.end + tokens <= first) {
        column += RoundUp(tokens, kW);
        chunk.end += tokens;
        continue;
      }
      const char* head =
          static_cast<const char*>(args.cache.data) +
          (item.blocks[chunk.end / block_size] * args.cache.num_kv_heads + item.kv_head) * head_bytes;
      Piece& piece = chunk.pieces[chunk.num_pieces++];
      const char* const data = head + 2 * scale_bytes;
      piece.k = data + offset * kStoredBytes;
      piece.v = data + (kLatent ? 0 : KBytes(E::kType, block_size, head_dim)) +
                offset / Stored::kStepK * v_row_bytes;
      piece.k_scales = reinterpret_cast<const float*>(head) + offset;
      piece.v_scales = reinterpret_cast<const float*>(head + scale_bytes) + offset;
      piece.position = chunk.end;
      piece.tokens = tokens;
      piece.column = column;
      column += RoundUp(tokens, kW);
      chunk.end += tokens;
    }
    return chunk;
  }

  // With few rows the loop is bound by memory, and blocks lie anywhere. So each step of a product prefetches
  // the data of the same step of the next chunk: at an even pace, as more requests than the core has room for
  // would stop the core. NextPiece is the distance in bytes from a piece to the piece of the next chunk in
  // the same place: 0 where there is none.
  struct NextPiece {
    int64_t k = 0, v = 0;
  };
  struct NextPieces {
    NextPiece pieces[kMaxPieces];
  };
  static NextPieces Distances(const Chunk& chunk, const Chunk& next) {
    NextPieces distances;
    for (int p = 0; p < chunk.num_pieces && p < next.num_pieces; ++p) {
      distances.pieces[p].k = next.pieces[p].k - chunk.pieces[p].k;
      distances.pieces[p].v = next.pieces[p].v - chunk.pieces[p].v;
    }
    return distances;
  }

  // Prefetches the scales of kW tokens from t on.
  static SOMNUS_INLINE void PrefetchScales(const Piece& piece, int64_t t, int64_t ahead) {
    __builtin_prefetch(reinterpret_cast<const char*>(piece.k_scales + t) + ahead, 0, 2);
    __builtin_prefetch(reinterpret_cast<const char*>(piece.v_scales + t) + ahead, 0, 2);
  }

  // T, here and below: P, or TileFiniteF8 for chunks of fp8 without NaN. kAhead: with prefetches.
  template <typename T, int kRows, bool kAhead, int kVectors>
  void ScoreTile(int64_t row, const char* const (&k)[kVectors], const float* const (&scales)[kVectors],
                 const int64_t (&columns)[kVectors], const int64_t (&ahead)[kVectors]) {
    VF s[kRows][kVectors] = {};
    Tile<T, kRows, kVectors, ToL2If(kAhead)>(reinterpret_cast<const char*>(q + row * dims), dims * kActBytes,
                                             k, k_step_bytes, (head_dim + kPair - 1) / kPair, s, ahead);
    VF factors[kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) factors[v] = kScaled ? Load(scales[v]) * args.scale : Set(args.scale);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        Store(scores + (row + r) * kChunkTokens + columns[v], s[r][v] * factors[v]);
      }
    }
  }

  // q * k for rows [row, row + kRows), two vectors of tokens at a time, in any blocks.
  template <typename T, int kRows, bool kAhead>
  void Score(const Chunk& chunk, const NextPieces& next, int64_t row) {
    const int64_t first = firsts[row], limit = limits[row + kRows - 1];
    const char* k[2];
    const float* scales[2];
    int64_t columns[2], ahead[2];
    int waiting = 0;
    for (int p = 0; p < chunk.num_pieces; ++p) {
      const Piece& piece = chunk.pieces[p];
      int64_t t = FirstVector(piece, first);
      for (; t < piece.tokens && piece.position + t < limit; t += kW) {
        k[waiting] = piece.k + t / kW * P::kBBytes;
        scales[waiting] = piece.k_scales + t;
        columns[waiting] = piece.column + t;
        ahead[waiting] = next.pieces[p].k;
        if constexpr (kScaled && kAhead) PrefetchScales(piece, t, ahead[waiting]);
        if (++waiting < 2) continue;
        ScoreTile<T, kRows, kAhead>(row, k, scales, columns, ahead);
        waiting = 0;
      }
    }
    if (waiting == 1) ScoreTile<T, kRows, kAhead, 1>(row, {k[0]}, {scales[0]}, {columns[0]}, {ahead[0]});
  }

  // Where the vector of a piece with the token at `first` begins; 0 where that token is in an earlier piece.
  static SOMNUS_INLINE int64_t FirstVector(const Piece& piece, int64_t first) {
    return first <= piece.position ? 0 : (first - piece.position) / kW * kW;
  }

  // Lanes [from, to) of a vector, which is seen in part or as a whole.
  struct Lanes {
    int64_t from, to;
  };
  static SOMNUS_INLINE VF Mask(VF v, const Lanes& lanes, float fill) {
    if (lanes.from <= 0 && lanes.to >= kW) return v;
    VI lane;
    for (int i = 0; i < kW; ++i) lane[i] = i;
    const VI seen =
        (lane < static_cast<int32_t>(Min(lanes.to, kW))) & (lane >= static_cast<int32_t>(Max(lanes.from, 0)));
    return seen ? v : Set(fill);
  }

  // Calls fn(column, lanes, v_scales) for each vector of tokens that the row sees.
  template <typename Fn>
  SOMNUS_INLINE void ForVisible(const Chunk& chunk, int64_t row, const Fn& fn) {
    const int64_t first = firsts[row], limit = limits[row];
    for (int p = 0; p < chunk.num_pieces; ++p) {
      const Piece& piece = chunk.pieces[p];
      const int64_t tokens = Min(piece.tokens, limit - piece.position);
      for (int64_t t = FirstVector(piece, first); t < tokens; t += kW)
        fn(piece.column + t, Lanes{first - piece.position - t, tokens - t}, piece.v_scales + t);
    }
  }

  // logit_softcap * tanh(score / logit_softcap) of the scores that the row sees.
  void Cap(const Chunk& chunk, int64_t row) {
    float* s = scores + row * kChunkTokens;
    const float cap = args.logit_softcap, inverse = 1 / cap;
    ForVisible(chunk, row, [&](int64_t column, const Lanes&, const float*) {
      Store(s + column, Tanh(Load(s + column) * inverse) * cap);
    });
  }

  void Softmax(const Chunk& chunk, int64_t row) {
    if (!Sees(row, chunk.pieces[0].position, chunk.end)) return;
    if (args.logit_softcap > 0) Cap(chunk, row);
    const float* s = scores + row * kChunkTokens;
    ActType* w = weights + row * kChunkTokens;
    VF top = Set(max[row]);
    ForVisible(chunk, row, [&](int64_t column, const Lanes& lanes, const float*) {
      top = MaxV(Mask(Load(s + column), lanes, -__builtin_inff()), top);
    });
    const float new_max = ReduceMax(top);
    VF total = {};
    ForVisible(chunk, row, [&](int64_t column, const Lanes& lanes, const float* v_scales) {
      const VF p = Mask(Exp(Load(s + column) - new_max), lanes, 0);
      total += p;
      Act::Put(w + column, kScaled ? p * Load(v_scales) : p);
    });
    const float decay = Exp(Set(max[row] - new_max))[0];
    sum[row] = sum[row] * decay + ReduceAdd(total);
    if (max[row] != new_max) {
      for (int64_t d = 0; d < dims; d += kW) Store(acc + row * dims + d, Load(acc + row * dims + d) * decay);
    }
    max[row] = new_max;
  }

  // Tokens [from, to) of each piece.
  struct Spans {
    int64_t from[kMaxPieces] = {};
    int64_t to[kMaxPieces] = {};
  };

  // acc[row..] += weights * V over the spans, for kVectors vectors of dims from d.
  template <typename T, int kRows, int kVectors, bool kAhead>
  void AccumulateTile(const Chunk& chunk, const NextPieces& next, int64_t row, int64_t d,
                      const Spans& spans) {
    VF a[kRows][kVectors];
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) a[r][v] = Load(acc + (row + r) * dims + d + v * kW);
    }
    for (int p = 0; p < chunk.num_pieces; ++p) {
      if (spans.to[p] <= spans.from[p]) continue;
      int64_t first = spans.from[p] / kPair;
      const char* w = reinterpret_cast<const char*>(weights + row * kChunkTokens + chunk.pieces[p].column +
                                                    first * kPair);
      const char* b[kVectors];
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v)
        b[v] = chunk.pieces[p].v + first * v_step_bytes + (d / kW + v) * P::kBBytes;
      if constexpr (kPair == 2) {
        if (spans.from[p] % 2 != 0) {
          TileHalfStep<T, kRows, kVectors, true>(w, kChunkTokens * kActBytes, b, a);
          for (const char*& pair : b) pair += v_step_bytes;
          w += P::kABytes;
          ++first;
        }
      }
      const int64_t steps = spans.to[p] / kPair - first;
      Tile<T, kRows, kVectors, ToL2If(kAhead)>(w, kChunkTokens * kActBytes, b, v_step_bytes, steps, a,
                                               next.pieces[p].v);
      if constexpr (kPair == 2) {
        if (spans.to[p] % 2 == 0) continue;
        for (const char*& pair : b) pair += steps * v_step_bytes;
        TileHalfStep<T, kRows, kVectors>(w + steps * P::kABytes, kChunkTokens * kActBytes, b, a);
      }
    }
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) Store(acc + (row + r) * dims + d + v * kW, a[r][v]);
    }
  }

  template <typename T, int kRows, bool kAhead>
  void AccumulateRows(const Chunk& chunk, const NextPieces& next, int64_t row, const Spans& spans) {
    int64_t d = 0;
    for (; d + 2 * kW <= dims; d += 2 * kW) AccumulateTile<T, kRows, 2, kAhead>(chunk, next, row, d, spans);
    if (d < dims) AccumulateTile<T, kRows, 1, kAhead>(chunk, next, row, d, spans);
  }

  // The tokens of each piece that all rows of a tile see, in whole pairs where the rows differ.
  template <int kRows>
  Spans CommonTokens(const Chunk& chunk, int64_t row) const {
    const int64_t last = row + kRows - 1;
    Spans common;
    for (int p = 0; p < chunk.num_pieces; ++p) {
      const Piece& piece = chunk.pieces[p];
      const int64_t from = Max(0, Min(piece.tokens, firsts[last] - piece.position));
      const int64_t to = Max(0, Min(piece.tokens, limits[row] - piece.position));
      common.from[p] = firsts[row] == firsts[last] ? from : Min(piece.tokens, RoundUp(from, kPair));
      const bool whole = to == piece.tokens || limits[row] == limits[last];
      common.to[p] = Max(common.from[p], whole ? to : to / kPair * kPair);
    }
    return common;
  }

  // Adds the row's tokens of [from[p], to[p]) of each piece.
  template <typename T>
  void AccumulateOwn(const Chunk& chunk, const NextPieces& next, int64_t row, const Spans& of) {
    Spans own;
    bool any = false;
    for (int p = 0; p < chunk.num_pieces; ++p) {
      const Piece& piece = chunk.pieces[p];
      own.from[p] = Max(of.from[p], firsts[row] - piece.position);
      own.to[p] = Min(of.to[p], limits[row] - piece.position);
      any |= own.to[p] > own.from[p];
    }
    if (any) AccumulateRows<T, 1, false>(chunk, next, row, own);
  }

  // First adds, where windows cut a piece, each row's own beginning; then the tokens that all rows of the
  // tile see, together; then, where the causal limit cuts a piece, each row's own rest. A row's tokens are
  // thus added in ascending order.
  template <typename T, int kRows, bool kAhead>
  void Accumulate(const Chunk& chunk, const NextPieces& next, int64_t row) {
    const int64_t last = row + kRows - 1;
    const Spans common = CommonTokens<kRows>(chunk, row);
    if (firsts[row] != firsts[last] && firsts[last] > chunk.pieces[0].position) {
      Spans before;
      for (int p = 0; p < chunk.num_pieces; ++p) before.to[p] = common.from[p];
      for (int r = 0; r < kRows; ++r) AccumulateOwn<T>(chunk, next, row + r, before);
    }
    AccumulateRows<T, kRows, kAhead>(chunk, next, row, common);
    if (limits[row] == limits[last] || limits[row] >= chunk.end) return;
    Spans behind;
    for (int p = 0; p < chunk.num_pieces; ++p) {
      behind.from[p] = common.to[p];
      behind.to[p] = chunk.pieces[p].tokens;
    }
    for (int r = 0; r < kRows; ++r) AccumulateOwn<T>(chunk, next, row + r, behind);
  }

  // The row's sum of weights with the sink's, which enters last: where a context was cut does not show. Far
  // above all scores a sink makes the sum so large that the output is 0.
  float SumWithSink(int64_t row, int64_t head) const {
    return args.sinks == nullptr ? sum[row] : sum[row] + Exp(Set(args.sinks[head] - max[row]))[0];
  }

  void Finish(int64_t row_begin, int64_t rows) {
    WithElement(args.out_type, [&](auto e) {
      using Out = decltype(e);
      for (int64_t r = 0; r < rows; ++r) {
        const int64_t token = item.query_begin + (row_begin + r) / args.num_heads;
        const int64_t head = args.heads[(row_begin + r) % args.num_heads];
        auto* out =
            reinterpret_cast<typename Out::Type*>(args.out) + token * args.out_stride + head * head_dim;
        const float scale = args.v_scale / SumWithSink(r, head);
        for (int64_t d = 0; d < head_dim; d += kW)
          Put<Out>(out + d, Load(acc + r * dims + d) * scale, head_dim - d);
      }
    });
  }

  // Adds tokens [begin, end) of the context to the sums of the rows.
  void AddTokens(int64_t rows, int64_t begin, int64_t end) {
    AddChunks(rows, begin, end, [](const Chunk& chunk, const NextPieces&) { return chunk; });
  }

  // Whether no byte of an fp8 chunk is NaN, tokens beyond the limit included. False also for parts of blocks,
  // where keys are not a single run of bytes.
  bool IsFinite(const Chunk& chunk) const {
    for (int p = 0; p < chunk.num_pieces; ++p) {
      const Piece& piece = chunk.pieces[p];
      if (piece.tokens < block_size || AnyNanOfF8(piece.k, head_dim * block_size) ||
          AnyNanOfF8(piece.v, piece.tokens * dims))
        return false;
    }
    return true;
  }

  // expand(chunk, next) returns the chunk as P multiplies chunks, and prefetches `next` where that is a
  // different chunk.
  template <typename Expand>
  void AddChunks(int64_t rows, int64_t begin, int64_t end, const Expand& expand) {
    const int64_t tiles = (rows + kMaxRows - 1) / kMaxRows;
    const int64_t last = limits[rows - 1];
    for (int64_t position = FirstChunk(begin); position < end;) {
      const Chunk stored = ChunkAt(position, end, firsts[0]);
      NextPieces next;
      if (tiles == 1 && stored.end < last) next = Distances(stored, ChunkAt(stored.end, last, 0));
      const Chunk chunk = expand(stored, next);
      for (int64_t tile = 0; tile < tiles; ++tile) {
        const int64_t row = rows * tile / tiles;
        const int64_t count = rows * (tile + 1) / tiles - row;
        if (limits[row + count - 1] <= position || firsts[row] >= chunk.end) continue;
        WithRows(count, [&]<int kRows>() {
          if (kExpanded || tiles > 1) return AddChunk<P, kRows, false>(chunk, next, row);
          if constexpr (P::E::kType == DataType::kF8E4M3) {
            if (IsFinite(chunk)) return AddChunk<TileFiniteF8, kRows, true>(chunk, next, row);
          }
          AddChunk<P, kRows, true>(chunk, next, row);
        });
      }
      position = chunk.end;
    }
  }

  template <typename T, int kRows, bool kAhead>
  void AddChunk(const Chunk& chunk, const NextPieces& next, int64_t row) {
    Score<T, kRows, kAhead>(chunk, next, row);
    for (int r = 0; r < kRows; ++r) Softmax(chunk, row + r);
    Accumulate<T, kRows, kAhead>(chunk, next, row);
  }
};

}  // namespace
}  // namespace somnus::cpu::SOMNUS_ISA
