#pragma once
// Counter-based random numbers: a function of (seed, counter) alone, the same on every device, for any number
// of threads and in any order. Philox 4x32-10 (Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as
// easy as 1, 2, 3", SC'11), the first output word for the counter (low, high, 0, 0).
//
// Included by code for several instruction sets and by CUDA kernels: everything here has internal linkage.

#include <cstdint>

#ifdef __CUDACC__
#define SOMNUS_RANDOM static __host__ __device__ __forceinline__
#else
#define SOMNUS_RANDOM static inline __attribute__((always_inline))
#endif

namespace somnus {

// U: uint32_t, or a vector of them. multiply_high(a, b): the upper half of the product, b an uint32_t.
template <typename U, typename MultiplyHigh>
SOMNUS_RANDOM U CounterBits(U low, U high, uint64_t seed, const MultiplyHigh& multiply_high) {
  U c0 = low, c1 = high, c2 = {}, c3 = {};
  uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
#ifdef __CUDA_ARCH__  // the host's compiler has no such pragma
#pragma unroll
#endif
  for (int round = 0; round < 10; ++round) {
    const U high0 = multiply_high(c0, 0xD2511F53u), low0 = c0 * 0xD2511F53u;
    const U high1 = multiply_high(c2, 0xCD9E8D57u), low1 = c2 * 0xCD9E8D57u;
    c0 = high1 ^ c1 ^ k0;
    c1 = low1;
    c2 = high0 ^ c3 ^ k1;
    c3 = low0;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return c0;
}

// 2^-31: the factor that brings a signed random word into [-1, 1].
constexpr float kSignedWordUnit = 4.656612873077392578125e-10f;

}  // namespace somnus
