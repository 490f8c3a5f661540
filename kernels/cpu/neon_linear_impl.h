// Linear with bf16 weights by BFMMLA. Part of kernels_neon_bf16.cc.
//
// One instruction multiplies two rows of activations, four values of k of each, by two columns: two steps of
// a panel, whose pairs of k are interleaved first. An output element is a chain over steps of four values of
// k in ascending order, for any number of rows: a row without a neighbour is its own pair.

namespace somnus::cpu::SOMNUS_ISA {
namespace {

constexpr int64_t kMatrixK = 4;
constexpr int64_t kPairBytes = kPanelWidth * 4;  // of a panel, for two values of k
constexpr int kMaxMatrixRows = kBfmmlaSizes.max_rows;
constexpr int MatrixVectors(int rows) { return kBfmmlaSizes.vectors[rows <= 2 ? 0 : rows <= 4 ? 1 : 2]; }

// Sums of rows 2 * p and 2 * p + 1: of column vector v {row, row + 1} x {column 0, column 1} and x {2, 3}.
template <int kPairs, int kVectors>
using MatrixSums = float32x4_t[kPairs][kVectors][2];

SOMNUS_INLINE bfloat16x8_t TwoRows(const char* first, const char* second) {
  uint64_t both[2];
  __builtin_memcpy(&both[0], first, 8);
  __builtin_memcpy(&both[1], second, 8);
  return (bfloat16x8_t)vcombine_u64(vcreate_u64(both[0]), vcreate_u64(both[1]));
}

// low, high: the first and the second pair of k of the first column vector.
template <int kPairs, int kVectors>
SOMNUS_INLINE void MatrixStep(const bfloat16x8_t (&x)[kPairs], const char* low, const char* high,
                              MatrixSums<kPairs, kVectors>& sums) {
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) {
    const uint32x4_t first = (uint32x4_t)LoadU(low + v * kW * 4),
                     second = (uint32x4_t)LoadU(high + v * kW * 4);
    const bfloat16x8_t w[2] = {(bfloat16x8_t)vzip1q_u32(first, second),
                               (bfloat16x8_t)vzip2q_u32(first, second)};
#pragma GCC unroll 8
    for (int p = 0; p < kPairs; ++p) {
      sums[p][v][0] = vbfmmlaq_f32(sums[p][v][0], x[p], w[0]);
      sums[p][v][1] = vbfmmlaq_f32(sums[p][v][1], x[p], w[1]);
    }
  }
}

// The rest of k after whole steps, with zeros behind: the memory there may hold a NaN, or another panel.
template <int kPairs, int kVectors>
SOMNUS_INLINE void MatrixTail(const char* const (&x)[2 * kPairs], int64_t left, const char* w,
                              MatrixSums<kPairs, kVectors>& sums) {
  alignas(16) static constexpr char kZeros[kVectors * kW * 4] = {};
  bfloat16x8_t both[kPairs];
#pragma GCC unroll 8
  for (int p = 0; p < kPairs; ++p) {
    char rows[2][8] = {};
    __builtin_memcpy(rows[0], x[2 * p], static_cast<size_t>(left) * 2);
    __builtin_memcpy(rows[1], x[2 * p + 1], static_cast<size_t>(left) * 2);
    both[p] = TwoRows(rows[0], rows[1]);
  }
  MatrixStep<kPairs, kVectors>(both, w, left > 2 ? w + kPairBytes : kZeros, sums);
}

template <int kRows, int kVectors>
SOMNUS_INLINE void StoreMatrix(const LinearArgs& args, int64_t row, int64_t column,
                               const MatrixSums<(kRows + 1) / 2, kVectors>& sums) {
  VF acc[kRows][kVectors];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      const float64x2_t first = (float64x2_t)sums[r / 2][v][0], second = (float64x2_t)sums[r / 2][v][1];
      acc[r][v] = (VF)(r % 2 == 0 ? vzip1q_f64(first, second) : vzip2q_f64(first, second));
    }
  }
  StoreTile<kRows, kVectors>(args, row, column, acc);
}

// Columns [column, column + kVectors * kW) of rows [row, row + kRows). ahead: how far in bytes the weights
// that are prefetched lie; 0 for none.
template <int kRows, int kVectors>
inline __attribute__((noinline)) void MatrixTile(const LinearArgs& args, const char* panel, int64_t row,
                                                 int64_t column, int64_t ahead) {
  constexpr int kPairs = (kRows + 1) / 2;
  MatrixSums<kPairs, kVectors> sums = {};
  const char* x[2 * kPairs];
#pragma GCC unroll 16
  for (int r = 0; r < 2 * kPairs; ++r) x[r] = args.x + (row + (r < kRows ? r : kRows - 1)) * args.x_stride;
  const char* w = panel + column % kPanelWidth * 4;
  for (int64_t i = 0; i + kMatrixK <= args.k; i += kMatrixK, w += 2 * kPairBytes) {
    bfloat16x8_t both[kPairs];
#pragma GCC unroll 8
    for (int p = 0; p < kPairs; ++p) both[p] = TwoRows(x[2 * p] + 2 * i, x[2 * p + 1] + 2 * i);
    if (ahead != 0) {
#pragma GCC unroll 2
      for (int b = 0; b < kVectors * kW * 4; b += 64) {
        __builtin_prefetch(w + ahead + b, 0, 2);
        __builtin_prefetch(w + ahead + kPairBytes + b, 0, 2);
      }
    }
    MatrixStep<kPairs, kVectors>(both, w, w + kPairBytes, sums);
  }
  if (const int64_t left = args.k % kMatrixK; left != 0) {
    for (const char*& row_of_x : x) row_of_x += (args.k - left) * 2;
    MatrixTail<kPairs, kVectors>(x, left, w, sums);
  }
  StoreMatrix<kRows, kVectors>(args, row, column, sums);
}

void MatrixLinearRange(const LinearArgs& args, int64_t row_begin, int64_t row_end, int64_t panel_begin,
                       int64_t panel_end) {
  const int64_t rows = row_end - row_begin;
  const int64_t tiles = (rows + kMaxMatrixRows - 1) / kMaxMatrixRows;
  const int64_t panel_bytes = PanelBytes(DataType::kBF16, args.k);
  for (int64_t panel = panel_begin; panel < panel_end; ++panel) {
    const char* const w = args.w + panel * panel_bytes;
    const int64_t next = panel + 1 < panel_end ? panel_bytes : 0;
    for (int64_t tile = 0; tile < tiles; ++tile) {
      const int64_t row = row_begin + rows * tile / tiles;
      // As LinearRange does: the last rows that use a panel prefetch the next panel meanwhile.
      const int64_t ahead = tiles == 1 ? AheadBytes(rows) : tile == tiles - 1 ? next : 0;
      WithRows<kMaxMatrixRows>(row_begin + rows * (tile + 1) / tiles - row, [&]<int kRows>() {
        constexpr int kVectors = MatrixVectors(kRows);
        for (int64_t c = 0; c < kPanelWidth; c += kVectors * kW)
          MatrixTile<kRows, kVectors>(args, w, row, panel * kPanelWidth + c, ahead);
      });
    }
  }
}

}  // namespace
}  // namespace somnus::cpu::SOMNUS_ISA
