// Activations in the form that Linear takes with quantized weights: rounded to 8 bits, a block of 32 at a
// time. Part of kernels_*.cc.
//
// A block is {f32 d, two words, the values q}; a value is d * q, q from -127 to 127. The words are the
// factors of the weights' offset or minimum: int32 -offset * sum(q), or, for types with a minimum, f32 d *
// sum(q). Where 16 weights share a scale, the first word is of the first 16 values, the second word of the
// last 16; else the first word is of all values.

namespace somnus::cpu::SOMNUS_ISA {
namespace {

// Whether DotBytes multiplies bytes and adds up groups of four in 32 bits.
#if defined(__AVX512VNNI__) || defined(__AVXVNNI__) || SOMNUS_NEON
#define SOMNUS_DOT_BYTES 1
#else
#define SOMNUS_DOT_BYTES 0
#endif

constexpr int64_t kActHeaderBytes = 12;
// SSE2 multiplies 16-bit numbers only: there the values are 16-bit numbers, in each group of four first the
// even values, then the odd values. Weights are taken apart in the same way.
#if defined(__AVX2__) || SOMNUS_NEON
constexpr int kParts = 1;
#else
constexpr int kParts = 2;
#endif
constexpr int kWords = kQuantGroups * kParts;  // 32-bit words of a block of values
constexpr int64_t kActBlockBytes = kActHeaderBytes + kWords * 4;

// AVX2 and AVX-512 alone add up such products in 16 bits, and NEON multiplies bytes with sign only: bytes
// that would be too large are taken as signed numbers there, and so without offset.
constexpr bool TakenAsSigned(DataType type) {
#if (defined(__AVX2__) && !SOMNUS_DOT_BYTES) || SOMNUS_NEON
  return LayoutOf(type).offset == 128;
#else
  return false;
#endif
}
constexpr int32_t OffsetHere(DataType type) { return TakenAsSigned(type) ? 0 : LayoutOf(type).offset; }

SOMNUS_INLINE uint32_t ReduceMaxBits(VU v) {
#if defined(__AVX512F__)
  return _mm512_reduce_max_epu32((__m512i)v);
#elif SOMNUS_NEON
  return vmaxvq_u32((uint32x4_t)v);
#else
  uint32_t best = v[0];
  for (int i = 1; i < kW; ++i) best = v[i] > best ? v[i] : best;
  return best;
#endif
}

SOMNUS_INLINE int32_t ReduceAddInts(VI v) {
#if defined(__AVX512F__)
  return _mm512_reduce_add_epi32((__m512i)v);
#elif SOMNUS_NEON
  return vaddvq_s32((int32x4_t)v);
#else
  int32_t sum = 0;
  for (int i = 0; i < kW; ++i) sum += v[i];
  return sum;
#endif
}

SOMNUS_INLINE void StoreQuantized(char* out, VI q) {
#if defined(__AVX2__)
  const VB bytes = LowBytes((VU)q);
  __builtin_memcpy(out, &bytes, kW);
#elif SOMNUS_NEON
  const int16x4_t halves = vmovn_s32((int32x4_t)q);
  const uint32_t bytes = vget_lane_u32((uint32x2_t)vmovn_s16(vcombine_s16(halves, halves)), 0);
  __builtin_memcpy(out, &bytes, kW);
#else
  const int16_t halves[] = {static_cast<int16_t>(q[0]), static_cast<int16_t>(q[2]),
                            static_cast<int16_t>(q[1]), static_cast<int16_t>(q[3])};
  __builtin_memcpy(out, halves, sizeof(halves));
#endif
}

// The word of values that add up to `sum`.
SOMNUS_INLINE void StoreWord(const QuantLayout& layout, int32_t offset, float d, int32_t sum, char* out) {
  const float minimum_times = d * static_cast<float>(sum);
  const int32_t offset_times = -offset * sum;
  if (layout.minimum) {
    __builtin_memcpy(out, &minimum_times, 4);
  } else {
    __builtin_memcpy(out, &offset_times, 4);
  }
}

template <typename E>
void QuantizeRow(const char* x, int64_t k, DataType weight, char* out) {
  constexpr int kVectors = kQuantBlock / kW;
  const QuantLayout layout = LayoutOf(weight);
  const int32_t offset = OffsetHere(weight);
  const auto* p = reinterpret_cast<const typename E::Type*>(x);
  for (int64_t b = 0; b < k; b += kQuantBlock, out += kActBlockBytes) {
    VF v[kVectors];
    VU largest = {};
#pragma GCC unroll 8
    for (int i = 0; i < kVectors; ++i) {
      v[i] = E::Get(p + b + i * kW);
      // As integers, magnitudes are in order, infinity above all numbers and NaN above infinity.
      const VU magnitude = (VU)v[i] & 0x7fffffffu;
      largest = (VU)(magnitude > largest ? (VI)magnitude : (VI)largest);
    }
    const uint32_t bits = ReduceMaxBits(largest);
    float max;
    __builtin_memcpy(&max, &bits, 4);
    // So small a block counts as zero: the inverse of its scale would overflow.
    const bool zero = max < 1e-30f;
    const float d = zero ? 0.0f : max / 127.0f, inverse = zero ? 0.0f : 127.0f / max;
    const VF shift = Set(12582912.0f);  // 1.5 * 2^23: the sum's low bits are the rounded integer
    VI sums[2] = {};
#pragma GCC unroll 8
    for (int i = 0; i < kVectors; ++i) {
      const VI q = (VI)(v[i] * inverse + shift) - 0x4b400000;
      sums[2 * i / kVectors] += q;
      StoreQuantized(out + kActHeaderBytes + i * kW * kParts, q);
    }
    __builtin_memcpy(out, &d, 4);
    if (layout.parts == 1) {
      StoreWord(layout, offset, d, ReduceAddInts(sums[0] + sums[1]), out + 4);
    } else {
      StoreWord(layout, offset, d, ReduceAddInts(sums[0]), out + 4);
      StoreWord(layout, offset, d, ReduceAddInts(sums[1]), out + 8);
    }
  }
}

void QuantizeRowAny(const char* x, DataType type, int64_t k, DataType weight, char* out) {
  WithElement(type, [&](auto e) { QuantizeRow<decltype(e)>(x, k, weight, out); });
}

}  // namespace
}  // namespace somnus::cpu::SOMNUS_ISA
