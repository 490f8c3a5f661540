// The host versions of PTX against the layouts that the PTX ISA documents, written down element by element,
// and against plain matrix products. No matrix here is symmetric.

#include "kernels/cuda/ptx.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "tests/cuda/emulator_util.h"

namespace somnus::cuda_emulated {
namespace {

// Matrices as floats that both types hold exactly, with products whose sums are exact in f32.
struct Product {
  float a[16][16], b[16][8], c[16][8];
  explicit Product(uint32_t seed) {
    std::mt19937 random(seed);
    const auto small = [&] { return static_cast<float>(static_cast<int>(random() % 33) - 16) / 8; };
    for (auto& row : a) {
      for (float& x : row) x = small();
    }
    for (auto& row : b) {
      for (float& x : row) x = small();
    }
    for (auto& row : c) {
      for (float& x : row) x = small();
    }
  }
  float Expected(int i, int j) const {
    float sum = c[i][j];
    for (int k = 0; k < 16; ++k) sum += a[i][k] * b[k][j];
    return sum;
  }
};

// PTX ISA, "Matrix Fragments for mma.m16n8k16 with floating point type": element i of a thread's fragment.
int RowOfA(int lane, int i) { return i < 2 || (i >= 4 && i < 6) ? lane >> 2 : (lane >> 2) + 8; }
int ColumnOfA(int lane, int i) { return (lane % 4) * 2 + (i & 1) + (i < 4 ? 0 : 8); }
int RowOfB(int lane, int i) { return (lane % 4) * 2 + (i & 1) + (i < 2 ? 0 : 8); }
int ColumnOfB(int lane, int) { return lane >> 2; }
int RowOfC(int lane, int i) { return i < 2 ? lane >> 2 : (lane >> 2) + 8; }
int ColumnOfC(int lane, int i) { return (lane % 4) * 2 + (i & 1); }

void ExpectProduct(const Product& p, const std::vector<float>& d) {
  for (int lane = 0; lane < 32; ++lane) {
    for (int i = 0; i < 4; ++i) {
      EXPECT_EQ(d[lane * 4 + i], p.Expected(RowOfC(lane, i), ColumnOfC(lane, i))) << lane << " " << i;
    }
  }
}

template <typename T>
class MmaTest : public testing::Test {};
using Types = testing::Types<bf16, f16>;
TYPED_TEST_SUITE(MmaTest, Types);

TYPED_TEST(MmaTest, FragmentsByTheBook) {
  const Product p(1);
  std::vector<float> result(128);
  ASSERT_EQ(RunKernel(1, 32, 0,
                      [&] {
                        const int lane = LaneId();
                        uint32_t a[4], b[2];
                        float d[4];
                        for (int i = 0; i < 8; i += 2) {
                          a[i / 2] = Pack2<TypeParam>(p.a[RowOfA(lane, i)][ColumnOfA(lane, i)],
                                                      p.a[RowOfA(lane, i + 1)][ColumnOfA(lane, i + 1)]);
                        }
                        for (int i = 0; i < 4; i += 2) {
                          b[i / 2] = Pack2<TypeParam>(p.b[RowOfB(lane, i)][ColumnOfB(lane, i)],
                                                      p.b[RowOfB(lane, i + 1)][ColumnOfB(lane, i + 1)]);
                        }
                        for (int i = 0; i < 4; ++i) d[i] = p.c[RowOfC(lane, i)][ColumnOfC(lane, i)];
                        Mma16816<TypeParam>(d, a, b);
                        for (int i = 0; i < 4; ++i) result[lane * 4 + i] = d[i];
                      }),
            cudaSuccess);
  ExpectProduct(p, result);
}

// How kernels do it: A row-major, B as [n][k] (a weight's rows) and as [k][n] (values), all by ldmatrix.
TYPED_TEST(MmaTest, OperandsByLdMatrix) {
  const Product p(2);
  struct Tiles {
    TypeParam a[16][16], b_nk[8][16], b_kn[16][8];
  };
  for (const bool trans : {false, true}) {
    std::vector<float> result(128);
    ASSERT_EQ(RunKernel(1, 32, sizeof(Tiles),
                        [&] {
                          Tiles& s = *Shared<Tiles>();
                          const int lane = LaneId();
                          for (int e = lane; e < 256; e += 32)
                            s.a[e / 16][e % 16] = FromFloat<TypeParam>(p.a[e / 16][e % 16]);
                          for (int e = lane; e < 128; e += 32) {
                            s.b_kn[e / 8][e % 8] = FromFloat<TypeParam>(p.b[e / 8][e % 8]);
                            s.b_nk[e / 16][e % 16] = FromFloat<TypeParam>(p.b[e % 16][e / 16]);
                          }
                          __syncthreads();
                          uint32_t a[4], b[2];
                          float d[4];
                          for (int i = 0; i < 4; ++i) d[i] = p.c[RowOfC(lane, i)][ColumnOfC(lane, i)];
                          // Matrices 0, 1: rows 0-7, 8-15 of columns 0-7; 2, 3: of columns 8-15.
                          LdMatrixX4(a, &s.a[lane % 16][lane / 16 * 8]);
                          if (trans) {
                            LdMatrixX2Trans(b, &s.b_kn[lane % 16][0]);
                          } else {
                            LdMatrixX2(b, &s.b_nk[lane % 8][lane / 8 % 2 * 8]);
                          }
                          Mma16816<TypeParam>(d, a, b);
                          for (int i = 0; i < 4; ++i) result[lane * 4 + i] = d[i];
                        }),
              cudaSuccess);
    ExpectProduct(p, result);
  }
}

TEST(LdMatrix, LayoutsByTheBook) {
  // Rows of 8 elements in an order of their own: matrix m, row r at shared row (5 r + 3 m) % 8 + 8 m.
  struct Rows {
    alignas(16) uint16_t rows[32][8];
  };
  const auto row_of = [](int m, int r) { return (5 * r + 3 * m) % 8 + 8 * m; };
  const auto value = [](int m, int r, int c) { return static_cast<uint32_t>(m * 100 + r * 10 + c); };
  ASSERT_EQ(RunKernel(1, 32, sizeof(Rows),
                      [&] {
                        Rows& s = *Shared<Rows>();
                        const int lane = LaneId();
                        for (int c = 0; c < 8; ++c) {
                          s.rows[row_of(lane / 8, lane % 8)][c] =
                              static_cast<uint16_t>(value(lane / 8, lane % 8, c));
                        }
                        __syncthreads();
                        uint32_t plain[4], trans[4], two[2];
                        LdMatrixX4(plain, s.rows[row_of(lane / 8, lane % 8)]);
                        LdMatrixX4Trans(trans, s.rows[row_of(lane / 8, lane % 8)]);
                        LdMatrixX2(two, s.rows[row_of(lane / 8 % 2, lane % 8)]);
                        // Thread l gets row l / 4, elements 2 (l % 4) and the next; transposed, the same of
                        // columns.
                        const int i = lane / 4, j = lane % 4 * 2;
                        for (int m = 0; m < 4; ++m) {
                          EXPECT_EQ(plain[m], value(m, i, j) | value(m, i, j + 1) << 16);
                          EXPECT_EQ(trans[m], value(m, j, i) | value(m, j + 1, i) << 16);
                        }
                        EXPECT_EQ(two[0], plain[0]);
                        EXPECT_EQ(two[1], plain[1]);
                      }),
            cudaSuccess);
}

TEST(LdMatrixDeathTest, Misaligned) {
  EXPECT_DEATH(RunKernel(1, 32, 1024,
                         [] {
                           uint32_t r[4];
                           LdMatrixX4(r, Shared<char>() + 8 * LaneId());
                         }),
               "the row's address is not aligned to 16 bytes");
}

TEST(MmaDeathTest, OnlyByAWholeWarp) {
  EXPECT_DEATH(RunKernel(1, 16, 0,
                         [] {
                           uint32_t a[4] = {}, b[2] = {};
                           float d[4] = {};
                           Mma16816<bf16>(d, a, b);
                         }),
               "Mma16816 with mask 0xffffffff, but the warp has lanes 0x0000ffff");
}

TEST(Loads, SixteenBytes) {
  alignas(16) uint32_t data[8] = {1, 2, 3, 4, 5, 6, 7, 8};
  ASSERT_EQ(RunKernel(1, 1, 0,
                      [&] {
                        const uint4 v = LdGlobalNc16(data + 4);
                        EXPECT_EQ(v.x, 5u);
                        EXPECT_EQ(v.w, 8u);
                        EXPECT_EQ(LdGlobalStream16(data).y, 2u);
                        StGlobalStream16(data, v);
                      }),
            cudaSuccess);
  EXPECT_EQ(data[0], 5u);
  EXPECT_EQ(data[3], 8u);
}

TEST(Atomics, AnswerWhatWasThere) {
  uint32_t u = 5;
  int32_t i = -3;
  float f = 1.5f;
  ASSERT_EQ(RunKernel(1, 1, 0,
                      [&] {
                        EXPECT_EQ(AtomicAdd(&u, 2u), 5u);
                        EXPECT_EQ(AtomicMax(&u, 3u), 7u);
                        EXPECT_EQ(AtomicMin(&u, 6u), 7u);
                        EXPECT_EQ(AtomicOr(&u, 8u), 6u);
                        EXPECT_EQ(AtomicExch(&u, 1u), 14u);
                        EXPECT_EQ(AtomicCas(&u, 2u, 9u), 1u);
                        EXPECT_EQ(AtomicCas(&u, 1u, 9u), 1u);
                        EXPECT_EQ(AtomicMax(&i, -5), -3);
                        EXPECT_EQ(AtomicAdd(&f, 0.25f), 1.5f);
                        StRelease(&i, 12);
                        EXPECT_EQ(LdAcquire(&i), 12);
                      }),
            cudaSuccess);
  EXPECT_EQ(u, 9u);
  EXPECT_EQ(f, 1.75f);
}

TEST(Arithmetic, Bits) {
  EXPECT_EQ(PopCount(0xf0f0u), 8);
  EXPECT_EQ(CountLeadingZeros(0), 32);
  EXPECT_EQ(CountLeadingZeros(1), 31);
  EXPECT_EQ(FindFirstSet(0), 0);
  EXPECT_EQ(FindFirstSet(8), 4);
  EXPECT_EQ(MulHi(0x80000000u, 6), 3u);
  EXPECT_EQ(Exp2Approx(-INFINITY), 0);
  EXPECT_EQ(Exp2Approx(3), 8);
  EXPECT_EQ(RcpApprox(4), 0.25f);
}

}  // namespace
}  // namespace somnus::cuda_emulated
