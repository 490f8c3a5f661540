// Attention over a latent cache, where rows are keys and values at once: each chunk of rows is brought into
// the layouts of keys and of values, in f32, once for all query rows, which are all heads of a few queries.
// Part of kernels_*.cc.

namespace somnus::cpu::SOMNUS_ISA {
namespace {

// The cache's type is a number of the arguments (KvCacheView::dtype), so one copy of the code serves all
// types.
struct LatentRows : TileF32 {
  static constexpr bool kLatent = true;
};

struct LatentAttention : Attention<TileF32, kDefaultChunkTokens, LatentRows> {
  using Base = Attention<TileF32, kDefaultChunkTokens, LatentRows>;

  float* keys = nullptr;    // [dims][kDefaultChunkTokens]
  float* values = nullptr;  // [kDefaultChunkTokens][dims]

  void Carve(char* scratch) {
    keys = reinterpret_cast<float*>(Base::Carve(scratch));
    values = keys + kDefaultChunkTokens * dims;
  }

  // Rows [0, tokens) of a piece to both layouts; values first, as keys are the transpose of the values.
  template <typename Element>
  void Expand(const Piece& piece, Element) const {
    const auto* from = reinterpret_cast<const typename Element::Type*>(piece.v);
    float* const v = values + piece.column * dims;
    for (int64_t i = 0; i < piece.tokens * dims; i += kW) Store(v + i, Element::Get(from + i));
    for (int64_t d = 0; d < head_dim; ++d) {
      float* const k = keys + d * kDefaultChunkTokens + piece.column;
      for (int64_t t = 0; t < piece.tokens; ++t) k[t] = v[t * dims + d];
    }
  }

  Chunk Expand(const Chunk& chunk) const {
    Chunk expanded = chunk;
    for (int p = 0; p < chunk.num_pieces; ++p) {
      WithElement(args.cache.dtype, [&](auto element) { Expand(chunk.pieces[p], element); });
      Piece& piece = expanded.pieces[p];
      piece.k = reinterpret_cast<const char*>(keys + piece.column);
      piece.v = reinterpret_cast<const char*>(values + piece.column * dims);
    }
    return expanded;
  }

  void AddTokens(int64_t rows, int64_t begin, int64_t end) {
    AddChunks(rows, begin, end, [&](const Chunk& chunk, const NextPieces&) { return Expand(chunk); });
  }
};

}  // namespace
}  // namespace somnus::cpu::SOMNUS_ISA
