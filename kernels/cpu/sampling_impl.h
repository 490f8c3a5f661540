// Reductions over rows of logits and the noise of sampling. Part of kernels_*.cc.

namespace somnus::cpu::SOMNUS_ISA {
namespace {

SOMNUS_INLINE VI Lanes() {
  VI lane;
  for (int i = 0; i < kW; ++i) lane[i] = i;
  return lane;
}

constexpr float kLowest = -__builtin_inff();

SOMNUS_INLINE bool AnyLane(VI mask) {
  bool any = false;
  for (int i = 0; i < kW; ++i) any |= mask[i] != 0;
  return any;
}

ScoredToken ArgMax(const float* x, int64_t n) {
  VF best = Set(kLowest);
  VI at = VI{} - 1;
  VI index = Lanes();
  VI nan = {};
  for (int64_t i = 0; i < n; i += kW) {
    const VF v = n - i >= kW ? Load(x + i) : LoadPart(x + i, n - i, kLowest);
    nan |= v != v;
    const VI better = v > best;
    best = (VF)(better ? (VI)v : (VI)best);
    at = better ? index : at;
    index += kW;
  }
  if (AnyLane(nan)) return {__builtin_nanf(""), -1};
  ScoredToken result{kLowest, -1};
  for (int i = 0; i < kW; ++i) {
    if (at[i] < 0) continue;
    if (result.id < 0 || best[i] > result.value || (best[i] == result.value && at[i] < result.id))
      result = {best[i], at[i]};
  }
  return result;
}

inline float RowMax(const float* x, int64_t n) {
  VF best = Set(kLowest);
  for (int64_t i = 0; i < n; i += kW)
    best = MaxV(n - i >= kW ? Load(x + i) : LoadPart(x + i, n - i, kLowest), best);
  return ReduceMax(best);
}

void LogSumExp(const float* x, int64_t n, float than, double* lse, int32_t* larger) {
  const float max = RowMax(x, n);
  VI count = {};
  double sum = 0;
  // Partial sums of 4096 values keep f32 rounding below 1e-6 for any vocabulary.
  for (int64_t begin = 0; begin < n; begin += 4096) {
    const int64_t end = Min(n, begin + 4096);
    VF part = {};
    for (int64_t i = begin; i < end; i += kW) {
      const VF v = end - i >= kW ? Load(x + i) : LoadPart(x + i, end - i, kLowest);
      part += Exp(v - max);
      count -= v > than;
    }
    for (int i = 0; i < kW; ++i) sum += part[i];
  }
  *larger = 0;
  for (int i = 0; i < kW; ++i) *larger += count[i];
  *lse = max + __builtin_log(sum);
}

float ScaleLogits(float* x, int64_t n, float temperature) {
  const float scale = 1.0f / temperature;
  VF best = Set(kLowest);
  VI nan = {};
  for (int64_t i = 0; i < n; i += kW) {
    VF v = Get<F32>(x + i, n - i);
    nan |= v != v;
    v *= scale;
    v = (VF)(v != v ? (VI)Set(kLowest) : (VI)v);
    Put<F32>(x + i, v, n - i);
    best = MaxV(n - i >= kW ? v : LoadPart(x + i, n - i, kLowest), best);
  }
  return AnyLane(nan) ? __builtin_nanf("") : ReduceMax(best);
}

void ExpMinus(const float* x, int64_t n, float max, float* out) {
  for (int64_t i = 0; i < n; i += kW) Put<F32>(out + i, Exp(Get<F32>(x + i, n - i) - max), n - i);
}

// The upper halves of products.
SOMNUS_INLINE VU MulHigh(VU a, uint32_t b) {
#if defined(__AVX512F__)
  const __m512i m = _mm512_set1_epi32(static_cast<int>(b));
  const __m512i even = _mm512_srli_epi64(_mm512_mul_epu32((__m512i)a, m), 32);
  const __m512i odd = _mm512_mul_epu32(_mm512_srli_epi64((__m512i)a, 32), m);
  return (VU)_mm512_mask_blend_epi32(0xaaaa, even, odd);
#elif SOMNUS_NEON
  const uint32x4_t x = (uint32x4_t)a, m = vdupq_n_u32(b);
  const uint64x2_t low = vmull_u32(vget_low_u32(x), vget_low_u32(m)), high = vmull_high_u32(x, m);
  return (VU)vuzp2q_u32((uint32x4_t)low, (uint32x4_t)high);
#else
  for (int i = 0; i < kW; ++i) a[i] = static_cast<uint32_t>(static_cast<uint64_t>(a[i]) * b >> 32);
  return a;
#endif
}

SOMNUS_INLINE VU RandomBits(VU low, VU high, uint64_t seed) {
  return CounterBits(low, high, seed, [](VU a, uint32_t b) { return MulHigh(a, b); });
}

// -log(-log(u)), u uniform on (0, 1). With v = 1 - u = (bits + 1/2) / 2^32 small probabilities stay precise:
// -log(1 - v) by Kahan's correction of the rounded 1 - v.
SOMNUS_INLINE VF Gumbel(VU bits) {
  VF half_up;
  for (int i = 0; i < kW; ++i) half_up[i] = static_cast<float>(bits[i]);
  const VF v = (half_up + 0.5f) * 2.3283064365386963e-10f;
  const VF u = 1.0f - v;
  // u == 0 happens when bits round up to 2^32: the noise there is the lowest there is.
  const VF safe_u = MaxV(u, Set(2.3283064365386963e-10f));
  const VF gap = 1.0f - safe_u;
  const VF e = (VF)(gap > 0.0f ? (VI)(-Log(safe_u) * (v / gap)) : (VI)v);
  return -Log(e);
}

int64_t GumbelArgMax(const float* x, const int32_t* ids, int64_t n, float at_least, uint64_t seed,
                     int32_t position) {
  VF best = Set(kLowest);
  VI at = VI{} - 1;
  VI index = Lanes();
  for (int64_t i = 0; i < n; i += kW, index += kW) {
    const VF v = n - i >= kW ? Load(x + i) : LoadPart(x + i, n - i, kLowest);
    VI wanted = v >= at_least;
    if (!AnyLane(wanted)) continue;
    VU id = (VU)index;
    if (ids != nullptr) __builtin_memcpy(&id, ids + i, static_cast<size_t>(Min(n - i, kW)) * 4);
    const VF key = v + Gumbel(RandomBits(id, SetU(static_cast<uint32_t>(position)), seed));
    const VI better = wanted & (key > best);
    best = (VF)(better ? (VI)key : (VI)best);
    at = better ? index : at;
  }
  float top = kLowest;
  int64_t result = -1;
  for (int i = 0; i < kW; ++i) {
    if (at[i] < 0) continue;
    if (result < 0 || best[i] > top || (best[i] == top && at[i] < result)) {
      top = best[i];
      result = at[i];
    }
  }
  return result;
}

}  // namespace
}  // namespace somnus::cpu::SOMNUS_ISA
