#include "tools/probe/machine_peak.h"

#include <algorithm>
#include <array>
#include <barrier>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/cpus.h"

namespace somnus {
namespace {

constexpr long kIterations = 400000;     // of 12 to 16 independent chains
constexpr long kTileIterations = 40000;  // of 4 independent instructions
constexpr int kRounds = 8;

// A loop over registers, and the operations of one call.
struct Loop {
  void (*run)();
  double operations;
};
// The loops of the instructions that an instruction set's kernels may use.
struct SetOfLoops {
  absl::string_view isa;
  Loop f32, bf16, int8;
};

// Registers are named, so that nothing is spilled.
#if defined(__aarch64__)

#define SOMNUS_VECTORS                                                                                     \
  "v16", "v17", "v18", "v19", "v20", "v21", "v22", "v23", "v24", "v25", "v26", "v27", "v28", "v29", "v30", \
      "v31"

void FmaLoop() {
  for (long i = 0; i < kIterations; ++i) {
    asm volatile(
        ".irp r,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31\n fmla v\\r\\().4s, v0.4s, v1.4s\n .endr\n" ::
            : SOMNUS_VECTORS);
  }
}
__attribute__((target("arch=armv8.2-a+bf16"))) void MatrixProductLoop() {
  for (long i = 0; i < kIterations; ++i) {
    asm volatile(
        ".irp r,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31\n bfmmla v\\r\\().4s, v0.8h, v1.8h\n "
        ".endr\n" ::
            : SOMNUS_VECTORS);
  }
}
__attribute__((target("arch=armv8.2-a+dotprod"))) void DotBytesLoop() {
  for (long i = 0; i < kIterations; ++i) {
    asm volatile(
        ".irp r,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31\n sdot v\\r\\().4s, v0.16b, v1.16b\n "
        ".endr\n" ::
            : SOMNUS_VECTORS);
  }
}
// Eight products in 16 bits, which are added in pairs to sums of 32 bits.
void WidenBytesLoop() {
  for (long i = 0; i < kIterations; ++i) {
    asm volatile(
        ".irp r,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31\n smull v2.8h, v0.8b, v1.8b\n"
        " sadalp v\\r\\().4s, v2.8h\n .endr\n" ::
            : "v2", SOMNUS_VECTORS);
  }
}

constexpr Loop kFma = {FmaLoop, 16.0 * 8 * kIterations};
constexpr Loop kMatrixProducts = {MatrixProductLoop, 16.0 * 32 * kIterations};
constexpr Loop kDotBytes = {DotBytesLoop, 16.0 * 32 * kIterations};
constexpr Loop kWidenBytes = {WidenBytesLoop, 16.0 * 16 * kIterations};
constexpr SetOfLoops kSets[] = {{"neon", kFma, kFma, kWidenBytes},
                                {"neon_dotprod", kFma, kFma, kDotBytes},
                                {"neon_bf16", kFma, kMatrixProducts, kDotBytes}};

#else

#define SOMNUS_VECTORS                                                                                \
  "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", \
      "xmm14", "xmm15"
#define SOMNUS_REPEAT(registers, instructions) ".irp r," registers "\n " instructions "\n .endr\n"
// zmm16 to zmm31 are unknown to code compiled for plain x86-64 and need not be declared as changed.
#define SOMNUS_WIDE "16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31"

void SseLoop() {
  for (long i = 0; i < kIterations; ++i) {
    asm volatile(SOMNUS_REPEAT("4,5,6,7,8,9,10,11,12,13,14,15",
                               "movaps %%xmm0, %%xmm2\n mulps %%xmm1, %%xmm2\n addps %%xmm2, %%xmm\\r")::
                     : SOMNUS_VECTORS);
  }
}
void SseWordsLoop() {
  for (long i = 0; i < kIterations; ++i) {
    asm volatile(SOMNUS_REPEAT("4,5,6,7,8,9,10,11,12,13,14,15",
                               "movdqa %%xmm0, %%xmm2\n pmaddwd %%xmm1, %%xmm2\n paddd %%xmm2, %%xmm\\r")::
                     : SOMNUS_VECTORS);
  }
}
void FmaLoop() {
  for (long i = 0; i < kIterations; ++i) {
    asm volatile(SOMNUS_REPEAT("4,5,6,7,8,9,10,11,12,13,14,15", "vfmadd231ps %%ymm0, %%ymm1, %%ymm\\r")::
                     : SOMNUS_VECTORS);
  }
  asm volatile("vzeroupper");
}
// Sums of 16 bits, as in the kernels, which widen a few sums at a time.
void PairBytesLoop() {
  for (long i = 0; i < kIterations; ++i) {
    asm volatile(SOMNUS_REPEAT("4,5,6,7,8,9,10,11,12,13,14,15",
                               "vpmaddubsw %%ymm0, %%ymm1, %%ymm2\n vpaddw %%ymm2, %%ymm\\r, %%ymm\\r")::
                     : SOMNUS_VECTORS);
  }
  asm volatile("vzeroupper");
}
void DotBytesLoop() {
  for (long i = 0; i < kIterations; ++i) {
    asm volatile(SOMNUS_REPEAT("4,5,6,7,8,9,10,11,12,13,14,15", "%{vex%} vpdpbusd %%ymm0, %%ymm1, %%ymm\\r")::
                     : SOMNUS_VECTORS);
  }
  asm volatile("vzeroupper");
}
void WideFmaLoop() {
  for (long i = 0; i < kIterations; ++i)
    asm volatile(SOMNUS_REPEAT(SOMNUS_WIDE, "vfmadd231ps %%zmm0, %%zmm1, %%zmm\\r")::);
}
void WidePairBytesLoop() {
  for (long i = 0; i < kIterations; ++i) {
    asm volatile(SOMNUS_REPEAT("16,17,18,19,20,21,22,23,24,25,26,27",
                               "vpmaddubsw %%zmm0, %%zmm1, %%zmm31\n vpaddw %%zmm31, %%zmm\\r, %%zmm\\r")::);
  }
}
void WideDotBytesLoop() {
  for (long i = 0; i < kIterations; ++i)
    asm volatile(SOMNUS_REPEAT(SOMNUS_WIDE, "vpdpbusd %%zmm0, %%zmm1, %%zmm\\r")::);
}
void WideDotBf16Loop() {
  for (long i = 0; i < kIterations; ++i)
    asm volatile(SOMNUS_REPEAT(SOMNUS_WIDE, "vdpbf16ps %%zmm0, %%zmm1, %%zmm\\r")::);
}

// Tiles 0 to 3 hold sums, 4 to 7 the factors: numbers other than zero, which lower the clock.
void LoadTiles() {
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
}
#define SOMNUS_TILE_PRODUCTS(instruction)                                                       \
  instruction " %%tmm6, %%tmm4, %%tmm0\n " instruction " %%tmm7, %%tmm4, %%tmm1\n " instruction \
              " %%tmm6, %%tmm5, %%tmm2\n " instruction " %%tmm7, %%tmm5, %%tmm3\n"
void TileBf16Loop() {
  LoadTiles();
  for (long i = 0; i < kTileIterations; ++i) asm volatile(SOMNUS_TILE_PRODUCTS("tdpbf16ps")::);
  asm volatile("tilerelease");
}
void TileBytesLoop() {
  LoadTiles();
  for (long i = 0; i < kTileIterations; ++i) asm volatile(SOMNUS_TILE_PRODUCTS("tdpbssd")::);
  asm volatile("tilerelease");
}

constexpr Loop kSse = {SseLoop, 12.0 * 8 * kIterations};
constexpr Loop kSseWords = {SseWordsLoop, 12.0 * 16 * kIterations};
constexpr Loop kFma = {FmaLoop, 12.0 * 16 * kIterations};
constexpr Loop kPairBytes = {PairBytesLoop, 12.0 * 64 * kIterations};
constexpr Loop kDotBytes = {DotBytesLoop, 12.0 * 64 * kIterations};
constexpr Loop kWideFma = {WideFmaLoop, 16.0 * 32 * kIterations};
constexpr Loop kWidePairBytes = {WidePairBytesLoop, 12.0 * 128 * kIterations};
constexpr Loop kWideDotBytes = {WideDotBytesLoop, 16.0 * 128 * kIterations};
constexpr Loop kWideDotBf16 = {WideDotBf16Loop, 16.0 * 64 * kIterations};
constexpr Loop kTileBf16 = {TileBf16Loop, 4.0 * 2 * 16 * 16 * 32 * kTileIterations};
constexpr Loop kTileBytes = {TileBytesLoop, 4.0 * 2 * 16 * 16 * 64 * kTileIterations};
constexpr SetOfLoops kSets[] = {{"portable", kSse, kSse, kSseWords},
                                {"avx2", kFma, kFma, kPairBytes},
                                {"avx_vnni", kFma, kFma, kDotBytes},
                                {"avx512", kWideFma, kWideFma, kWidePairBytes},
                                {"avx512_vnni", kWideFma, kWideFma, kWideDotBytes},
                                {"avx512_bf16", kWideFma, kWideDotBf16, kWideDotBytes},
                                {"amx", kWideFma, kTileBf16, kTileBytes}};

#endif

// The best of a few rounds, in 1e9 operations a second. A round ends when the last thread has done its share,
// which is `speed` loops; where the speeds are true all threads compute for the same time.
double Rate(const Loop& loop, const std::vector<ProbeThread>& probe) {
  std::barrier sync(static_cast<ptrdiff_t>(probe.size()));
  std::vector<std::array<double, kRounds>> seconds(probe.size());
  std::vector<std::thread> threads;
  for (size_t t = 0; t < probe.size(); ++t) {
    threads.emplace_back([&, t] {
      PinThisThread({probe[t].cpu});
      for (int round = 0; round < kRounds; ++round) {
        sync.arrive_and_wait();
        const auto start = std::chrono::steady_clock::now();
        loop.run();
        seconds[t][round] = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  double best = 0;
  for (int round = 0; round < kRounds; ++round) {
    double loops = 0, slowest = 0;
    for (size_t t = 0; t < probe.size(); ++t) {
      loops += probe[t].speed;
      slowest = std::max(slowest, probe[t].speed * seconds[t][round]);
    }
    best = std::max(best, loop.operations * loops / slowest / 1e9);
  }
  return best;
}

}  // namespace

MachinePeaks MeasurePeaks(absl::string_view isa, const std::vector<ProbeThread>& threads) {
  if (threads.empty()) return {};
  for (const SetOfLoops& set : kSets) {
    if (set.isa != isa) continue;
    MachinePeaks peaks{.f32_gflops = Rate(set.f32, threads), .int8_gops = Rate(set.int8, threads)};
    peaks.bf16_gflops = peaks.f32_gflops;
    if (set.bf16.run != set.f32.run) peaks.bf16_gflops = std::max(peaks.bf16_gflops, Rate(set.bf16, threads));
    return peaks;
  }
  return {};
}

std::string ToString(const MachinePeaks& peaks) {
  return absl::StrFormat("f32 %.0f GFLOP/s, bf16 %.0f GFLOP/s, int8 %.0f GOP/s", peaks.f32_gflops,
                         peaks.bf16_gflops, peaks.int8_gops);
}

}  // namespace somnus
