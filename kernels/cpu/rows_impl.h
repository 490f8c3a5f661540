// Norms, activations and the rotary embedding with the cache write: one row at a time. Part of kernels_*.cc.

namespace somnus::cpu::SOMNUS_ISA {
namespace {

void Add(float* residual, const float* delta, int64_t n) {
  for (int64_t i = 0; i < n; i += kW) {
    Put<F32>(residual + i, Get<F32>(residual + i, n - i) + Get<F32>(delta + i, n - i), n - i);
  }
}

// residual += delta; returns sum(residual), *squares the sum of its squares. Two fixed chains per lane.
inline float AddAndSum(float* residual, const float* delta, int64_t n, float* squares) {
  VF sum = {}, square = {};
  for (int64_t i = 0; i < n; i += kW) {
    VF v = Get<F32>(residual + i, n - i);
    if (delta != nullptr) {
      v += Get<F32>(delta + i, n - i);
      Put<F32>(residual + i, v, n - i);
    }
    sum += v;
    square = Fma(v, v, square);
  }
  *squares = ReduceAdd(square);
  return ReduceAdd(sum);
}

inline float SumSquaredDifferences(const float* x, int64_t n, float mean) {
  VF square = {};
  for (int64_t i = 0; i < n; i += kW) {
    VF d = n - i >= kW ? Load(x + i) - mean : LoadPart(x + i, n - i, mean) - mean;
    square = Fma(d, d, square);
  }
  return ReduceAdd(square);
}

// x += delta (or nothing: nullptr); out = x / rms(x) * weight. `out` may be x. Both RMSNorms, of a row and of
// a head, are made by this function.
template <typename E>
inline void RmsNormRow(float* x, const float* delta, const float* weight, int64_t n, float eps,
                       typename E::Type* out) {
  float squares;
  AddAndSum(x, delta, n, &squares);
  const float scale = 1.0f / __builtin_sqrtf(squares / static_cast<float>(n) + eps);
  for (int64_t i = 0; i < n; i += kW) {
    Put<E>(out + i, Get<F32>(x + i, n - i) * scale * Get<F32>(weight + i, n - i), n - i);
  }
}

float SumSquares(const float* x, int64_t n) {
  VF square = {};
  for (int64_t i = 0; i < n; i += kW) {
    const VF v = Get<F32>(x + i, n - i);
    square = Fma(v, v, square);
  }
  return ReduceAdd(square);
}

void ScaleBy(float* x, int64_t n, float scale, const float* weight) {
  for (int64_t i = 0; i < n; i += kW) {
    Put<F32>(x + i, Get<F32>(x + i, n - i) * scale * Get<F32>(weight + i, n - i), n - i);
  }
}

float Dot(const char* x, const char* w, DataType type, int64_t n) {
  VF sum = {};
  WithElement(type, [&](auto e) {
    using E = decltype(e);
    const auto* a = reinterpret_cast<const typename E::Type*>(x);
    const auto* b = reinterpret_cast<const typename E::Type*>(w);
    for (int64_t i = 0; i < n; i += kW) sum = Fma(Get<E>(a + i, n - i), Get<E>(b + i, n - i), sum);
  });
  return ReduceAdd(sum);
}

void AddScaled(float* y, float factor, const char* w, DataType type, int64_t n) {
  WithElement(type, [&](auto e) {
    using E = decltype(e);
    const auto* p = reinterpret_cast<const typename E::Type*>(w);
    for (int64_t i = 0; i < n; i += kW)
      Put<F32>(y + i, Fma(Set(factor), Get<E>(p + i, n - i), Get<F32>(y + i, n - i)), n - i);
  });
}

void RmsNorm(const NormArgs& args, int64_t row_begin, int64_t row_end) {
  WithElement(args.out_type, [&](auto e) {
    using E = decltype(e);
    for (int64_t r = row_begin; r < row_end; ++r) {
      RmsNormRow<E>(args.residual + r * args.residual_stride,
                    args.delta == nullptr ? nullptr : args.delta + r * args.delta_stride, args.weight,
                    args.cols, args.eps, reinterpret_cast<typename E::Type*>(args.out) + r * args.out_stride);
    }
  });
}

void LayerNorm(const NormArgs& args, int64_t row_begin, int64_t row_end) {
  const int64_t n = args.cols;
  for (int64_t r = row_begin; r < row_end; ++r) {
    float* x = args.residual + r * args.residual_stride;
    float squares;
    const float sum =
        AddAndSum(x, args.delta == nullptr ? nullptr : args.delta + r * args.delta_stride, n, &squares);
    const float mean = sum / static_cast<float>(n);
    const float variance = SumSquaredDifferences(x, n, mean) / static_cast<float>(n);
    const float scale = 1.0f / __builtin_sqrtf(variance + args.eps);
    WithElement(args.out_type, [&](auto e) {
      using E = decltype(e);
      auto* out = reinterpret_cast<typename E::Type*>(args.out) + r * args.out_stride;
      for (int64_t i = 0; i < n; i += kW) {
        const VF w = Get<F32>(args.weight + i, n - i);
        const VF b = args.bias == nullptr ? VF{} : Get<F32>(args.bias + i, n - i);
        Put<E>(out + i, Fma((Get<F32>(x + i, n - i) - mean) * scale, w, b), n - i);
      }
    });
  }
}

SOMNUS_INLINE VF Sigmoid(VF x) { return 1.0f / (1.0f + Exp(-x)); }

// tanh(u) = 2 sigmoid(2u) - 1, exact to some 1e-7 of a softcap.
void ScaleAndCap(float* x, int64_t n, float factor, float softcap) {
  for (int64_t i = 0; i < n; i += kW) {
    VF v = factor * Get<F32>(x + i, n - i);
    if (softcap > 0.0f) v = softcap * (2.0f * Sigmoid(2.0f / softcap * v) - 1.0f);
    Put<F32>(x + i, v, n - i);
  }
}

template <typename F>
SOMNUS_INLINE void GateRows(const ActivationArgs& args, int64_t row_begin, int64_t row_end, const F& f) {
  const int64_t n = args.cols;
  for (int64_t r = row_begin; r < row_end; ++r) {
    const float* gate = args.x + r * args.x_stride;
    WithElement(args.out_type, [&](auto e) {
      using E = decltype(e);
      auto* out = reinterpret_cast<typename E::Type*>(args.out) + r * args.out_stride;
      for (int64_t i = 0; i < n; i += kW) {
        Put<E>(out + i, f(Get<F32>(gate + i, n - i), Get<F32>(gate + n + i, n - i)), n - i);
      }
    });
  }
}

void SiluAndMul(const ActivationArgs& args, int64_t row_begin, int64_t row_end) {
  GateRows(args, row_begin, row_end, [](VF gate, VF up) { return gate * Sigmoid(gate) * up; });
}

SOMNUS_INLINE VF Gelu(VF x) {
  for (int i = 0; i < kW; ++i) x[i] = 0.5f * x[i] * (1.0f + __builtin_erff(x[i] * 0.70710678f));
  return x;
}

// 0.5 x (1 + tanh(u)) = x * sigmoid(2u).
SOMNUS_INLINE VF GeluTanh(VF x) {
  const VF u = 0.79788456f * Fma(x * x * x, Set(0.044715f), x);
  return x * Sigmoid(2.0f * u);
}

void GeluTanhAndMul(const ActivationArgs& args, int64_t row_begin, int64_t row_end) {
  GateRows(args, row_begin, row_end, [](VF gate, VF up) { return GeluTanh(gate) * up; });
}

// NaN stays NaN.
void ClampedSwigluAndMul(const ActivationArgs& args, const ClampedSwiglu& unit, int64_t row_begin,
                         int64_t row_end) {
  const VF alpha = Set(unit.alpha), most = Set(unit.limit), least = -most;
  GateRows(args, row_begin, row_end, [&](VF gate, VF up) {
    gate = gate > most ? most : gate;
    up = up > most ? most : up;
    up = up < least ? least : up;
    return (up + 1.0f) * (gate * Sigmoid(alpha * gate));
  });
}

template <typename F>
SOMNUS_INLINE void ActivateRows(const ActivationArgs& args, int64_t row_begin, int64_t row_end, const F& f) {
  const int64_t n = args.cols;
  for (int64_t r = row_begin; r < row_end; ++r) {
    const float* x = args.x + r * args.x_stride;
    WithElement(args.out_type, [&](auto e) {
      using E = decltype(e);
      auto* out = reinterpret_cast<typename E::Type*>(args.out) + r * args.out_stride;
      for (int64_t i = 0; i < n; i += kW) Put<E>(out + i, f(Get<F32>(x + i, n - i)), n - i);
    });
  }
}

void Activate(const ActivationArgs& args, UnaryActivation f, int64_t row_begin, int64_t row_end) {
  switch (f) {
    case UnaryActivation::kIdentity:
      return ActivateRows(args, row_begin, row_end, [](VF x) { return x; });
    case UnaryActivation::kRelu:
      return ActivateRows(args, row_begin, row_end, [](VF x) { return x < 0.0f ? VF{} : x; });
    case UnaryActivation::kGelu:
      return ActivateRows(args, row_begin, row_end, [](VF x) { return Gelu(x); });
    case UnaryActivation::kGeluTanh:
      return ActivateRows(args, row_begin, row_end, [](VF x) { return GeluTanh(x); });
  }
}

// ---- QK-norm, rotary embedding, cache write

// (a, b) -> (a cos - b sin, b cos + a sin), a the head's first half, b its second.
inline void Rotate(float* x, const float* cos, const float* sin, int64_t half) {
  for (int64_t i = 0; i < half; i += kW) {
    const int64_t n = half - i;
    const VF a = Get<F32>(x + i, n), b = Get<F32>(x + half + i, n);
    const VF c = Get<F32>(cos + i, n), s = Get<F32>(sin + i, n);
    Put<F32>(x + i, Fma(a, c, -(b * s)), n);
    Put<F32>(x + half + i, Fma(b, c, a * s), n);
  }
}

// Stores a head's scale in an int8 cache, and returns the factor of the head's values: 127 / the largest
// magnitude.
inline float PutI8Scale(float* to, const float* x, int64_t n) {
  VU top = {};
  for (int64_t i = 0; i < n; i += kW) {
    const VU magnitude = (VU)Get<F32>(x + i, n - i) & 0x7fffffffu;  // as integers: NaN is the largest
    top = (VI)magnitude > (VI)top ? magnitude : top;
  }
  const uint32_t bits = ReduceMaxBits(top);
  float largest;
  __builtin_memcpy(&largest, &bits, 4);
  if (bits >= 0x7f800000u) {
    *to = __builtin_nanf("");
    return 0;
  }
  *to = largest < kLeastI8Magnitude ? 0 : largest / 127;
  return largest < kLeastI8Magnitude ? 0 : 127 / largest;
}

// Converts `n` values to elements of a cache of E; `inverse` is used for types of 8 bits alone.
template <typename E>
SOMNUS_INLINE void PutCached(typename E::Type (&part)[kW], const float* x, int64_t n, float inverse) {
  if constexpr (sizeof(typename E::Type) == 1) {
    E::Put(part, Get<F32>(x, n) * inverse);
  } else {
    E::Put(part, Get<F32>(x, n));
  }
}

template <typename E>
inline void WriteK(typename E::Type* out, const float* k, int64_t head_dim, int64_t block_size,
                   int64_t offset, float inverse) {
  constexpr int64_t kPair = E::kType == DataType::kBF16 ? 2 : 1;
  for (int64_t d = 0; d < head_dim; d += kW) {
    typename E::Type part[kW];
    PutCached<E>(part, k + d, head_dim - d, inverse);
    const int64_t count = Min(head_dim - d, kW);
    for (int64_t j = 0; j < count; ++j)
      out[((d + j) / kPair * block_size + offset) * kPair + (d + j) % kPair] = part[j];
  }
  if (head_dim % kPair != 0) out[(head_dim / kPair * block_size + offset) * kPair + 1] = 0;
}

template <typename E>
inline void WriteV(typename E::Type* out, const float* v, int64_t head_dim, int64_t offset, float inverse) {
  constexpr int64_t kPair = E::kType == DataType::kBF16 ? 2 : 1;
  typename E::Type* row = out + offset / kPair * PaddedHeadDim(head_dim) * kPair + offset % kPair;
  for (int64_t d = 0; d < head_dim; d += kW) {
    typename E::Type part[kW];
    PutCached<E>(part, v + d, head_dim - d, inverse);
    const int64_t count = Min(head_dim - d, kW);
    for (int64_t j = 0; j < count; ++j) row[(d + j) * kPair] = part[j];
  }
}

template <typename E>
void WriteCache(const QkArgs& args, int32_t slot, const float* k, const float* v) {
  using Type = typename E::Type;
  const KvCacheView& cache = args.cache;
  const int64_t d = cache.head_dim;
  const int64_t head_bytes = KvHeadBytes(E::kType, cache.block_size, d), offset = slot % cache.block_size;
  const int64_t scale_bytes = ScaleBytes(E::kType, cache.block_size);
  float k_inverse = 1.0f / cache.k_scale, v_inverse = 1.0f / cache.v_scale;
  char* block = static_cast<char*>(cache.data) + slot / cache.block_size * cache.num_kv_heads * head_bytes;
  for (int64_t h = 0; h < cache.num_kv_heads; ++h) {
    char* const head = block + h * head_bytes;
    if constexpr (E::kType == DataType::kI8) {
      k_inverse = PutI8Scale(reinterpret_cast<float*>(head) + offset, k + h * d, d);
      v_inverse = PutI8Scale(reinterpret_cast<float*>(head + scale_bytes) + offset, v + h * d, d);
    }
    char* const data = head + 2 * scale_bytes;
    WriteK<E>(reinterpret_cast<Type*>(data), k + h * d, d, cache.block_size, offset, k_inverse);
    WriteV<E>(reinterpret_cast<Type*>(data + KBytes(E::kType, cache.block_size, d)), v + h * d, d, offset,
              v_inverse);
  }
}

void QkNormRopeCache(const QkArgs& args, int64_t row_begin, int64_t row_end) {
  const int64_t d = args.cache.head_dim;
  const int64_t num_kv_heads = args.cache.num_kv_heads;
  for (int64_t t = row_begin; t < row_end; ++t) {
    float* q = args.qkv + t * args.qkv_stride;
    float* k = q + args.num_heads * d;
    for (int64_t h = 0; h < args.num_heads + num_kv_heads; ++h) {
      const float* norm = h < args.num_heads ? args.q_norm : args.k_norm;
      if (norm != nullptr) RmsNormRow<F32>(q + h * d, nullptr, norm, d, args.eps, q + h * d);
      if (args.cos != nullptr) {
        const int64_t row = args.positions[t] * (d / 2);
        Rotate(q + h * d, args.cos + row, args.sin + row, d / 2);
      }
    }
    if (args.q_scale != nullptr) ScaleAndCap(q, args.num_heads * d, args.q_scale[args.positions[t]], 0.0f);
    const auto write = [&](auto e) { WriteCache<decltype(e)>(args, args.slots[t], k, k + num_kv_heads * d); };
    if (args.cache.dtype == DataType::kF8E4M3) {
      write(F8{});
    } else if (args.cache.dtype == DataType::kI8) {
      write(I8{});
    } else {
      WithElement(args.cache.dtype, write);
    }
  }
}

}  // namespace
}  // namespace somnus::cpu::SOMNUS_ISA
