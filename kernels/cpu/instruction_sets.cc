#include "kernels/cpu/instruction_sets.h"

#if defined(__aarch64__)
#include <sys/auxv.h>
#else
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace somnus::cpu {
namespace {

KernelTable Named(const char* name, KernelTable table) {
  table.name = name;
  return table;
}

// `table` with the members that `parts` has.
KernelTable WithParts(KernelTable table, const KernelTable& parts) {
  for (int type = 0; type < kNumDataTypes; ++type) {
    if (parts.linear[type] != nullptr) table.linear[type] = parts.linear[type];
  }
  if (parts.linear_f8_bf16 != nullptr) table.linear_f8_bf16 = parts.linear_f8_bf16;
  if (parts.special_attention != nullptr) table.special_attention = parts.special_attention;
  if (parts.quantize_row != nullptr) {
    table.quantize_row = parts.quantize_row;
    table.quantized_bytes = parts.quantized_bytes;
  }
  if (parts.max_tile_rows != 0) {
    table.max_tile_rows = parts.max_tile_rows;
    table.row_block_bytes = parts.row_block_bytes;
    table.reads_odd_lines = parts.reads_odd_lines;
  }
  return table;
}

#if defined(__aarch64__)

KernelTable Expanding(KernelTable table) {
  table.expands = true;
  return table;
}

bool HasDotProducts() {
  constexpr unsigned long kDotProducts = 1ul << 20;  // HWCAP_ASIMDDP
  return (getauxval(AT_HWCAP) & kDotProducts) != 0;
}

bool HasBf16() {
  constexpr unsigned long kBf16 = 1ul << 14;  // HWCAP2_BF16
  return HasDotProducts() && (getauxval(AT_HWCAP2) & kBf16) != 0;
}

const KernelTable& Neon() {
  static const KernelTable table = Expanding(Named("neon", kNeonKernels));
  return table;
}

const KernelTable& NeonDotprod() {
  static const KernelTable table = Named("neon_dotprod", WithParts(Neon(), kNeonDotprodParts));
  return table;
}

const KernelTable& NeonBf16() {
  static const KernelTable table = Expanding(Named("neon_bf16", kNeonBf16Kernels));
  return table;
}

#else

bool HasAvx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
}

bool HasAvxVnni() { return HasAvx2() && __builtin_cpu_supports("avxvnni"); }

bool HasAvx512() {
  return HasAvx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}

bool HasAvx512Vnni() { return HasAvx512() && __builtin_cpu_supports("avx512vnni"); }

bool HasAvx512Bf16() { return HasAvx512Vnni() && __builtin_cpu_supports("avx512bf16"); }

bool HasAmx() {
  return HasAvx512Bf16() && __builtin_cpu_supports("amx-tile") && __builtin_cpu_supports("amx-bf16") &&
         __builtin_cpu_supports("amx-int8");
}

// Linux gives tiles to a process on request, and refuses where the process's alternate signal stack is too
// small to save the tiles.
bool RequestTiles() {
  constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr long kTileData = 18;               // XFEATURE_XTILEDATA
  static const bool granted = syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  return granted;
}

// Whether vdpbf16ps multiplies faster than f32 multiply-adds: on Intel's since Sapphire Rapids vdpbf16ps has
// half the rate (docs/measured).
bool HasFastProducts() { return !__builtin_cpu_is("intel") || __builtin_cpu_is("cooperlake"); }

// On Zen 3 and 4 expanding makes many rows slower, as conversions do not use the ports of multiply-adds, and
// prefetches make a few rows slower (docs/measured). AMD's further cores are assumed to be alike.
KernelTable Tuned(KernelTable table) {
  const bool amd = __builtin_cpu_is("amd");
  table.expands = !amd;
  table.reads_ahead = amd;
  return table;
}

const KernelTable& Portable() {
  static const KernelTable table = Tuned(Named("portable", kPortableKernels));
  return table;
}

const KernelTable& Avx2() {
  static const KernelTable table = Tuned(Named("avx2", kAvx2Kernels));
  return table;
}

const KernelTable& AvxVnni() {
  static const KernelTable table = Named("avx_vnni", WithParts(Avx2(), kAvxVnniParts));
  return table;
}

const KernelTable& Avx512() {
  static const KernelTable table = Tuned(Named("avx512", kAvx512Kernels));
  return table;
}

const KernelTable& Avx512Vnni() {
  static const KernelTable table = Named("avx512_vnni", WithParts(Avx512(), kAvx512VnniParts));
  return table;
}

// With vdpbf16ps, even where vdpbf16ps is slower than f32: Amx() uses these kernels for all products that do
// not run on tiles.
const KernelTable& Avx512Bf16Products() {
  static const KernelTable table = [] {
    const KernelTable products = Tuned(Named("avx512_bf16", kAvx512Bf16Kernels));
    return __builtin_cpu_supports("avx512vbmi") ? WithParts(products, kAvx512VbmiParts) : products;
  }();
  return table;
}

// Where products are slow, the kernels of avx512_vnni under the name of this set.
const KernelTable& Avx512Bf16() {
  if (HasFastProducts()) return Avx512Bf16Products();
  static const KernelTable table = Named("avx512_bf16", Avx512Vnni());
  return table;
}

const KernelTable& Amx() {
  static const KernelTable table = Named("amx", WithParts(Avx512Bf16Products(), kAmxParts));
  return table;
}

#endif

}  // namespace

const KernelTable* KernelsOf(CpuIsa isa) {
  switch (isa) {
#if defined(__aarch64__)
    case CpuIsa::kNeon:
      return &Neon();
    case CpuIsa::kNeonDotprod:
      return HasDotProducts() ? &NeonDotprod() : nullptr;
    case CpuIsa::kNeonBf16:
      return HasBf16() ? &NeonBf16() : nullptr;
#else
    case CpuIsa::kPortable:
      return &Portable();
    case CpuIsa::kAvx2:
      return HasAvx2() ? &Avx2() : nullptr;
    case CpuIsa::kAvxVnni:
      return HasAvxVnni() ? &AvxVnni() : nullptr;
    case CpuIsa::kAvx512:
      return HasAvx512() ? &Avx512() : nullptr;
    case CpuIsa::kAvx512Vnni:
      return HasAvx512Vnni() ? &Avx512Vnni() : nullptr;
    case CpuIsa::kAvx512Bf16:
      return HasAvx512Bf16() ? &Avx512Bf16() : nullptr;
    case CpuIsa::kAmx:
      return HasAmx() && RequestTiles() ? &Amx() : nullptr;
#endif
    default:
      return nullptr;
  }
}

bool AmxIsRefused() {
#if defined(__aarch64__)
  return false;
#else
  return HasAmx() && !RequestTiles();
#endif
}

}  // namespace somnus::cpu
