// Linear with bf16 weights on AMX tiles. Part of kernels_amx.cc.
//
// A panel has the layout of a tile of weights: 16 rows of pairs of k, two tiles side by side. An output
// element is one chain over steps of 32 values of k in ascending order, in which TDPBF16PS adds the products
// of even and of odd k up apart, for any number of rows: a single row takes the same instructions as many.
// Where k is cut into parts, the chain is stored and loaded unchanged.
//
// A step of two row tiles and two tiles of weights has four products, which take 64 cycles, and loads 4 KiB,
// which take 32 from the L1 cache. Half of that, the activations, comes from the L2 cache. Data from further
// away, the next weights and the lines of y that will be written, is prefetched meanwhile, a few lines at
// each step: a core waits for few lines at a time, and stores to lines that are not in the cache stop the
// core.

namespace somnus::cpu::SOMNUS_ISA {
namespace {

constexpr int64_t kStepK = 32;
constexpr int64_t kStepBytes = kStepK / 2 * kPanelWidth * 4;  // of a panel
constexpr int64_t kStepLines = kStepBytes / 64;
constexpr int64_t kPairFloats = 2 * kTileRows * kPanelWidth;  // sums of a pair of row tiles

// Rows at a time: a pair's sums of a part of k are kept for each.
constexpr int64_t kMaxBlockRows = 512;
// The part of a panel that stays in the L1 cache while pairs of row tiles pass by; a whole panel that is
// hardly larger is not cut, nor is a panel that few pairs use.
constexpr int64_t kPartSteps = 16;
constexpr int64_t kMaxWholeSteps = 20;
constexpr int64_t kMinPairsForParts = 4;
constexpr int64_t kTileAheadBytes = 4096;
constexpr int64_t kSumRowsAhead = 2;  // at each step

// One or two row tiles of activations, and the distance of their rows in bytes.
struct TilePair {
  const char* a[2];
  int64_t stride;
};

// Prefetches during the steps of a pair: `lines` cache lines of weights at each step, and rows of y.
struct Ahead {
  const char* w = nullptr;
  int64_t lines = 0;
  const char* y = nullptr;
  int64_t y_stride = 0;  // bytes
  int64_t y_rows = 0;
};

template <bool kBoth>
SOMNUS_INLINE void ZeroSums() {
  TileZero<0>();
  TileZero<1>();
  if constexpr (kBoth) {
    TileZero<2>();
    TileZero<3>();
  }
}

// from[i]: the sums of row tile i.
template <bool kBoth>
SOMNUS_INLINE void LoadSums(const float* const (&from)[2], int64_t stride) {
  TileLoad<0>(from[0], stride);
  TileLoad<1>(from[0] + kTileRows, stride);
  if constexpr (kBoth) {
    TileLoad<2>(from[1], stride);
    TileLoad<3>(from[1] + kTileRows, stride);
  }
}

template <bool kBoth>
SOMNUS_INLINE void StoreSums(float* const (&to)[2], int64_t stride) {
  TileStore<0>(to[0], stride);
  TileStore<1>(to[0] + kTileRows, stride);
  if constexpr (kBoth) {
    TileStore<2>(to[1], stride);
    TileStore<3>(to[1] + kTileRows, stride);
  }
}

// One step of k. Activations are loaded past the L1 cache, as far as the hint goes: activations come by once
// for each panel, while the panel serves all activations.
template <bool kBoth>
SOMNUS_INLINE void Step(const TilePair& x, const char* w) {
  TileLoad<6>(w, kPanelWidth * 4);
  TileLoadOnce<4>(x.a[0], x.stride);
  TileDot<0, 4, 6>();
  TileLoad<7>(w + 64, kPanelWidth * 4);
  TileDot<1, 4, 7>();
  if constexpr (kBoth) {
    TileLoadOnce<5>(x.a[1], x.stride);
    TileDot<2, 5, 6>();
    TileDot<3, 5, 7>();
  }
}

SOMNUS_INLINE void Fetch(Ahead& ahead) {
  for (int64_t i = 0; i < ahead.lines; ++i) __builtin_prefetch(ahead.w + i * 64, 0, 2);
  ahead.w += ahead.lines * 64;
  for (int64_t i = 0; i < kSumRowsAhead && ahead.y_rows > 0; ++i, --ahead.y_rows) {
    PrefetchToWrite(ahead.y);
    PrefetchToWrite(ahead.y + 64);
    ahead.y += ahead.y_stride;
  }
}

template <bool kBoth>
SOMNUS_INLINE void Steps(TilePair x, const char* w, int64_t steps, Ahead ahead = {}) {
  for (int64_t s = 0; s < steps; ++s) {
    Step<kBoth>(x, w);
    Fetch(ahead);
    x.a[0] += 2 * kStepK;
    x.a[1] += 2 * kStepK;
    w += kStepBytes;
  }
}

// Rows of one block times panels.
class TileLinear {
 public:
  TileLinear(const LinearArgs& args, int64_t row_begin, int64_t rows)
      : args_(args), tiles_(row_begin, rows), scope_(tiles_.height, 2 * kStepK, 2 * kStepK) {
    if (tail_ != 0) CopyTailOfX();
  }

  // panel_end: the end of the range of panels; nothing beyond panel_end is prefetched.
  void Panel(int64_t panel, int64_t panel_end) {
    const char* const w = args_.w + panel * PanelBytes(DataType::kBF16, args_.k);
    const int64_t column = panel * kPanelWidth, pairs = tiles_.pairs();
    CopyBias(column);
    if (tail_ != 0) CopyTailOfPanel(w + steps_ * kStepBytes);
    const int64_t parts =
        pairs < kMinPairsForParts || steps_ <= kMaxWholeSteps ? 1 : (steps_ + kPartSteps - 1) / kPartSteps;
    for (int64_t part = 0; part < parts; ++part) {
      const Part p{.begin = steps_ * part / parts,
                   .end = steps_ * (part + 1) / parts,
                   .first = part == 0,
                   .last = part + 1 == parts};
      // The pairs fetch the next part meanwhile, so that memory does not idle while they compute.
      const bool more = pairs == 1 || !p.last || panel + 1 < panel_end;
      const int64_t lines = more ? (kStepLines + pairs - 1) / pairs : 0;
      const char* next = w + (pairs == 1 ? p.begin * kStepBytes + kTileAheadBytes : p.end * kStepBytes);
      for (int64_t pair = 0; pair < pairs; ++pair) {
        if (2 * pair + 1 < tiles_.count) {
          Pair<true>(pair, column, w, p, {.w = next, .lines = lines});
        } else {
          Pair<false>(pair, column, w, p, {.w = next, .lines = lines});
        }
        next += lines * 64 * (p.end - p.begin);
      }
    }
  }

 private:
  struct Part {
    int64_t begin;  // steps
    int64_t end;
    bool first;
    bool last;
  };

  template <bool kBoth>
  void Pair(int64_t pair, int64_t column, const char* w, const Part& part, Ahead ahead) {
    const int64_t rows[2] = {tiles_.Row(2 * pair), tiles_.Row(kBoth ? 2 * pair + 1 : 2 * pair)};
    float* const kept[2] = {partial_ + pair * kPairFloats, partial_ + pair * kPairFloats + kPairFloats / 2};
    const auto x_at = [&](int64_t i) { return args_.x + rows[i] * args_.x_stride + part.begin * 2 * kStepK; };
    const auto y_at = [&](int64_t i) { return args_.y + rows[i] * args_.y_stride + column; };
    const bool to_y = part.last && args_.n - column >= kPanelWidth;
    if (to_y) {
      ahead.y = reinterpret_cast<const char*>(y_at(0));
      ahead.y_stride = args_.y_stride * 4;
      ahead.y_rows = rows[1] + tiles_.height - rows[0];
    }
    if (!part.first) {
      LoadSums<kBoth>({kept[0], kept[1]}, kPanelWidth * 4);
    } else if (args_.bias == nullptr) {
      ZeroSums<kBoth>();
    } else {
      LoadSums<kBoth>({bias_, bias_}, 0);
    }
    Steps<kBoth>({.a = {x_at(0), x_at(1)}, .stride = args_.x_stride}, w + part.begin * kStepBytes,
                 part.end - part.begin, ahead);
    if (part.last && tail_ != 0) {
      const auto tail_at = [&](int64_t i) { return x_tail_ + (rows[i] - tiles_.begin) * 2 * kStepK; };
      Step<kBoth>({.a = {tail_at(0), tail_at(1)}, .stride = 2 * kStepK}, w_tail_);
    }
    if (to_y) return StoreSums<kBoth>({y_at(0), y_at(1)}, args_.y_stride * 4);
    StoreSums<kBoth>(kept, kPanelWidth * 4);
    if (!part.last) return;
    for (int i = 0; i < (kBoth ? 2 : 1); ++i) CopyColumns(kept[i], rows[i], column);
  }

  // Copies the columns of a panel that extends beyond the last column.
  void CopyColumns(const float* from, int64_t row, int64_t column) {
    const size_t bytes = static_cast<size_t>(args_.n - column) * 4;
    for (int64_t r = 0; r < tiles_.height; ++r)
      __builtin_memcpy(args_.y + (row + r) * args_.y_stride + column, from + r * kPanelWidth, bytes);
  }

  void CopyBias(int64_t column) {
    if (args_.bias == nullptr) return;
    const size_t count = static_cast<size_t>(Min(args_.n - column, kPanelWidth));
    __builtin_memcpy(bias_, args_.bias + column, count * 4);
  }

  // The rest of k after whole steps, with zeros behind: the memory there may hold a NaN.
  void CopyTailOfX() {
    __builtin_memset(x_tail_, 0, sizeof(x_tail_));
    for (int64_t r = 0; r < tiles_.rows; ++r) {
      const char* const x = args_.x + (tiles_.begin + r) * args_.x_stride + steps_ * 2 * kStepK;
      __builtin_memcpy(x_tail_ + r * 2 * kStepK, x, static_cast<size_t>(2 * tail_));
    }
  }
  void CopyTailOfPanel(const char* w) {
    __builtin_memset(w_tail_, 0, sizeof(w_tail_));
    __builtin_memcpy(w_tail_, w, static_cast<size_t>((tail_ + 1) / 2 * kPanelWidth * 4));
  }

  const LinearArgs& args_;
  const RowTiles tiles_;
  const TileScope scope_;
  const int64_t steps_ = args_.k / kStepK;
  const int64_t tail_ = args_.k % kStepK;
  alignas(64) float bias_[kPanelWidth] = {};
  alignas(64) float partial_[kMaxBlockRows * kPanelWidth + kPairFloats];
  alignas(64) char x_tail_[kMaxBlockRows * 2 * kStepK];
  alignas(64) char w_tail_[kStepBytes];
};

void TileLinearRange(const LinearArgs& args, int64_t row_begin, int64_t row_end, int64_t panel_begin,
                     int64_t panel_end) {
  const int64_t rows = row_end - row_begin;
  const int64_t blocks = (rows + kMaxBlockRows - 1) / kMaxBlockRows;
  for (int64_t block = 0; block < blocks; ++block) {
    const int64_t begin = row_begin + rows * block / blocks;
    TileLinear linear(args, begin, row_begin + rows * (block + 1) / blocks - begin);
    for (int64_t panel = panel_begin; panel < panel_end; ++panel) linear.Panel(panel, panel_end);
  }
}

}  // namespace
}  // namespace somnus::cpu::SOMNUS_ISA
