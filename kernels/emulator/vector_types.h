#pragma once
// The emulator's versions of CUDA's function attributes, vector types and math functions, for device code
// that the host compiler compiles. Nothing here depends on the rest of the emulator.
//
// No __shared__, on purpose: shared memory is dynamic (SharedStorage in kernels/cuda/launch.h). No
// __noinline__: the C++ library uses that word itself.

#include <cmath>
#include <cstdint>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __grid_constant__
#define __launch_bounds__(...)

namespace somnus::cuda_emulated {

struct uint3 {
  unsigned x, y, z;
};
struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

#define SOMNUS_VECTOR_TYPES(type, name)                            \
  struct alignas(2 * sizeof(type)) name##2 {                       \
    type x, y;                                                     \
  };                                                               \
  struct alignas(4 * sizeof(type)) name##4 {                       \
    type x, y, z, w;                                               \
  };                                                               \
  inline name##2 make_##name##2(type x, type y) { return {x, y}; } \
  inline name##4 make_##name##4(type x, type y, type z, type w) { return {x, y, z, w}; }
SOMNUS_VECTOR_TYPES(float, float)
SOMNUS_VECTOR_TYPES(int32_t, int)
SOMNUS_VECTOR_TYPES(uint32_t, uint)
#undef SOMNUS_VECTOR_TYPES

// The overloads that CUDA has: a mix of widths that is ambiguous there is so here.
#define SOMNUS_MIN_MAX(type)                                \
  inline type min(type a, type b) { return b < a ? b : a; } \
  inline type max(type a, type b) { return a < b ? b : a; }
SOMNUS_MIN_MAX(int)
SOMNUS_MIN_MAX(unsigned)
SOMNUS_MIN_MAX(long)
SOMNUS_MIN_MAX(unsigned long)
SOMNUS_MIN_MAX(long long)
SOMNUS_MIN_MAX(unsigned long long)
#undef SOMNUS_MIN_MAX
inline float min(float a, float b) { return ::fminf(a, b); }
inline float max(float a, float b) { return ::fmaxf(a, b); }
inline double min(double a, double b) { return ::fmin(a, b); }
inline double max(double a, double b) { return ::fmax(a, b); }

// Correctly rounded, where the device's is within two units of the last place.
inline float rsqrtf(float x) { return static_cast<float>(1.0 / std::sqrt(static_cast<double>(x))); }

}  // namespace somnus::cuda_emulated
