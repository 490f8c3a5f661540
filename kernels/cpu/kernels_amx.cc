// Kernels for CPUs with AMX (Sapphire Rapids and later): those of AVX-512 with BF16, but for attention and
// the products of bf16 weights, and of fp8 weights with bf16, which tiles compute.

#include <sys/syscall.h>
#include <unistd.h>

#define SOMNUS_ISA amx
// The parts build on each other in this order.
// clang-format off
#include "kernels/cpu/simd.h"
#include "kernels/cpu/float8_simd.h"
#include "kernels/cpu/tile_impl.h"
#include "kernels/cpu/attention_impl.h"
#include "kernels/cpu/expanded_attention_impl.h"
#include "kernels/cpu/attention_sections_impl.h"
#include "kernels/cpu/amx_tiles.h"
#include "kernels/cpu/amx_linear_impl.h"
#include "kernels/cpu/float8_weights_impl.h"
#include "kernels/cpu/amx_float8_impl.h"
#include "kernels/cpu/amx_stored_pairs_impl.h"
#include "kernels/cpu/amx_attention_impl.h"
// clang-format on

namespace somnus::cpu {
namespace {

// Linux gives tiles to a process that asks for them, and refuses where the stack of a signal handler is too
// small for what it would have to save.
bool RequestTiles() {
  constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr long kTileData = 18;               // XFEATURE_XTILEDATA
  static const bool granted = syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  return granted;
}

bool HasAmx() {
  return Avx512Bf16ProductKernels() != nullptr && __builtin_cpu_supports("amx-tile") &&
         __builtin_cpu_supports("amx-bf16") && __builtin_cpu_supports("amx-int8");
}

}  // namespace

const KernelTable* AmxKernels() {
  if (!HasAmx() || !RequestTiles()) return nullptr;
  static const KernelTable table = [] {
    KernelTable t = *Avx512Bf16ProductKernels();
    t.name = "amx";
    t.linear[static_cast<int>(DataType::kBF16)] = amx::TileLinearRange;
    t.linear_f8_bf16 = amx::TileF8Range;
    t.attention_for = amx::TileAttentionFor;
    t.max_tile_rows = 2 * amx::kTileRows;
    t.row_block_bytes = 768 << 10;
    t.reads_odd_lines = true;
    return t;
  }();
  return &table;
}

bool AmxIsRefused() { return HasAmx() && !RequestTiles(); }

}  // namespace somnus::cpu
