#pragma once
// The interface of one instruction set's translation unit: plain functions over ranges of rows, without
// threads or checks. Everything here is plain data, and every inline function has internal linkage: the
// linker must never keep a copy that was compiled for a newer instruction set for all units. A unit defines
// its table of pointers, which the compiler fills, and no other external symbol: a unit runs nothing at the
// program's start, and does not ask the CPU; instruction_sets.cc does. tests/kernels/instruction_sets_test.py
// reads that from the objects and the programs.

#include <cstddef>
#include <cstdint>

#include "kernels/op_types.h"

namespace somnus::cpu {

// Output features of one panel: the unit of packing and of the split over threads.
inline constexpr int64_t kPanelWidth = 32;
// Bytes that a row of packed activations must have beyond its end: vectors are read whole.
inline constexpr int64_t kSlackBytes = 64;

// y[r] = x[r] * w^T + bias for rows [row_begin, row_end) and panels [panel_begin, panel_end). Weights: [n /
// 32][k / 2][32][2] bf16, or [n / 32][k][32] f32 or f16; n and k rounded up. Quantized weights:
// quantized_layout.h. Weights of fp8: F8NumbersAt. x: bf16 when KernelTable::native_bf16 is set and the
// weight is bf16, and of linear_f8_bf16; blocks of quantize_row when the weight is quantized and not fp8;
// else f32.
struct LinearArgs {
  const char* x;
  int64_t x_stride;  // bytes
  const char* w;
  int64_t n;
  int64_t k;
  const float* bias;
  float* y;
  int64_t y_stride;  // elements
  bool expands;      // KernelTable::expands
  bool reads_ahead;  // KernelTable::reads_ahead
};

// Rows of activations, strides in elements.
struct NormArgs {
  float* residual;
  int64_t residual_stride;
  const float* delta;
  int64_t delta_stride;
  const float* weight;
  const float* bias;
  char* out;
  int64_t out_stride;
  DataType out_type;
  int64_t cols;
  float eps;
};

struct ActivationArgs {
  const float* x;
  int64_t x_stride;
  char* out;
  int64_t out_stride;
  DataType out_type;
  int64_t cols;  // of out
};

struct QkArgs {
  float* qkv;
  int64_t qkv_stride;
  int64_t num_heads;
  const float* q_norm;
  const float* k_norm;
  float eps;
  const float* cos;
  const float* sin;
  const float* q_scale;
  const int32_t* positions;
  const int32_t* slots;
  KvCacheView cache;
};

// As the op LatentRopeAndCache.
struct LatentArgs {
  float* row;
  int64_t row_stride;
  const float* norm;
  float eps;
  const float* queries;
  int64_t query_stride;
  int64_t num_heads;
  int64_t nope;
  int64_t rope;
  int64_t latent;
  bool interleaved;
  const float* cos;
  const float* sin;
  const int32_t* positions;
  const int32_t* slots;
  KvCacheView cache;
  float* out;
  int64_t out_stride;
};

// Queries [query_begin, query_end) of one sequence against one KV head.
struct AttentionArgs {
  const float* q;  // row 0 of the step
  int64_t q_stride;
  char* out;
  int64_t out_stride;
  DataType out_type;
  const int32_t* heads;  // the query heads that this KV head serves
  int64_t num_heads;
  float scale;          // of scores, with that of K
  float v_scale;        // of the output
  int32_t window;       // 0: none; see AttentionRule
  float logit_softcap;  // 0: none
  const float* sinks;   // [num_heads of the step]; nullptr: none
  const int32_t* positions;
  KvCacheView cache;
};
struct AttentionItem {
  int64_t query_begin;  // rows of the step
  int64_t query_end;
  const int32_t* blocks;  // the sequence's block table
  int64_t kv_head;
};

// Attention over one type of cache. scratch: AttentionScratchBytes(head_dim), 64-byte aligned.
struct AttentionKernels {
  void (*whole)(const AttentionArgs& args, const AttentionItem& item, char* scratch);
  // `whole` in two steps, for items of at most kAttentionRows rows: the sums of each section of the context
  // (SectionTokens), of PartialBytes bytes, by any thread in any order; then the output from the sums of the
  // sections [first, sections), where `first` is the section of FirstToken of the item's first query, and
  // `partials` are the sums of that section.
  void (*section)(const AttentionArgs& args, const AttentionItem& item, int64_t section, char* scratch,
                  char* partial);
  void (*join)(const AttentionArgs& args, const AttentionItem& item, int64_t sections, char* scratch,
               char* partials, int64_t stride);
};

struct KernelTable {
  const char* name;
  bool native_bf16;  // with bf16 weights, Linear reads activations as bf16

  // Indexed by the DataType of the weight; null for types that weights do not have.
  void (*linear[kNumDataTypes])(const LinearArgs& args, int64_t row_begin, int64_t row_end,
                                int64_t panel_begin, int64_t panel_end);
  // The linear with weights of fp8 and x in bf16; null where bf16 has no products of its own.
  void (*linear_f8_bf16)(const LinearArgs& args, int64_t row_begin, int64_t row_end, int64_t panel_begin,
                         int64_t panel_end);
  int64_t quantized_bytes;
  int64_t max_tile_rows;    // rows that one pass over a panel serves
  int64_t row_block_bytes;  // of x in bf16: stay in a core's L2 cache while the panels pass by

  void (*pack_rows)(const LinearWeight& weight, int64_t row_begin, int64_t num_rows, const float* rows);
  void (*unpack_row)(const LinearWeight& weight, int64_t row, float* out);
  // Any act type to f32.
  void (*to_float)(const char* x, DataType type, int64_t n, float* out);

  // x [k], of any act type, in the form that Linear takes with weights of the quantized type `weight`:
  // quantized_bytes for each kQuantBlock values. A value that is not finite makes its block's scale not
  // finite, too.
  void (*quantize_row)(const char* x, DataType type, int64_t k, DataType weight, char* out);

  void (*add)(float* residual, const float* delta, int64_t n);
  void (*rms_norm)(const NormArgs& args, int64_t row_begin, int64_t row_end);
  void (*layer_norm)(const NormArgs& args, int64_t row_begin, int64_t row_end);
  // On one row, as the ops SumSquares and ScaleAndCap.
  float (*sum_squares)(const float* x, int64_t n);
  void (*scale_and_cap)(float* x, int64_t n, float factor, float softcap);
  // x = x * scale * weight.
  void (*scale_by)(float* x, int64_t n, float scale, const float* weight);
  // The sum of x[i] * w[i], both of `type`, in f32.
  float (*dot)(const char* x, const char* w, DataType type, int64_t n);
  // y[i] += factor * w[i].
  void (*add_scaled)(float* y, float factor, const char* w, DataType type, int64_t n);
  void (*silu_and_mul)(const ActivationArgs& args, int64_t row_begin, int64_t row_end);
  void (*gelu_tanh_and_mul)(const ActivationArgs& args, int64_t row_begin, int64_t row_end);
  void (*clamped_swiglu_and_mul)(const ActivationArgs& args, const ClampedSwiglu& unit, int64_t row_begin,
                                 int64_t row_end);
  void (*activate)(const ActivationArgs& args, UnaryActivation f, int64_t row_begin, int64_t row_end);

  void (*qk_norm_rope_cache)(const QkArgs& args, int64_t row_begin, int64_t row_end);
  void (*latent_rope_cache)(const LatentArgs& args, int64_t row_begin, int64_t row_end);
  const AttentionKernels& (*attention_for)(const KvCacheView& cache);
  // Of parts of a set: the functions for a cache and a type of activations that the parts serve, or null. The
  // member itself is null where no parts have such functions.
  const AttentionKernels* (*special_attention)(const KvCacheView& cache, DataType activations);

  // The largest value and its smallest index; {NaN, -1} when any value is NaN, {-inf, -1} when no value is
  // above -inf.
  ScoredToken (*arg_max)(const float* x, int64_t n);
  // log(sum(exp(x))) and how many values are strictly larger than `than`.
  void (*log_sum_exp)(const float* x, int64_t n, float than, double* lse, int32_t* larger);
  // x /= temperature, where a product that is not a number becomes -inf; returns the largest, or NaN when x
  // held a NaN.
  float (*scale_logits)(float* x, int64_t n, float temperature);
  // out[i] = exp(x[i] - max).
  void (*exp_minus)(const float* x, int64_t n, float max, float* out);
  // The index with the largest x[i] + Gumbel noise among x[i] >= at_least; token i has the id ids[i], or i
  // without ids.
  int64_t (*gumbel_arg_max)(const float* x, const int32_t* ids, int64_t n, float at_least, uint64_t seed,
                            int32_t position);

  // Elements [begin, end) of data; see FillRandom of ops.h.
  void (*fill_random)(char* data, DataType type, int64_t begin, int64_t end, uint64_t seed, float scale);

  bool reads_odd_lines;  // Linear of many rows is fastest where rows of x lie an odd number of 64 bytes apart
  // Whether Linear of many rows expands 16-bit weights for products in f32. Depends on the CPU; set by
  // instruction_sets.cc.
  bool expands;
  // Whether the CPU itself fetches weights that are read in the order of their addresses, so well that
  // prefetches of a tile of a few rows (TileSizes::unaided_rows) only take the place of other reads. Depends
  // on the CPU; set by instruction_sets.cc.
  bool reads_ahead;
};

// The table of each unit of the architecture. A table of parts replaces members of a lesser set's table; all
// further members are null or zero.
#if defined(__aarch64__)
extern const KernelTable kNeonKernels;
extern const KernelTable kNeonDotprodParts;  // of kNeonKernels
extern const KernelTable kNeonBf16Kernels;
#else
extern const KernelTable kPortableKernels;
extern const KernelTable kAvx2Kernels;
extern const KernelTable kAvxVnniParts;  // of kAvx2Kernels
extern const KernelTable kAvx512Kernels;
extern const KernelTable kAvx512VnniParts;  // of kAvx512Kernels
extern const KernelTable kAvx512Bf16Kernels;
extern const KernelTable kAvx512VbmiParts;  // of kAvx512Bf16Kernels: attention over bytes
extern const KernelTable kAmxParts;         // of kAvx512Bf16Kernels
#endif

// ---- Layout of packed weights and of cache blocks

static inline int64_t RoundUp(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

static inline int64_t ElementBytes(DataType type) {
  if (type == DataType::kF8E4M3 || type == DataType::kI8) return 1;
  return type == DataType::kF32 || type == DataType::kI32 ? 4 : 2;
}

// A panel of fp8 weights is f32 [32], the columns' scales; f32 [k / 32], the scales of as many values of all
// columns, padded to 64 bytes; and, from here on, the numbers, [k / 2][32][2]. A weight is the stored number
// times both scales; one scale is 1: either the columns have scales or the blocks of the panel have them.
static inline int64_t F8NumbersAt(int64_t k) { return kPanelWidth * 4 + RoundUp(k / kQuantBlock * 4, 64); }

// Bytes of one panel.
static inline int64_t PanelBytes(DataType type, int64_t k) {
  if (type == DataType::kF8E4M3) return F8NumbersAt(k) + k * kPanelWidth;
  if (IsQuantized(type)) return kPanelWidth * MatrixRowBytes(type, k);
  return (type == DataType::kBF16 ? RoundUp(k, 2) : k) * kPanelWidth * ElementBytes(type);
}

// One KV head of one block is the scales (kI8 only), K, V. Scales: f32 of K [block], then of V [block], each
// padded to 16 tokens, so that vectors are read whole. bf16: K [head_dim / 2][block][2], V [block /
// 2][head_dim][2]: pairs feed the dot-product instruction. Other types: K [head_dim][block], V
// [block][head_dim]. V's rows are padded to 16 dims.
static inline int64_t PaddedHeadDim(int64_t head_dim) { return RoundUp(head_dim, 16); }
static inline int64_t KBytes(DataType type, int64_t block_size, int64_t head_dim) {
  return (type == DataType::kBF16 ? RoundUp(head_dim, 2) : head_dim) * block_size * ElementBytes(type);
}
static inline int64_t VBytes(DataType type, int64_t block_size, int64_t head_dim) {
  return (type == DataType::kBF16 ? RoundUp(block_size, 2) : block_size) * PaddedHeadDim(head_dim) *
         ElementBytes(type);
}
// The bytes of K's scales, and of V's.
static inline int64_t ScaleBytes(DataType type, int64_t block_size) {
  return type == DataType::kI8 ? RoundUp(block_size, 16) * 4 : 0;
}
static inline int64_t KvHeadBytes(DataType type, int64_t block_size, int64_t head_dim) {
  return RoundUp(2 * ScaleBytes(type, block_size) + KBytes(type, block_size, head_dim) +
                     VBytes(type, block_size, head_dim),
                 64);
}

// One KV head of one block of a latent cache: [block][head_dim], rows padded to 16 dims, of any type that
// activations have.
static inline int64_t LatentHeadBytes(DataType type, int64_t block_size, int64_t head_dim) {
  return RoundUp(block_size * PaddedHeadDim(head_dim) * ElementBytes(type), 64);
}
static inline int64_t HeadBytesOf(const KvCacheView& cache) {
  return (cache.latent ? LatentHeadBytes : KvHeadBytes)(cache.dtype, cache.block_size, cache.head_dim);
}

// An f8e4m3 is read by putting the bits at their places in an f16, which has a different exponent bias: the
// result is a 256th of the value.
inline constexpr float kF8Unit = 256;

// Attention works on query rows (token, head) in groups of at most this many, and on chunks of a context of
// kDefaultChunkTokens tokens, on AMX's tiles of kMaxChunkTokens.
inline constexpr int64_t kAttentionRows = 64;
inline constexpr int64_t kDefaultChunkTokens = 64;
inline constexpr int64_t kMaxChunkTokens = 128;
// The bytes of a chunk's keys, or of its values, with at most four bytes for each.
static inline int64_t ExpandedBytes(int64_t head_dim) {
  return kDefaultChunkTokens * PaddedHeadDim(head_dim) * 4;
}

// Each section of this many tokens of a context, whole blocks, is added up from nothing, so that threads may
// share a long context. Fixed: results depend on it.
static inline int64_t SectionTokens(int64_t block_size) {
  return block_size >= 512 ? block_size : 512 / block_size * block_size;
}
// The sums of one section: weighted values, and the maximum and the sum of weights, of each row.
static inline int64_t PartialBytes(int64_t rows, int64_t head_dim) {
  return RoundUp(rows * (PaddedHeadDim(head_dim) + 2) * 4, 64);
}

// The first position that a query at `position` attends.
static inline int64_t FirstToken(int64_t position, int64_t window) {
  return window > 0 && position >= window ? position - window + 1 : 0;
}

static inline int64_t AttentionScratchBytes(int64_t head_dim) {
  const int64_t dims = PaddedHeadDim(head_dim);
  const int64_t acc = 2 * kAttentionRows * dims * 4;
  const int64_t q = kAttentionRows * dims * 4;
  const int64_t scores = kAttentionRows * kMaxChunkTokens * 4;
  const int64_t rows = kAttentionRows * 6 * 8;
  return RoundUp(acc + q + 2 * scores + rows + 11 * 64 + 2 * ExpandedBytes(head_dim), 64);
}

}  // namespace somnus::cpu
