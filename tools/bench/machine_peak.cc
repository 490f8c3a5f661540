#include "tools/bench/machine_peak.h"

#if defined(__aarch64__)
#include <sys/auxv.h>
#endif

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

namespace somnus {
namespace {

constexpr long kIterations = 400000;     // of 16 independent instructions
constexpr long kTileIterations = 40000;  // of 4 independent instructions
constexpr int kRounds = 8;

#if defined(__aarch64__)

// Registers are named, so that nothing is spilled.
void FmaLoop() {
  for (long i = 0; i < kIterations; ++i) {
    asm volatile(
        ".irp r,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31\n fmla v\\r\\().4s, v0.4s, v1.4s\n .endr\n" ::
            : "v16", "v17", "v18", "v19", "v20", "v21", "v22", "v23", "v24", "v25", "v26", "v27", "v28",
              "v29", "v30", "v31");
  }
}
void MatrixProductLoop() {
  for (long i = 0; i < kIterations; ++i) {
    asm volatile(
        ".arch_extension bf16\n"
        ".irp r,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31\n bfmmla v\\r\\().4s, v0.8h, v1.8h\n .endr\n"
        ".arch_extension nobf16\n" ::
            : "v16", "v17", "v18", "v19", "v20", "v21", "v22", "v23", "v24", "v25", "v26", "v27", "v28",
              "v29", "v30", "v31");
  }
}

#else

// Registers are named, so that nothing is spilled. zmm16 to zmm31 are unknown to code compiled for plain
// x86-64 and need not be declared as changed.
void DotProductLoop() {
  for (long i = 0; i < kIterations; ++i) {
    asm volatile(
        ".irp r,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31\n vdpbf16ps %%zmm0, %%zmm1, %%zmm\\r\n "
        ".endr\n" ::);
  }
}
// Tiles 0 to 3 hold sums, 4 to 7 what is multiplied: numbers other than zero, with which the clock is lower.
void TileLoop() {
  struct alignas(64) {
    uint8_t palette = 1;
    uint8_t reserved[15] = {};
    uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
  } shapes;
  alignas(64) uint16_t values[512];
  for (uint32_t i = 0; i < 512; ++i)
    values[i] = static_cast<uint16_t>((i * 2654435761u >> 16 & 0x807f) | 0x3c00);
  asm volatile("ldtilecfg %0" ::"m"(shapes));
  asm volatile(
      ".irp t,4,5,6,7\n tileloadd (%0,%1,1), %%tmm\\t\n .endr\n"
      ".irp t,0,1,2,3\n tilezero %%tmm\\t\n .endr\n" ::"r"(values),
      "r"(int64_t{64})
      : "memory");
  for (long i = 0; i < kTileIterations; ++i) {
    asm volatile(
        "tdpbf16ps %%tmm6, %%tmm4, %%tmm0\n tdpbf16ps %%tmm7, %%tmm4, %%tmm1\n"
        "tdpbf16ps %%tmm6, %%tmm5, %%tmm2\n tdpbf16ps %%tmm7, %%tmm5, %%tmm3\n" ::);
  }
  asm volatile("tilerelease");
}
void WideFmaLoop() {
  for (long i = 0; i < kIterations; ++i) {
    asm volatile(
        ".irp r,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31\n vfmadd231ps %%zmm0, %%zmm1, %%zmm\\r\n "
        ".endr\n" ::);
  }
}
void FmaLoop() {
  for (long i = 0; i < kIterations; ++i) {
    asm volatile(
        ".irp r,2,3,4,5,6,7,8,9,10,11,12,13,14,15\n vfmadd231ps %%ymm0, %%ymm1, %%ymm\\r\n .endr\n" ::
            : "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12",
              "xmm13", "xmm14", "xmm15");
  }
  asm volatile("vzeroupper");
}

#endif

// The best of a few rounds; a round is as slow as its slowest thread.
double Gflops(void (*loop)(), double flops_per_loop, int num_threads) {
  std::barrier sync(num_threads);
  std::vector<double> seconds(static_cast<size_t>(num_threads) * kRounds);
  std::vector<std::thread> threads;
  for (int t = 0; t < num_threads; ++t) {
    threads.emplace_back([&, t] {
      for (int round = 0; round < kRounds; ++round) {
        sync.arrive_and_wait();
        const auto start = std::chrono::steady_clock::now();
        loop();
        seconds[round * num_threads + t] =
            std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  double best = 0;
  for (int round = 0; round < kRounds; ++round) {
    const auto first = seconds.begin() + round * num_threads;
    best = std::max(best, flops_per_loop * num_threads / *std::max_element(first, first + num_threads) / 1e9);
  }
  return best;
}

}  // namespace

#if defined(__aarch64__)

double PeakBf16Gflops(int num_threads) {
  constexpr unsigned long kBf16 = 1ul << 14;  // HWCAP2_BF16
  if ((getauxval(AT_HWCAP2) & kBf16) == 0) return PeakFmaGflops(num_threads);
  return Gflops(MatrixProductLoop, 16.0 * 32 * kIterations, num_threads);
}

double PeakTileGflops(int) { return 0; }

double PeakFmaGflops(int num_threads) { return Gflops(FmaLoop, 16.0 * 8 * kIterations, num_threads); }

#else

double PeakBf16Gflops(int num_threads) {
  if (!__builtin_cpu_supports("avx512bf16")) return PeakFmaGflops(num_threads);
  return Gflops(DotProductLoop, 16.0 * 64 * kIterations, num_threads);
}

double PeakTileGflops(int num_threads) {
  return Gflops(TileLoop, 4.0 * 2 * 16 * 16 * 32 * kTileIterations, num_threads);
}

double PeakFmaGflops(int num_threads) {
  if (__builtin_cpu_supports("avx512f")) return Gflops(WideFmaLoop, 16.0 * 32 * kIterations, num_threads);
  if (__builtin_cpu_supports("fma")) return Gflops(FmaLoop, 14.0 * 16 * kIterations, num_threads);
  return 0;
}

#endif

}  // namespace somnus
