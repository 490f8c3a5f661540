#pragma once
// How ops divide the lent scratch. Each op uses it from its start; nothing in it outlives the op.

#include <cstdint>

#include "kernels/cpu/kernel_table.h"

namespace somnus::cpu {

// Linear: rows of x that had to be converted. Quantized ones take less.
static inline int64_t LinearRowBytes(int64_t k) { return RoundUp(k * 4, 64) + kSlackBytes; }

// Attention: the heads in order of their KV head, and where each KV head's begin; then one scratch per
// thread.
static inline int64_t AttentionHeadBytes(int64_t num_heads) { return RoundUp((2 * num_heads + 1) * 4, 64); }

// Sampling: a histogram, then values and ids of candidates, per thread.
inline constexpr int64_t kHistogramBuckets = 2048;
static inline int64_t SamplingBytes(int64_t vocab_size) {
  return kHistogramBuckets * 8 + RoundUp(vocab_size * 4, 64) + RoundUp(vocab_size * 8, 64);
}

}  // namespace somnus::cpu
