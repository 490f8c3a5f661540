#pragma once
// The common code of tests of ops over logits: rows of every kind on both devices.

#include <cmath>
#include <limits>
#include <vector>

#include "tests/cuda/rows_test_util.h"

namespace somnus::cuda_test {

inline const float kInf = std::numeric_limits<float>::infinity();

inline OpsLimits LogitLimits(int64_t rows, int64_t vocab) { return {.max_seqs = rows, .vocab_size = vocab}; }

// The same logits on the CPU and on the device.
struct LogitPair {
  LogitPair(int64_t rows, int64_t vocab, Layout layout = {})
      : host(DataType::kF32, rows, vocab), device(DataType::kF32, rows, vocab, layout) {}
  void Set(int64_t r, const std::vector<float>& values) {
    for (int64_t c = 0; c < host.cols(); ++c) host.Set(r, c, values[c]);
    device.SetRow(r, values);
  }
  kernel_test::Matrix host;
  DeviceMatrix device;
};

// Logits of proper models, and logits that models should not give but might.
inline std::vector<std::vector<float>> KindsOfLogits(int64_t n, uint32_t seed) {
  const auto normal = [&](uint32_t more, float scale) {
    return kernel_test::RandomFloats(n, seed + more, scale);
  };
  std::vector<std::vector<float>> kinds = {normal(0, 2.5f),
                                           normal(1, 0.01f),
                                           normal(2, 20),
                                           normal(3, 3),
                                           std::vector<float>(n, 1.5f),
                                           normal(4, 2),
                                           normal(5, 2),
                                           std::vector<float>(n, -kInf),
                                           std::vector<float>(n, NAN),
                                           normal(6, 1e6f)};
  for (float& x : kinds[3]) x = std::floor(x);  // many ties
  for (int64_t i = 0; i < n; ++i) {
    if (i % 3 != 1) kinds[5][i] = -kInf;
    if (i % 5 == 0) kinds[6][i] = i % 2 ? NAN : -kInf;
    if (i % 7 == 3) kinds[9][i] = i % 2 ? 0.0f : -0.0f;
  }
  kinds[7][n - 1] = n > 1 ? 2.0f : -kInf;  // a single allowed token
  return kinds;
}

}  // namespace somnus::cuda_test
