// Linear with fp8 weights and activations of bf16 on AMX tiles. Part of kernels_amx.cc.
//
// A piece of a panel is expanded to bf16 in the L1 cache, where the piece has the layout of a panel of bf16
// weights (amx_linear_impl.h), and serves all pairs of row tiles. Sums are as in float8_impl.h, but for the
// order within 32 values of k, which is the order of TDPBF16PS for any number of rows.

namespace somnus::cpu::SOMNUS_ISA {
namespace {

constexpr int64_t kF8PieceSteps = 8;
constexpr int64_t kMaxF8BlockRows = 256;  // at a time
// A last pair of row tiles may have one tile.
constexpr int64_t kMaxSumTiles = kMaxF8BlockRows / kTileRows + 1;

// Rows of one block times panels.
class TileF8Linear {
 public:
  TileF8Linear(const LinearArgs& args, int64_t row_begin, int64_t rows)
      : args_(args), tiles_(row_begin, rows), scope_(tiles_.height, 2 * kStepK, 2 * kStepK) {}

  void Panel(int64_t panel) {
    const F8PanelView w(args_, panel);
    __builtin_memset(total_, 0, static_cast<size_t>(tiles_.count) * sizeof(total_[0]));
    w.ForEachPiece(kF8PieceSteps * kStepK, [&](const F8Piece& piece) {
      ExpandF8<F8TimesBf16>(w.numbers + piece.begin * kPanelWidth, piece.count(),
                            kF8PieceSteps * kStepK * kPanelWidth, expanded_);
      for (int64_t tile = 0; tile < tiles_.count; tile += 2) {
        if (tile + 1 < tiles_.count) {
          Pair<true>(tile, piece);
        } else {
          Pair<false>(tile, piece);
        }
      }
    });
    // A row of two tiles gets the same bits from both.
    for (int64_t tile = 0; tile < tiles_.count; ++tile) {
      for (int64_t r = 0; r < tiles_.height; ++r)
        StoreF8Row<F8TimesBf16>(args_, w, panel, tiles_.Row(tile) + r, total_[tile][r]);
    }
  }

 private:
  using Sums = float[kTileRows][kPanelWidth];  // of a row tile

  template <bool kBoth>
  void Pair(int64_t tile, const F8Piece& piece) {
    const int64_t second = kBoth ? tile + 1 : tile;
    float* const run[2] = {run_[tile][0], run_[second][0]};
    if (piece.first) {
      ZeroSums<kBoth>();
    } else {
      LoadSums<kBoth>({run[0], run[1]}, kPanelWidth * 4);
    }
    const auto x_at = [&](int64_t t) { return args_.x + tiles_.Row(t) * args_.x_stride + piece.begin * 2; };
    Steps<kBoth>({.a = {x_at(tile), x_at(second)}, .stride = args_.x_stride}, expanded_,
                 piece.count() / kStepK);
    StoreSums<kBoth>(run, kPanelWidth * 4);
    if (!piece.last) return;
    AddRun(tile, piece.scale);
    if constexpr (kBoth) AddRun(second, piece.scale);
  }

  void AddRun(int64_t tile, float scale) {
    for (int64_t r = 0; r < tiles_.height; ++r) {
      for (int64_t c = 0; c < kPanelWidth; c += kW) {
        float* const total = total_[tile][r] + c;
        Store(total, Fma(Load(run_[tile][r] + c), Set(scale), Load(total)));
      }
    }
  }

  const LinearArgs& args_;
  const RowTiles tiles_;
  const TileScope scope_;
  alignas(64) Sums run_[kMaxSumTiles];
  alignas(64) Sums total_[kMaxSumTiles];
  alignas(64) char expanded_[kF8PieceSteps * kStepBytes];
};

void TileF8Range(const LinearArgs& args, int64_t row_begin, int64_t row_end, int64_t panel_begin,
                 int64_t panel_end) {
  const int64_t rows = row_end - row_begin;
  const int64_t blocks = (rows + kMaxF8BlockRows - 1) / kMaxF8BlockRows;
  for (int64_t block = 0; block < blocks; ++block) {
    const int64_t begin = row_begin + rows * block / blocks;
    TileF8Linear linear(args, begin, row_begin + rows * (block + 1) / blocks - begin);
    for (int64_t panel = panel_begin; panel < panel_end; ++panel) linear.Panel(panel);
  }
}

}  // namespace
}  // namespace somnus::cpu::SOMNUS_ISA
