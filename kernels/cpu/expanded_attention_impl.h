// Attention over chunks that are expanded first: a byte of the cache becomes a number that products take
// directly, once for all rows. Part of kernels_*.cc.

namespace somnus::cpu::SOMNUS_ISA {
namespace {

// X converts a cache of X::Stored for products by X::Tiles: X::Keys(from, stride, tokens, head_dim, to,
// to_stride, ahead) for a piece's keys, each dim's `stride` bytes after the previous dim, to_stride bytes
// where X::Tiles reads; and X::Values(from, tokens, dims, to, ahead) for the piece's values. Keys and Values
// may prefetch bytes `ahead` of the bytes that they read.
template <typename X>
struct ExpandedAttention : Attention<typename X::Tiles, kDefaultChunkTokens, typename X::Stored> {
  using Base = Attention<typename X::Tiles, kDefaultChunkTokens, typename X::Stored>;
  using Base::block_size, Base::dims, Base::head_dim, Base::k_step_bytes, Base::v_step_bytes;
  using typename Base::NextPieces;
  using P = typename X::Tiles;

  char* keys = nullptr;    // [steps of dims][kDefaultChunkTokens] in the layout of P
  char* values = nullptr;  // [steps of tokens][dims]

  void Carve(char* scratch) {
    keys = Base::Carve(scratch);
    values = keys + ExpandedBytes(head_dim);
  }

  Chunk Expand(const Chunk& chunk, const NextPieces& next) const {
    Chunk expanded = chunk;
    for (int p = 0; p < chunk.num_pieces; ++p) {
      const Piece& from = chunk.pieces[p];
      char* const k = keys + from.column * P::kBBytes / kW;
      char* const v = values + from.column / P::kStepK * v_step_bytes;
      if constexpr (Base::kScaled) {
        for (int64_t t = 0; t < from.tokens; t += kW) Base::PrefetchScales(from, t, next.pieces[p].k);
      }
      X::Keys(from.k, block_size, from.tokens, head_dim, k, k_step_bytes, next.pieces[p].k);
      X::Values(from.v, from.tokens, dims, v, next.pieces[p].v);
      expanded.pieces[p].k = k;
      expanded.pieces[p].v = v;
    }
    return expanded;
  }

  void AddTokens(int64_t rows, int64_t begin, int64_t end) {
    this->AddChunks(rows, begin, end,
                    [&](const Chunk& chunk, const NextPieces& next) { return Expand(chunk, next); });
  }
};

// To f32: the numbers that S, which also multiplies f32, would read from the cache, and so the same bits.
template <typename S>
struct AsF32 {
  using Stored = S;
  using Tiles = TileF32;
  static_assert(S::kStepK == 1 && S::kABytes == TileF32::kABytes);

  static void Row(const char* from, int64_t count, char* to) {
    for (int64_t i = 0; i < count; i += kW) Store(reinterpret_cast<float*>(to) + i, S::LoadB(from + i).w);
  }
  static void Keys(const char* from, int64_t stride, int64_t tokens, int64_t head_dim, char* to,
                   int64_t to_stride, int64_t) {
    for (int64_t d = 0; d < head_dim; ++d) Row(from + d * stride, tokens, to + d * to_stride);
  }
  static void Values(const char* from, int64_t tokens, int64_t dims, char* to, int64_t) {
    Row(from, tokens * dims, to);
  }
};

}  // namespace
}  // namespace somnus::cpu::SOMNUS_ISA
