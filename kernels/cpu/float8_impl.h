// Linear with fp8 weights. Part of kernels_*.cc.
//
// The sum of an output element is a chain of multiply-adds for each run of k with the same scale, in
// ascending order; sums of runs, times their scales, are added up in ascending order, and the column's scale
// comes last. Runs depend on the weights alone, so that results are independent of the batch.
//
// For a few rows the numbers are expanded in registers. For more rows a piece of a panel is expanded once,
// into the L1 cache, and then serves all rows.

namespace somnus::cpu::SOMNUS_ISA {
namespace {

constexpr int kMaxRegisterRows = kSizes.max_register_rows;
static_assert(kMaxRegisterRows <= kMaxRows);
// Rows that share an expanded piece, and values of k in a piece.
constexpr int64_t kMaxF8Rows = 128;
constexpr int64_t kF8PieceValues = 128;

// The sums of rows and a panel: of the run under way so far, and of all earlier runs.
struct F8Sums {
  alignas(64) float run[kMaxF8Rows][kPanelWidth];
  alignas(64) float total[kMaxF8Rows][kPanelWidth];
};

// Adds a piece up for kRows rows of x, which begin at `x`; rows of `sums` begin at `row`. w: the piece, in
// P's layout. kAhead: with prefetches of the memory that follows.
template <typename P, int kRows, bool kAhead>
inline __attribute__((noinline)) void F8Tile(const char* x, int64_t x_stride, const char* w,
                                             const F8Piece& piece, F8Sums* sums, int64_t row) {
  constexpr int kVectors = TileVectors(kRows);
  const VF scale = Set(piece.scale);
  for (int64_t c = 0; c < kPanelWidth; c += kVectors * kW) {
    VF acc[kRows][kVectors] = {};
    const char* b[kVectors];
    for (int v = 0; v < kVectors; ++v) b[v] = w + (c / kW + v) * P::kBBytes;
    if (!piece.first) {
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        for (int v = 0; v < kVectors; ++v) acc[r][v] = Load(sums->run[row + r] + c + v * kW);
      }
    }
    Tile<P, kRows, kVectors, ToL2If(kAhead)>(x, x_stride, b, kPanelWidth / kW * P::kBBytes,
                                             piece.count() / P::kStepK, acc, AheadBytes(kRows));
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kVectors; ++v) {
        float* const run = sums->run[row + r] + c + v * kW;
        float* const total = sums->total[row + r] + c + v * kW;
        if (piece.last) {
          Store(total, Fma(acc[r][v], scale, Load(total)));
        } else {
          Store(run, acc[r][v]);
        }
      }
    }
  }
}

template <typename P>
void F8RegisterPanel(const char* x, int64_t x_stride, int64_t rows, const F8PanelView& w, F8Sums* sums) {
  constexpr int64_t kXBytes = P::kABytes / P::kStepK;
  WithRows<kMaxRegisterRows>(rows, [&]<int kRows>() {
    w.ForEachPiece(w.k, [&](const F8Piece& piece) {
      F8Tile<P, kRows, true>(x + piece.begin * kXBytes, x_stride, w.numbers + piece.begin * kPanelWidth,
                             piece, sums, 0);
    });
  });
}

template <typename P>
void F8ExpandedPanel(const char* x, int64_t x_stride, int64_t rows, const F8PanelView& w, F8Sums* sums) {
  constexpr int64_t kXBytes = P::kABytes / P::kStepK;
  alignas(64) char expanded[kF8PieceValues / 2 * kExpandedPairBytes<P>];
  const int64_t tiles = (rows + kMaxRows - 1) / kMaxRows;
  w.ForEachPiece(kF8PieceValues, [&](const F8Piece& piece) {
    ExpandF8<P>(w.numbers + piece.begin * kPanelWidth, piece.count(), kF8PieceValues * kPanelWidth, expanded);
    for (int64_t tile = 0; tile < tiles; ++tile) {
      const int64_t row = rows * tile / tiles;
      const char* const tile_x = x + row * x_stride + piece.begin * kXBytes;
      WithRows(rows * (tile + 1) / tiles - row, [&]<int kRows>() {
        F8Tile<typename P::Expanded, kRows, false>(tile_x, x_stride, expanded, piece, sums, row);
      });
    }
  });
}

template <typename P>
void F8Range(const LinearArgs& args, int64_t row_begin, int64_t row_end, int64_t panel_begin,
             int64_t panel_end) {
  F8Sums sums;
  const int64_t parts = (row_end - row_begin + kMaxF8Rows - 1) / kMaxF8Rows;
  for (int64_t part = 0; part < parts; ++part) {
    const int64_t row = row_begin + (row_end - row_begin) * part / parts;
    const int64_t rows = row_begin + (row_end - row_begin) * (part + 1) / parts - row;
    const char* const x = args.x + row * args.x_stride;
    for (int64_t panel = panel_begin; panel < panel_end; ++panel) {
      F8PanelView w(args, panel);
      __builtin_memset(sums.total, 0, static_cast<size_t>(rows) * sizeof(sums.total[0]));
      if (rows <= kMaxRegisterRows) {
        F8RegisterPanel<P>(x, args.x_stride, rows, w, &sums);
      } else {
        F8ExpandedPanel<P>(x, args.x_stride, rows, w, &sums);
      }
      for (int64_t r = 0; r < rows; ++r) StoreF8Row<P>(args, w, panel, row + r, sums.total[r]);
    }
  }
}

constexpr void SetFloat8(KernelTable& table) {
  table.linear[static_cast<int>(DataType::kF8E4M3)] = F8Range<F8TimesF32>;
#if defined(__AVX512BF16__)
  table.linear_f8_bf16 = F8Range<F8TimesBf16>;
#endif
}

}  // namespace
}  // namespace somnus::cpu::SOMNUS_ISA
