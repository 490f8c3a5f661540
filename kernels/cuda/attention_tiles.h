#pragma once
// The common code of decode and prefill: 16 rows of queries of a warp against tiles of K and V in shared
// memory, on tensor cores (m16n8k16), with the online softmax of FlashAttention-2 (Dao 2023) in powers of
// two.
//
// T: queries and output, bf16 or f16. E: the cache, T, f8e4m3 or i8. With an f8e4m3 cache everything is
// multiplied as f16, in which e4m3 and softmax weights are exact or nearly so, and a row of queries is first
// scaled by a power of two to fit. With an i8 cache that is so for Q and K; a score is then multiplied by its
// token's scale of K, and a weight, after entering the sum of weights, by the scale of V. The scaled weights
// may be of any magnitude, so the weights and V are multiplied as bf16, in which V's integers are exact.
// Fragments: g = lane / 4 and t = lane % 4; a lane has rows g and g + 8, "row 0 and 1" below.

#include "kernels/cuda/attention_params.h"
#include "kernels/cuda/attention_scales.h"
#include "kernels/cuda/ptx.h"

namespace somnus::SOMNUS_CUDA_NAMESPACE {

template <typename E>
constexpr bool kOfBytes = sizeof(E) == 1;
template <typename E>
constexpr bool kIsI8 = std::is_same_v<E, i8>;
// The types of the factors: queries and K, weights and V.
template <typename E>
using KeyType = std::conditional_t<kOfBytes<E>, f16, E>;
template <typename E>
using ValueType = std::conditional_t<kIsI8<E>, bf16, KeyType<E>>;

template <typename E, int kDims>
constexpr int kTilePitch = static_cast<int>(TilePitch(kDims, sizeof(E)));

// Two E in the low bytes to two M.
template <typename E, typename M>
__device__ inline uint32_t Widen(uint32_t bits) {
  const auto pair = static_cast<uint16_t>(bits);
  if constexpr (kIsI8<E>) {
    return I8x2To<M>(pair);
  } else {
    return F8x2To<M>(pair);
  }
}

// ---- Queries

// Queries of this many values (rows of a warp times dims) are kept in shared memory, as fragments: together
// with the output's sums, which are as many, such queries would not fit the registers.
template <int kDims, int kGroups>
constexpr bool kQueriesShared = kDims* kGroups >= 256;
// Bytes for 16 rows of queries in shared memory.
template <int kDims, int kGroups>
constexpr int kQueryBytes = kQueriesShared<kDims, kGroups> ? kDims / 16 * 32 * 16 : 0;

// 16 rows as the A operand, a fragment for each 16 dims.
template <int kDims>
struct QueryTile {
  uint32_t a[kDims / 16][4];
  float scale[2];  // of the scores of rows 0 and 1
};

// Rows 0 and 1 as the A operand; nullptr: zeros. With a cache of bytes a lane's four columns of a step are
// neighbours, like the lane's four bytes of K: the order of dims within a step is free as long as queries and
// K have the same order.
template <typename T, typename E, int kDims>
__device__ inline void LoadQueries(const T* row0, const T* row1, int head_dim, QueryTile<kDims>& q) {
  const int t = LaneId() % 4;
  const T* const rows[2] = {row0, row1};
#pragma unroll
  for (int s = 0; s < kDims / 16; ++s) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if constexpr (kOfBytes<E>) {
        const int col = 16 * s + 4 * t;
        Vec<uint32_t, 2> pair{};
        if (rows[r] != nullptr && col < head_dim) {
          pair = LoadVec<uint32_t, 2>(reinterpret_cast<const uint32_t*>(rows[r] + col));
        }
        q.a[s][r] = pair[0];
        q.a[s][2 + r] = pair[1];
      } else {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int col = 16 * s + 8 * half + 2 * t;
          const bool there = rows[r] != nullptr && col < head_dim;
          q.a[s][2 * half + r] = there ? *reinterpret_cast<const uint32_t*>(rows[r] + col) : 0;
        }
      }
    }
  }
}

// bf16 queries to f16: each row divided by a power of two that brings the row's largest value below 2, and
// the row's scale multiplied by that power.
template <int kDims>
__device__ inline void QueriesToF16(QueryTile<kDims>& q) {
  float largest[2] = {0, 0};
#pragma unroll
  for (int s = 0; s < kDims / 16; ++s) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 x = Unpack2<bf16>(q.a[s][i]);
      largest[i % 2] = fmaxf(largest[i % 2], fmaxf(fabsf(x.x), fabsf(x.y)));
    }
  }
  ButterflyEach(largest, 2, [](float a, float b) { return fmaxf(a, b); });
  float inverse[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    // Between 2^-63 and 2^126: smaller queries score nothing anyway, and the scale stays a normal number.
    const uint32_t exponent = min(max(FloatBits(largest[r]) >> 23, 64u), 253u);
    inverse[r] = FloatOfBits((254u - exponent) << 23);
    q.scale[r] *= FloatOfBits(exponent << 23);
  }
#pragma unroll
  for (int s = 0; s < kDims / 16; ++s) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 x = Unpack2<bf16>(q.a[s][i]);
      q.a[s][i] = Pack2<f16>(x.x * inverse[i % 2], x.y * inverse[i % 2]);
    }
  }
}

// The operand that the products with K read for 16 rows, out of a warp's kGroups times 16.
template <int kDims, int kGroups>
struct QueryOperand {
  static constexpr bool kShared = kQueriesShared<kDims, kGroups>;

  uint32_t a[kShared ? 1 : kDims / 16][4];
  const Vec<uint32_t, 4>* shared;  // this lane's; 32 from one fragment to the next
  float scale[2];

  __device__ void Get(int step, uint32_t (&to)[4]) const {
    Vec<uint32_t, 4> from{};
    if constexpr (kShared) from = shared[32 * step];
#pragma unroll
    for (int i = 0; i < 4; ++i) to[i] = kShared ? from[i] : a[kShared ? 0 : step][i];
  }
};

// The queries of rows 0 and 1. `shared`: kQueryBytes that `sharers` warps with the same rows have in common;
// this warp is number `own` and writes its part. If there are any bytes, the caller's barrier must follow.
template <typename T, typename E, int kDims, int kGroups>
__device__ inline void PrepareQueries(const AttentionParams& p, const T* row0, const T* row1, void* shared,
                                      int sharers, int own, QueryOperand<kDims, kGroups>& operand) {
  QueryTile<kDims> q;
  q.scale[0] = q.scale[1] = p.scale_log2;
  LoadQueries<T, E>(row0, row1, p.head_dim, q);
  if constexpr (kOfBytes<E> && std::is_same_v<T, bf16>) QueriesToF16(q);
  operand.scale[0] = q.scale[0];
  operand.scale[1] = q.scale[1];
  auto* const fragments = static_cast<Vec<uint32_t, 4>*>(shared) + LaneId();
  operand.shared = fragments;
#pragma unroll
  for (int step = 0; step < kDims / 16; ++step) {
    if constexpr (kQueriesShared<kDims, kGroups>) {
      if (step % sharers != own) continue;
      fragments[32 * step] = {q.a[step][0], q.a[step][1], q.a[step][2], q.a[step][3]};
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) operand.a[step][i] = q.a[step][i];
    }
  }
}

// ---- Tiles of K and V: rows of kDims elements, kTilePitch apart. An i8 row's scale lies right behind the
// row.

// The rows of a tile that hold tokens which some query sees: [from, end), with a window; else [0, end).
template <bool kRule>
struct ValidRows;
template <>
struct ValidRows<false> {
  int end;
  __device__ ValidRows(int, int end) : end(end) {}
  __device__ bool Has(int row) const { return row < end; }
};
template <>
struct ValidRows<true> {
  int from, end;
  __device__ ValidRows(int from, int end) : from(from), end(end) {}
  __device__ bool Has(int row) const { return row >= from && row < end; }
};

// Queues the copy of a tile's rows [0, kRows) of K and of V, which lies to_v bytes behind K in the cache, by
// kThreads threads; rows that are not valid and columns from head_dim on become zeros. row(i): the place of
// row i of K in the cache; called for valid rows only. `anywhere`: any address in the cache.
template <typename E, int kDims, int kRows, int kThreads, typename Valid, typename Row>
__device__ inline void CopyTiles(char* k, char* v, int thread, const Valid& valid, int head_dim,
                                 const void* anywhere, int64_t to_v, const Row& row) {
  constexpr int kChunks = kDims * static_cast<int>(sizeof(E)) / 16;
#pragma unroll
  for (int i = 0; i < (kRows * kChunks + kThreads - 1) / kThreads; ++i) {
    const unsigned at = static_cast<unsigned>(thread + i * kThreads);
    if (kRows * kChunks % kThreads != 0 && at >= kRows * kChunks) break;
    // Where possible, a thread keeps its column, so that all addresses are one address plus constants.
    constexpr bool kColumn = kThreads % kChunks == 0;
    const int r = kColumn
                      ? static_cast<int>(static_cast<unsigned>(thread) / kChunks) + i * (kThreads / kChunks)
                      : static_cast<int>(at / kChunks);
    const int chunk = static_cast<int>((kColumn ? static_cast<unsigned>(thread) : at) % kChunks);
    const bool there = valid.Has(r) && chunk * 16 < head_dim * static_cast<int>(sizeof(E));
    const char* const from =
        there ? reinterpret_cast<const char*>(row(r)) + chunk * 16 : static_cast<const char*>(anywhere);
    const int to = r * kTilePitch<E, kDims> + chunk * 16;
    CpAsync16(k + to, from, there);
    CpAsync16(v + to, there ? from + to_v : from, there);
  }
}

// The B operand of tokens [8 n, 8 n + 16), dims [16 step, 16 step + 16) of a tile of K: two registers for
// each 8 tokens.
template <typename E, int kDims>
__device__ inline void KeyOperand(const char* k, int n, int step, uint32_t (&r)[4]) {
  const int lane = LaneId();
  if constexpr (kOfBytes<E>) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const char* const from =
          k + (8 * (n + i) + lane / 4) * kTilePitch<E, kDims> + 16 * step + 4 * (lane % 4);
      const uint32_t bytes = *reinterpret_cast<const uint32_t*>(from);
      r[2 * i] = Widen<E, f16>(bytes);
      r[2 * i + 1] = Widen<E, f16>(bytes >> 16);
    }
  } else {
    const int row = 8 * n + lane / 16 * 8 + lane % 8;
    LdMatrixX4(r, k + row * kTilePitch<E, kDims> + 32 * step + lane / 8 % 2 * 16);
  }
}

// s = q * k^T, kTokens tokens in fragments of 8.
template <typename E, int kDims, int kTokens, int kGroups>
__device__ inline void Scores(const QueryOperand<kDims, kGroups> (&q)[kGroups], const char* k,
                              float (&s)[kGroups][kTokens / 8][4]) {
#pragma unroll
  for (int m = 0; m < kGroups; ++m) {
#pragma unroll
    for (int i = 0; i < kTokens / 8 * 4; ++i) s[m][i / 4][i % 4] = 0;
  }
#pragma unroll
  for (int step = 0; step < kDims / 16; ++step) {
    uint32_t a[kGroups][4];
#pragma unroll
    for (int m = 0; m < kGroups; ++m) q[m].Get(step, a[m]);
#pragma unroll
    for (int n = 0; n < kTokens / 8; n += 2) {
      uint32_t r[4];
      KeyOperand<E, kDims>(k, n, step, r);
#pragma unroll
      for (int m = 0; m < kGroups; ++m) {
        Mma16816<KeyType<E>>(s[m][n], a[m], {r[0], r[1]});
        Mma16816<KeyType<E>>(s[m][n + 1], a[m], {r[2], r[3]});
      }
    }
  }
}

// Which dim column n of fragment f of the output is. With a cache of bytes a lane reads four neighbouring
// bytes of a token, which serve four fragments.
template <typename E>
__device__ constexpr int OutputDim(int f, int n) {
  return kOfBytes<E> ? f / 4 * 32 + 4 * n + f % 4 : 8 * f + n;
}

// Byte i of a in the low byte, of b in the next.
__device__ inline uint32_t PairBytes(uint32_t a, uint32_t b, int i) {
  return (a >> (8 * i) & 0xff) | (b >> (8 * i) & 0xff) << 8;
}

// o += weights * v for tokens [16 step, 16 step + 16) of the tile.
template <typename E, int kDims, int kGroups>
__device__ inline void AddValues(const uint32_t (&weights)[kGroups][4], const char* v, int step,
                                 float (&o)[kGroups][kDims / 8][4]) {
  const int lane = LaneId();
  if constexpr (kOfBytes<E>) {
    const char* const from = v + (16 * step + 2 * (lane % 4)) * kTilePitch<E, kDims> + lane / 4 * 4;
#pragma unroll
    for (int block = 0; block < kDims / 32; ++block) {
      uint32_t token[4];  // 2 t, 2 t + 1, 2 t + 8, 2 t + 9
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = i % 2 + i / 2 * 8;
        token[i] = *reinterpret_cast<const uint32_t*>(from + row * kTilePitch<E, kDims> + 32 * block);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint32_t b[2] = {Widen<E, ValueType<E>>(PairBytes(token[0], token[1], i)),
                               Widen<E, ValueType<E>>(PairBytes(token[2], token[3], i))};
#pragma unroll
        for (int m = 0; m < kGroups; ++m) Mma16816<ValueType<E>>(o[m][4 * block + i], weights[m], b);
      }
    }
  } else {
    const char* const from = v + (16 * step + lane % 16) * kTilePitch<E, kDims> + lane / 16 * 16;
#pragma unroll
    for (int f = 0; f < kDims / 8; f += 2) {
      uint32_t r[4];
      LdMatrixX4Trans(r, from + 16 * f);
#pragma unroll
      for (int m = 0; m < kGroups; ++m) {
        Mma16816<E>(o[m][f], weights[m], {r[0], r[1]});
        Mma16816<E>(o[m][f + 1], weights[m], {r[2], r[3]});
      }
    }
  }
}

// ---- Softmax

// The state of rows 0 and 1: the base that weights are relative to, near the largest score (the same in the
// four lanes of a row), and this lane's part of the sum of weights.
struct SoftmaxState {
  float max[2] = {-INFINITY, -INFINITY};
  float sum[2] = {0, 0};
};

// How far, in powers of two, a score may lie above the base of a row's weights: weights are at most 2^8,
// which every type of weights holds, and sums of 2^8 times as many tokens as f32 can count.
constexpr float kMaxSlack = 8;

// Folds a tile in. On entry s has the unscaled scores, -inf where a row does not see the token; on return it
// has the weights, and o and sum are relative to state.max. scale > 0, so that scaling does not change which
// score is the largest; scaling and subtracting the maximum are then one operation. state.max moves only
// where a score exceeds state.max by more than kMaxSlack (FlashAttention-4), so that o is multiplied rarely:
// a row's maximum grows in most of its first hundreds of tiles, and any row's does in nearly all.
template <int kFragments, int kOutputs>
__device__ inline void FoldScores(float (&s)[kFragments][4], const float (&scale)[2], SoftmaxState& state,
                                  float (&o)[kOutputs][4]) {
  float tops[2], decay[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    tops[r] = s[0][2 * r];
#pragma unroll
    for (int n = 0; n < kFragments; ++n) tops[r] = fmaxf(tops[r], fmaxf(s[n][2 * r], s[n][2 * r + 1]));
  }
  ButterflyEach(tops, 2, [](float a, float b) { return fmaxf(a, b); });
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float top = tops[r] * scale[r];
    // -inf where the row has seen nothing yet: then any score moves it.
    const bool moves = top > state.max[r] + kMaxSlack;
    decay[r] = moves ? Exp2Approx(state.max[r] - top) : 1.0f;
    if (moves) state.max[r] = top;
    const float base = state.max[r] == -INFINITY ? 0.0f : state.max[r];
    float sum = 0;
#pragma unroll
    for (int n = 0; n < kFragments; ++n) {
#pragma unroll
      for (int i = 2 * r; i < 2 * r + 2; ++i) {
        s[n][i] = Exp2Approx(fmaf(s[n][i], scale[r], -base));
        sum += s[n][i];
      }
    }
    state.sum[r] = state.sum[r] * decay[r] + sum;
  }
  if (!AnySync(decay[0] != 1 || decay[1] != 1)) return;
#pragma unroll
  for (int f = 0; f < kOutputs; ++f) {
#pragma unroll
    for (int i = 0; i < 4; ++i) o[f][i] *= decay[i / 2];
  }
}

// Fragments n and n + 1 of weights (16 tokens) as the A operand.
template <typename M>
__device__ inline void WeightOperand(const float (&s0)[4], const float (&s1)[4], uint32_t (&a)[4]) {
  a[0] = Pack2<M>(s0[0], s0[1]);
  a[1] = Pack2<M>(s0[2], s0[3]);
  a[2] = Pack2<M>(s1[0], s1[1]);
  a[3] = Pack2<M>(s1[2], s1[3]);
}

// Sets the scores of tokens that are not below a row's limit, or lie before its window, to -inf. `token`: of
// the tile's first score.
template <bool kRule, int kFragments>
__device__ inline void MaskScores(const AttentionParams& p, int token, const int (&limit)[2],
                                  float (&s)[kFragments][4]) {
  const int t = LaneId() % 4;
#pragma unroll
  for (int n = 0; n < kFragments; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int at = token + 8 * n + 2 * t + i % 2;
      if (at >= limit[i / 2] || (kRule && at < limit[i / 2] - p.window)) s[n][i] = -INFINITY;
    }
  }
}

// cap * tanh(score / cap) in powers of two; tanh(x) as 1 - 2 / (e^2x + 1), whose error of some 2^-22 is
// absolute and thus a few millionths of the cap (tanh.approx has 2^-11). The results need no scale.
template <int kFragments>
__device__ inline void CapScores(const AttentionParams& p, const float (&scale)[2],
                                 float (&s)[kFragments][4]) {
  constexpr float kTwiceLog2E = 2.885390082f;
  const float cap = p.softcap_log2;
#pragma unroll
  for (int n = 0; n < kFragments; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float power = Exp2Approx(s[n][i] * (scale[i / 2] * (kTwiceLog2E / cap)));
      s[n][i] = cap - 2 * cap * RcpApprox(power + 1);
    }
  }
}

// One K/V tile of kTokens tokens: all of the above, for kGroups times 16 rows. Each read of K and V serves
// all groups. `masked`: some row does not see the whole tile (the same for the warp). kRule: with a window or
// a soft cap.
template <bool kRule, typename E, int kDims, int kTokens, int kGroups>
__device__ inline void AttendTile(const AttentionParams& p, const QueryOperand<kDims, kGroups> (&q)[kGroups],
                                  const char* k, const char* v, int token, bool masked,
                                  const int (&limit)[kGroups][2], SoftmaxState (&state)[kGroups],
                                  float (&o)[kGroups][kDims / 8][4]) {
  float s[kGroups][kTokens / 8][4];
  Scores<E, kDims, kTokens>(q, k, s);
  if constexpr (kIsI8<E>) MultiplyByScales<kDims>(k, s);
#pragma unroll
  for (int m = 0; m < kGroups; ++m) {
    float scale[2] = {q[m].scale[0], q[m].scale[1]};
    if (kRule && p.softcap_log2 != 0) {
      CapScores(p, q[m].scale, s[m]);
      scale[0] = scale[1] = 1;
    }
    if (masked) MaskScores<kRule>(p, token, limit[m], s[m]);
    FoldScores(s[m], scale, state[m], o[m]);
  }
  if constexpr (kIsI8<E>) MultiplyByScales<kDims>(v, s);
#pragma unroll
  for (int step = 0; step < kTokens / 16; ++step) {
    uint32_t weights[kGroups][4];
#pragma unroll
    for (int m = 0; m < kGroups; ++m) {
      WeightOperand<ValueType<E>>(s[m][2 * step], s[m][2 * step + 1], weights[m]);
    }
    AddValues<E, kDims>(weights, v, step, o);
  }
}

// The sum of a row's weights over its four lanes.
__device__ inline float RowSum(float sum) {
  sum += ShflXor(sum, 1);
  return sum + ShflXor(sum, 2);
}

}  // namespace somnus::SOMNUS_CUDA_NAMESPACE
