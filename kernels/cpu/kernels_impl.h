// All kernels of one instruction set, and their table. Included once by each kernels_*.cc, after SOMNUS_ISA
// is defined.

// The parts build on each other in this order.
// clang-format off
#include "kernels/cpu/simd.h"
#include "kernels/cpu/float8_simd.h"
#include "kernels/cpu/tile_impl.h"
#include "kernels/cpu/linear_expanded_impl.h"
#include "kernels/cpu/linear_impl.h"
#include "kernels/cpu/quantized_act_impl.h"
#include "kernels/cpu/quantized_weights_impl.h"
#include "kernels/cpu/quantized_impl.h"
#include "kernels/cpu/float8_weights_impl.h"
#include "kernels/cpu/float8_impl.h"
#include "kernels/cpu/rows_impl.h"
#include "kernels/cpu/latent_rows_impl.h"
#include "kernels/cpu/attention_impl.h"
#include "kernels/cpu/expanded_attention_impl.h"
#include "kernels/cpu/latent_attention_impl.h"
#include "kernels/cpu/attention_sections_impl.h"
#include "kernels/cpu/sampling_impl.h"
#include "kernels/cpu/fill_impl.h"
// clang-format on

namespace somnus::cpu::SOMNUS_ISA {
namespace {

const AttentionKernels& AttentionFor(const KvCacheView& cache) {
  if (cache.latent) return AttentionOf<LatentAttention>::kKernels;
  switch (cache.dtype) {
    case DataType::kBF16:
      return AttentionOf<Attention<TileBF16>>::kKernels;
    case DataType::kF16:
      return AttentionOf<Attention<TileF16>>::kKernels;
    case DataType::kF8E4M3:
      return ByteAttention<TileF8>::kKernels;
    case DataType::kI8:
      return ByteAttention<TileI8>::kKernels;
    default:
      return AttentionOf<Attention<TileF32>>::kKernels;
  }
}

constexpr KernelTable MakeTable() {
  KernelTable table{
      .native_bf16 = TileBF16::ActElement::kType == DataType::kBF16,
      .linear = {LinearRange<TileF32>, LinearRange<TileBF16>, LinearRange<TileF16>},
      .max_tile_rows = kMaxRows,
      .row_block_bytes = 384 << 10,
      .pack_rows = PackRowsAny,
      .unpack_row = UnpackRowAny,
      .to_float = ToFloat,
      .add = Add,
      .rms_norm = RmsNorm,
      .layer_norm = LayerNorm,
      .sum_squares = SumSquares,
      .scale_and_cap = ScaleAndCap,
      .scale_by = ScaleBy,
      .dot = Dot,
      .add_scaled = AddScaled,
      .silu_and_mul = SiluAndMul,
      .gelu_tanh_and_mul = GeluTanhAndMul,
      .clamped_swiglu_and_mul = ClampedSwigluAndMul,
      .activate = Activate,
      .qk_norm_rope_cache = QkNormRopeCache,
      .latent_rope_cache = LatentRopeCache,
      .attention_for = AttentionFor,
      .arg_max = ArgMax,
      .log_sum_exp = LogSumExp,
      .scale_logits = ScaleLogits,
      .exp_minus = ExpMinus,
      .gumbel_arg_max = GumbelArgMax,
      .fill_random = FillRandom,
  };
  SetQuantized(table);
  SetFloat8(table);
  return table;
}

}  // namespace
}  // namespace somnus::cpu::SOMNUS_ISA
