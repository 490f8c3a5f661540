// Kernels for CPUs with AVX-512 BF16 that also permute bytes (VBMI: Zen 4, Sapphire Rapids and later): the
// kernels of AVX-512 BF16, except attention over bytes, which become pairs of bf16.

#define SOMNUS_ISA avx512_vbmi
// The parts build on each other in this order.
// clang-format off
#include "kernels/cpu/simd.h"
#include "kernels/cpu/float8_simd.h"
#include "kernels/cpu/tile_impl.h"
#include "kernels/cpu/attention_impl.h"
#include "kernels/cpu/expanded_attention_impl.h"
#include "kernels/cpu/attention_sections_impl.h"
#include "kernels/cpu/byte_pairs_impl.h"
// clang-format on

namespace somnus::cpu {
namespace avx512_vbmi {
namespace {

// q and weights are rounded to bf16.
const AttentionKernels* PairAttentionFor(const KvCacheView& cache, DataType activations) {
  if (!ServesPairs(cache) || activations != DataType::kBF16) return nullptr;
  if (cache.dtype == DataType::kF8E4M3)
    return &AttentionOf<ExpandedAttention<AsBf16Pairs<BytesF8>>>::kKernels;
  return cache.dtype == DataType::kI8 ? &AttentionOf<ExpandedAttention<AsBf16Pairs<BytesI8>>>::kKernels
                                      : nullptr;
}

}  // namespace
}  // namespace avx512_vbmi

constinit const KernelTable kAvx512VbmiParts = [] {
  KernelTable parts{};
  parts.special_attention = avx512_vbmi::PairAttentionFor;
  return parts;
}();

}  // namespace somnus::cpu
