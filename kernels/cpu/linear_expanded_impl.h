// Linear of many rows with 16-bit weights that are multiplied as f32. Part of kernels_*.cc.
//
// A piece of a panel is expanded once, into a core's cache, and then serves all rows: the conversion takes
// the ports of multiply-adds. Sums stay one chain in ascending order, so that results are the same as for few
// rows.

namespace somnus::cpu::SOMNUS_ISA {
namespace {

constexpr int kMaxF32Rows = kSizes.max_f32_rows;
// Values of k of a piece.
constexpr int64_t kF32PieceValues = 256;

// Whether weights of the tile can be expanded to weights of TileF32.
template <typename P>
constexpr bool kExpands = P::E::kType != DataType::kF32&& P::ActElement::kType == DataType::kF32;

// Values [begin, end) of k.
struct F32Piece {
  int64_t begin;
  int64_t end;
  const float* weights;  // [end - begin][kPanelWidth]
};

// Writes `count` values of k of a panel to out [count, rounded up to kStepK][kPanelWidth], and prefetches as
// many that follow.
template <typename P>
void ExpandPiece(const char* from, int64_t count, float* out) {
  constexpr int64_t kStepBytes = kPanelWidth / kW * P::kBBytes;
  for (int64_t k = 0; k < count; k += P::kStepK, from += kStepBytes, out += P::kStepK * kPanelWidth) {
    for (int64_t byte = 0; byte < kStepBytes; byte += 64)
      __builtin_prefetch(from + kF32PieceValues / P::kStepK * kStepBytes + byte, 0, 2);
#pragma GCC unroll 8
    for (int v = 0; v < kPanelWidth / kW; ++v) {
      const typename P::B w = P::LoadB(from + v * P::kBBytes);
      if constexpr (P::kStepK == 2) {
        Store(out + v * kW, w.low);
        Store(out + kPanelWidth + v * kW, w.high);
      } else {
        Store(out + v * kW, w.w);
      }
    }
  }
}

// Adds a piece to rows [row, row + kRows) of y, columns [column, column + kVectors * kW). Until the last
// piece y holds sums without the bias.
template <int kRows, int kVectors>
inline __attribute__((noinline)) void F32Tile(const LinearArgs& args, const F32Piece& piece, int64_t row,
                                              int64_t column) {
  VF acc[kRows][kVectors] = {};
  if (piece.begin != 0) LoadTile(args, row, column, acc);
  const char* b[kVectors];
  for (int v = 0; v < kVectors; ++v)
    b[v] = reinterpret_cast<const char*>(piece.weights + column % kPanelWidth + v * kW);
  Tile<TileF32, kRows, kVectors>(args.x + row * args.x_stride + piece.begin * 4, args.x_stride, b,
                                 kPanelWidth * 4, piece.end - piece.begin, acc);
  LinearArgs to = args;
  if (piece.end != args.k) to.bias = nullptr;
  StoreTile<kRows, kVectors>(to, row, column, acc);
}

template <typename P>
void ExpandedLinearRange(const LinearArgs& args, int64_t row_begin, int64_t row_end, int64_t panel_begin,
                         int64_t panel_end) {
  alignas(64) float weights[kF32PieceValues * kPanelWidth];
  const int64_t rows = row_end - row_begin;
  const int64_t tiles = (rows + kMaxF32Rows - 1) / kMaxF32Rows;
  const int64_t panel_bytes = PanelBytes(P::E::kType, args.k);
  for (int64_t panel = panel_begin; panel < panel_end; ++panel) {
    const char* const w = args.w + panel * panel_bytes;
    for (int64_t begin = 0; begin < args.k; begin += kF32PieceValues) {
      const F32Piece piece{begin, Min(begin + kF32PieceValues, args.k), weights};
      ExpandPiece<P>(w + begin / P::kStepK * (kPanelWidth / kW) * P::kBBytes, piece.end - begin, weights);
      for (int64_t tile = 0; tile < tiles; ++tile) {
        const int64_t row = row_begin + rows * tile / tiles;
        WithRows<kMaxF32Rows>(row_begin + rows * (tile + 1) / tiles - row, [&]<int kRows>() {
          constexpr int kVectors = TileVectors(kRows);
          for (int64_t c = 0; c < kPanelWidth; c += kVectors * kW)
            F32Tile<kRows, kVectors>(args, piece, row, panel * kPanelWidth + c);
        });
      }
    }
  }
}

}  // namespace
}  // namespace somnus::cpu::SOMNUS_ISA
