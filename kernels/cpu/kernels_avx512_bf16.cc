// Kernels for CPUs with AVX-512, its BF16 and its 8-bit dot products (Zen 4, Cooper Lake, Sapphire Rapids and
// later).

#define SOMNUS_ISA avx512_bf16
#include "kernels/cpu/kernels_impl.h"

namespace somnus::cpu {

namespace {

// Whether vdpbf16ps multiplies faster than f32 multiply-adds: on Intel's since Sapphire Rapids it has half
// their rate (docs/benchmarks.md).
bool HasFastProducts() { return !__builtin_cpu_is("intel") || __builtin_cpu_is("cooperlake"); }

// What avx512_vnni computes, under the name of this set.
KernelTable WithoutProducts() {
  KernelTable table = *Avx512VnniKernels();
  table.name = "avx512_bf16";
  return table;
}

}  // namespace

const KernelTable* Avx512Bf16ProductKernels() {
  static const KernelTable kTable = [] {
    KernelTable table = avx512_bf16::MakeTable("avx512_bf16");
    SetBytePairs(table);
    return table;
  }();
  return Avx512VnniKernels() != nullptr && __builtin_cpu_supports("avx512bf16") ? &kTable : nullptr;
}

const KernelTable* Avx512Bf16Kernels() {
  const KernelTable* const products = Avx512Bf16ProductKernels();
  if (products == nullptr || HasFastProducts()) return products;
  static const KernelTable kWithout = WithoutProducts();
  return &kWithout;
}

}  // namespace somnus::cpu
