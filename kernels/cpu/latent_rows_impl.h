// The write into a latent cache, and the rotation of queries. Part of kernels_*.cc.

namespace somnus::cpu::SOMNUS_ISA {
namespace {

// As Rotate, from x to `to`; interleaved: the two of a pair are neighbours.
inline void RotatePairs(const float* x, const float* cos, const float* sin, int64_t half, bool interleaved,
                        float* to) {
  const int64_t step = interleaved ? 2 : 1, other = interleaved ? 1 : half;
  for (int64_t i = 0; i < half; ++i) {
    const float a = x[i * step], b = x[i * step + other];
    to[i * step] = a * cos[i] - b * sin[i];
    to[i * step + other] = b * cos[i] + a * sin[i];
  }
}

template <typename E>
inline void WriteLatentRow(const LatentArgs& args, int32_t slot, const float* row) {
  const KvCacheView& cache = args.cache;
  const int64_t dims = PaddedHeadDim(cache.head_dim);
  char* const block = static_cast<char*>(cache.data) + slot / cache.block_size * HeadBytesOf(cache);
  auto* const to = reinterpret_cast<typename E::Type*>(block) + slot % cache.block_size * dims;
  for (int64_t d = 0; d < cache.head_dim; d += kW)
    Put<E>(to + d, Get<F32>(row + d, cache.head_dim - d), cache.head_dim - d);
  // The padding takes part in whole vectors: a NaN there would be multiplied.
  for (int64_t d = cache.head_dim; d < dims; ++d) to[d] = 0;
}

void LatentRopeCache(const LatentArgs& args, int64_t row_begin, int64_t row_end) {
  const int64_t half = args.rope / 2, head = args.nope + args.rope, width = args.latent + args.rope;
  for (int64_t t = row_begin; t < row_end; ++t) {
    const float* const cos = args.cos + args.positions[t] * half;
    const float* const sin = args.sin + args.positions[t] * half;
    float* const row = args.row + t * args.row_stride;
    RmsNormRow<F32>(row, nullptr, args.norm, args.latent, args.eps, row);
    RotatePairs(row + args.latent, cos, sin, half, args.interleaved, row + args.latent);
    WithElement(args.cache.dtype, [&](auto e) { WriteLatentRow<decltype(e)>(args, args.slots[t], row); });
    for (int64_t h = 0; h < args.num_heads; ++h) {
      RotatePairs(args.queries + t * args.query_stride + h * head + args.nope, cos, sin, half,
                  args.interleaved, args.out + t * args.out_stride + h * width + args.latent);
    }
  }
}

}  // namespace
}  // namespace somnus::cpu::SOMNUS_ISA
