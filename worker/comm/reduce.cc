#include "worker/comm/reduce.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace somnus {
namespace {

// A block of that many floats stays in the first-level cache while the ranks' parts are added.
constexpr int64_t kBlock = 1024;

struct Bf16 {
  static float ToFloat(uint16_t bits) {
    const uint32_t wide = static_cast<uint32_t>(bits) << 16;
    float x;
    std::memcpy(&x, &wide, sizeof(x));
    return x;
  }
  static uint16_t FromFloat(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof(bits));
    const bool nan = (bits & 0x7fffffff) > 0x7f800000;
    const uint32_t rounded = bits + 0x7fff + (bits >> 16 & 1);
    return static_cast<uint16_t>(nan ? 0x7fc0 : rounded >> 16);
  }
};

struct F16 {
  static float ToFloat(uint16_t bits) {
    _Float16 x;
    std::memcpy(&x, &bits, sizeof(x));
    return static_cast<float>(x);
  }
  static uint16_t FromFloat(float value) {
    const _Float16 x = static_cast<_Float16>(value);
    uint16_t bits;
    std::memcpy(&bits, &x, sizeof(bits));
    return bits;
  }
};

void Add(const float* __restrict in, int64_t count, float* __restrict sum) {
  for (int64_t i = 0; i < count; ++i) sum[i] += in[i];
}

void SumF32(const void* const* in, int num_inputs, int64_t count, float* out) {
  const auto input = [in](int r) { return static_cast<const float*>(in[r]); };
  if (num_inputs == 2) {  // the commonest group; elementwise, so that out may alias either
    const float* a = input(0);
    const float* b = input(1);
    for (int64_t i = 0; i < count; ++i) out[i] = a[i] + b[i];
    return;
  }
  float sum[kBlock];
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int64_t size = std::min(kBlock, count - begin);
    std::memcpy(sum, input(0) + begin, size * sizeof(float));
    for (int r = 1; r < num_inputs; ++r) Add(input(r) + begin, size, sum);
    std::memcpy(out + begin, sum, size * sizeof(float));
  }
}

template <typename Format>
void SumHalf(const void* const* in, int num_inputs, int64_t count, uint16_t* out) {
  float sum[kBlock];
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int64_t size = std::min(kBlock, count - begin);
    for (int r = 0; r < num_inputs; ++r) {
      const uint16_t* from = static_cast<const uint16_t*>(in[r]) + begin;
      if (r == 0) {
        for (int64_t i = 0; i < size; ++i) sum[i] = Format::ToFloat(from[i]);
      } else {
        for (int64_t i = 0; i < size; ++i) sum[i] += Format::ToFloat(from[i]);
      }
    }
    for (int64_t i = 0; i < size; ++i) out[begin + i] = Format::FromFloat(sum[i]);
  }
}

}  // namespace

void SumInOrder(DataType type, const void* const* in, int num_inputs, int64_t count, void* out) {
  switch (type) {
    case DataType::kF32:
      return SumF32(in, num_inputs, count, static_cast<float*>(out));
    case DataType::kBF16:
      return SumHalf<Bf16>(in, num_inputs, count, static_cast<uint16_t*>(out));
    case DataType::kF16:
      return SumHalf<F16>(in, num_inputs, count, static_cast<uint16_t*>(out));
    default:
      SOMNUS_CHECK(false);  // no activation has a further type
  }
}

}  // namespace somnus
