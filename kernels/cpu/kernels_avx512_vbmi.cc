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
#include "kernels/cpu/latent_attention_impl.h"
#include "kernels/cpu/attention_sections_impl.h"
#include "kernels/cpu/byte_pairs_impl.h"
// clang-format on

namespace somnus::cpu {
namespace avx512_vbmi {
namespace {

template <typename Bytes>
using PairAttention = Bf16ByteAttention<ExpandedAttention<AsBf16Pairs<Bytes>>, typename Bytes::Stored>;

const AttentionKernels& PairAttentionFor(const KvCacheView& cache) {
  const bool serves = ServesPairs(cache);
  if (serves && cache.dtype == DataType::kF8E4M3) return PairAttention<BytesF8>::kKernels;
  if (serves && cache.dtype == DataType::kI8) return PairAttention<BytesI8>::kKernels;
  return AttentionFor(cache);
}

}  // namespace
}  // namespace avx512_vbmi

constinit const KernelTable kAvx512VbmiParts = [] {
  KernelTable parts{};
  parts.attention_for = avx512_vbmi::PairAttentionFor;
  return parts;
}();

}  // namespace somnus::cpu
