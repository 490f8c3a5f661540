#include "worker/comm/reduce.h"

#include <algorithm>
#include <cstring>

namespace somnus {
namespace {

// Stays in the first-level cache while the ranks' parts are added to it.
constexpr int64_t kBlock = 1024;

void Add(const float* __restrict in, int64_t count, float* __restrict sum) {
  for (int64_t i = 0; i < count; ++i) sum[i] += in[i];
}

}  // namespace

void SumInOrder(const float* const* in, int num_inputs, int64_t count, float* out) {
  if (num_inputs == 2) {  // the commonest group; elementwise, so that out may alias either
    const float* a = in[0];
    const float* b = in[1];
    for (int64_t i = 0; i < count; ++i) out[i] = a[i] + b[i];
    return;
  }
  float sum[kBlock];
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int64_t size = std::min(kBlock, count - begin);
    std::memcpy(sum, in[0] + begin, size * sizeof(float));
    for (int r = 1; r < num_inputs; ++r) Add(in[r] + begin, size, sum);
    std::memcpy(out + begin, sum, size * sizeof(float));
  }
}

}  // namespace somnus
