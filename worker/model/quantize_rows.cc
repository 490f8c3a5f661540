#include "worker/model/quantize_rows.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/half_float.h"

namespace somnus {
namespace {

constexpr int kBlock = static_cast<int>(kQuantBlock);
// Four values at a time, which every x86-64 and aarch64 has vectors for, so that sums have the same order
// everywhere.
using Floats = float __attribute__((vector_size(16)));
using Ints = int32_t __attribute__((vector_size(16)));
constexpr int kLanes = 4, kVectors = kBlock / kLanes;

// Narrower ranges cut the outermost values and have finer steps for all other values.
constexpr float kRanges[] = {1.0f, 0.9f, 0.8f};

Floats All(float value) { return Floats{value, value, value, value}; }
float Sum(Floats v) { return (v[0] + v[2]) + (v[1] + v[3]); }
// Both return the bound for NaN, for numbers that are to become integers.
Floats AtMost(Floats value, Floats bound) { return value < bound ? value : bound; }
Floats AtLeast(Floats value, Floats bound) { return value > bound ? value : bound; }
Ints ToInts(Floats v) { return __builtin_convertvector(v, Ints); }
Floats ToFloats(Ints v) { return __builtin_convertvector(v, Floats); }

struct Block {
  Floats at[kVectors];
};

// `value` as half precision, written to `to`. Returns the written value.
float PutHalf(float value, uint8_t* to) {
  const uint16_t half = RoundToHalf(value);
  std::memcpy(to, &half, sizeof(half));
  return LoadHalf(to);
}

// Zero, or NaN where a value is NaN or infinite: the sum with a scale makes the block NaN. Comparisons would
// lose the NaN.
float OddOf(const Block& x) {
  Floats odd = {};
  for (const Floats& v : x.at) odd += v * 0.0f;
  return Sum(odd);
}

// The least and the largest value.
void RangeOf(const Block& x, float* low, float* high) {
  Floats least = x.at[0], most = x.at[0];
  for (const Floats& v : x.at) {
    least = AtMost(least, v);
    most = AtLeast(most, v);
  }
  *low = std::min(std::min(least[0], least[1]), std::min(least[2], least[3]));
  *high = std::max(std::max(most[0], most[1]), std::max(most[2], most[3]));
}

// Block: half d; int8 q[32].
void ToQ8_0(const Block& x, uint8_t* out) {
  float low, high;
  RangeOf(x, &low, &high);
  const float d = PutHalf(std::max(high, -low) / 127 + OddOf(x), out);
  const float inverse = d > 0 ? 1 / d : 0.0f;
  for (int i = 0; i < kVectors; ++i) {
    // Above zero, so that cutting the fraction off rounds to the nearest.
    const Floats shifted = x.at[i] * inverse + 128.5f;
    const Ints codes = ToInts(AtLeast(AtMost(shifted, All(255.5f)), All(1.5f))) - 128;
    for (int j = 0; j < kLanes; ++j) out[2 + i * kLanes + j] = static_cast<uint8_t>(codes[j]);
  }
}

// Codes of 4 bits, and the scale and minimum that fit the values best, as half precision.
struct FourBits {
  uint8_t d[2], m[2];
  Block q;
  float error;  // sum of squares
};

void FitTo(const Block& x, float d, float m, FourBits* fit) {
  const float inverse = d > 0 ? 1 / d : 0.0f;
  Floats q_parts = {}, qq_parts = {}, x_parts = {}, qx_parts = {}, error_parts = {};
  for (int i = 0; i < kVectors; ++i) {
    const Floats place = (x.at[i] - m) * inverse + 0.5f;
    const Floats q = ToFloats(ToInts(AtLeast(AtMost(place, All(15.5f)), All(0.5f))));
    fit->q.at[i] = q;
    q_parts += q;
    qq_parts += q * q;
    x_parts += x.at[i];
    qx_parts += q * x.at[i];
  }
  const float sum_q = Sum(q_parts), sum_x = Sum(x_parts);
  // Least squares of x = d * q + m. Without two different codes there is no slope to fit.
  const float spread = kBlock * Sum(qq_parts) - sum_q * sum_q;
  if (spread > 0) {
    d = (kBlock * Sum(qx_parts) - sum_q * sum_x) / spread;
    m = (sum_x - d * sum_q) / kBlock;
  }
  d = PutHalf(d, fit->d);
  m = PutHalf(m, fit->m);
  for (int i = 0; i < kVectors; ++i) {
    const Floats off = x.at[i] - (fit->q.at[i] * d + m);
    error_parts += off * off;
  }
  fit->error = Sum(error_parts);
}

// Block: half d, m; 16 bytes, low nibbles are elements 0-15, high nibbles 16-31.
void ToQ4_1(const Block& x, uint8_t* out) {
  float low, high;
  RangeOf(x, &low, &high);
  const float middle = (low + high) / 2 + OddOf(x);
  FourBits fits[2];
  int best = 0;
  for (const float range : kRanges) {
    const int other = range == kRanges[0] ? best : 1 - best;
    const float half = range * (high - low) / 2;
    FitTo(x, 2 * half / 15, middle - half, &fits[other]);
    if (fits[other].error < fits[best].error) best = other;
  }
  const FourBits& fit = fits[best];
  std::memcpy(out, fit.d, 2);
  std::memcpy(out + 2, fit.m, 2);
  for (int i = 0; i < kVectors / 2; ++i) {
    const Ints codes = ToInts(fit.q.at[i] + fit.q.at[i + kVectors / 2] * 16.0f);
    for (int j = 0; j < kLanes; ++j) out[4 + i * kLanes + j] = static_cast<uint8_t>(codes[j]);
  }
}

// The largest number of f8e4m3, and the smallest normal number.
constexpr float kMaxFloat8 = 448, kMinNormalFloat8 = 0x1p-6f;

// Numbers of f8e4m3 for values of up to kMaxFloat8, rounded to nearest even.
Ints ToFloat8(Floats value) {
  const Ints bits = (Ints)value, sign = (bits >> 24) & 0x80;
  const Floats magnitude = AtMost((Floats)(bits & 0x7fffffff), All(kMaxFloat8));
  const Ints u = (Ints)magnitude;
  // Rounds by adding half of 2^20, the unit of the last bit that stays, less 1 where that bit is 0.
  const Ints normal = ((u + 0x7ffff + ((u >> 20) & 1)) >> 20) - (120 << 3);
  // Subnormal numbers are multiples of 2^-9: the sum's last bits are the factor.
  const Ints subnormal = (Ints)(magnitude + 0x1p14f) - 0x46800000;
  return (magnitude < All(kMinNormalFloat8) ? subnormal : normal) | sign;
}

// Block: float d; f8e4m3 q[32].
void ToF8E4M3(const Block& x, float scale, uint8_t* out) {
  std::memcpy(out, &scale, sizeof(scale));
  out += sizeof(scale);
  const Floats divisor = All(scale > 0 ? scale : 1.0f);
  for (int i = 0; i < kVectors; ++i) {
    const Ints numbers = ToFloat8(x.at[i] / divisor);
    for (int j = 0; j < kLanes; ++j) out[i * kLanes + j] = static_cast<uint8_t>(numbers[j]);
  }
}

// Values from memory that need not be aligned, with zeros behind the first `count`.
Block BlockAt(const float* values, int64_t count = kBlock) {
  Block x = {};
  std::memcpy(&x, reinterpret_cast<const uint8_t*>(values), static_cast<size_t>(count) * sizeof(float));
  return x;
}

float Float8Scale(const float* row, int64_t cols) {
  float largest = 0, odd = 0;
  for (int64_t i = 0; i < cols; i += kBlock) {
    const Block x = BlockAt(row + i, std::min<int64_t>(kBlock, cols - i));
    float low, high;
    RangeOf(x, &low, &high);
    largest = std::max(largest, std::max(high, -low));
    odd += OddOf(x);
  }
  return largest / kMaxFloat8 + odd;
}

template <typename Convert>
void EachBlock(DataType type, const float* values, int64_t count, void* out, const Convert& convert) {
  const int64_t bytes = QuantBlockBytes(type);
  auto* to = static_cast<uint8_t*>(out);
  for (int64_t i = 0; i < count; i += kBlock, to += bytes) {
    const Block x = BlockAt(values + i);
    uint8_t block[sizeof(x)];
    convert(x, block);
    std::memcpy(to, block, static_cast<size_t>(bytes));
  }
}

// Writes a row, or a part of a row.
void PutFloat8(const float* values, float scale, int64_t count, void* out) {
  EachBlock(DataType::kF8E4M3, values, count, out,
            [scale](const Block& x, uint8_t* block) { ToF8E4M3(x, scale, block); });
}

}  // namespace

void QuantizeRows(DataType type, const float* values, int64_t num_rows, int64_t cols, void* out) {
  SOMNUS_CHECK(CanQuantizeTo(type) && cols % kBlock == 0);
  if (type == DataType::kQ8_0) return EachBlock(type, values, num_rows * cols, out, ToQ8_0);
  if (type == DataType::kQ4_1) return EachBlock(type, values, num_rows * cols, out, ToQ4_1);
  for (int64_t row = 0; row < num_rows; ++row)
    PutFloat8(values + row * cols, Float8Scale(values + row * cols, cols), cols,
              static_cast<uint8_t*>(out) + row * MatrixRowBytes(type, cols));
}

void QuantizeFloat8Part(const float* row, int64_t cols, int64_t begin, int64_t end, void* out) {
  SOMNUS_CHECK((end - begin) % kBlock == 0);
  PutFloat8(row + begin, Float8Scale(row, cols), end - begin, out);
}

}  // namespace somnus
