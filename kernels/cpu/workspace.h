#pragma once
// How ops divide the lent scratch. Each op uses the scratch from the start; no contents outlive the op.

#include <cstdint>

#include "kernels/cpu/kernel_table.h"

namespace somnus::cpu {

// Linear: rows of x that had to be converted. Quantized rows take less.
static inline int64_t LinearRowBytes(int64_t k) { return RoundUp(k * 4, 64) + kSlackBytes; }

// ExpertsLinear: the number of the first block of each expert's rows, then rows of x.
static inline int64_t ExpertTableBytes(int64_t experts) { return RoundUp((experts + 1) * 4, 64); }

// Attention: the heads in order of their KV head, and the begin of each KV head's heads; one scratch per
// thread; how many sections are done of each item that threads share, and the sums of such sections. Two
// neighbouring threads share at most one item; with less room than the shared items may need, fewer are
// shared.
static inline int64_t AttentionHeadBytes(int64_t num_heads) { return RoundUp((2 * num_heads + 1) * 4, 64); }
static inline int64_t AttentionCountBytes(int64_t threads) { return RoundUp(threads * 4, 64); }
inline constexpr int64_t kMaxPartialBytes = int64_t{32} << 20;
static inline int64_t AllPartialBytes(int64_t threads, const OpsLimits& limits) {
  if (limits.block_size == 0) return 0;
  const int64_t sections = limits.max_model_len / SectionTokens(limits.block_size) + 1;
  const int64_t bytes = (threads - 1) * sections * PartialBytes(kAttentionRows, limits.head_dim);
  return bytes < kMaxPartialBytes ? bytes : kMaxPartialBytes;
}

// Sampling: a histogram, then values and ids of candidates, per thread.
inline constexpr int64_t kHistogramBuckets = 2048;
static inline int64_t SamplingBytes(int64_t vocab_size) {
  return kHistogramBuckets * 8 + RoundUp(vocab_size * 4, 64) + RoundUp(vocab_size * 8, 64);
}

}  // namespace somnus::cpu
