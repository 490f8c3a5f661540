// Random weights. Part of kernels_*.cc, behind sampling_impl.h.

namespace somnus::cpu::SOMNUS_ISA {
namespace {

// data[begin..end): element i is the word of counter i as a signed fraction, times scale.
void FillRandom(char* data, DataType type, int64_t begin, int64_t end, uint64_t seed, float scale) {
  WithElement(type, [&](auto e) {
    using E = decltype(e);
    auto* const out = reinterpret_cast<typename E::Type*>(data);
    for (int64_t i = begin; i < end; i += kW) {
      // All lanes share the upper half of the counter, except where a multiple of 2^32 lies between lanes.
      const uint64_t first = static_cast<uint64_t>(i);
      const VU low = static_cast<uint32_t>(first) + (VU)Lanes();
      const VU high = static_cast<uint32_t>(first >> 32) - (VU)(low < static_cast<uint32_t>(first));
      const VI word = (VI)RandomBits(low, high, seed);
      const VF value = __builtin_convertvector(word, VF) * kSignedWordUnit * scale;
      if (end - i >= kW) {
        E::PutExact(out + i, value);
      } else {
        typename E::Type part[kW];
        E::PutExact(part, value);
        __builtin_memcpy(out + i, part, static_cast<size_t>(end - i) * sizeof(part[0]));
      }
    }
  });
}

}  // namespace
}  // namespace somnus::cpu::SOMNUS_ISA
