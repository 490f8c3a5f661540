#include "worker/runner/self_check.h"

#include <algorithm>
#include <cstring>

namespace somnus {

std::vector<int32_t> SelfCheckPrompt(const BatchLimits& limits) {
  constexpr int32_t kMaxTokens = 16;
  // Far apart from each other, so that several ranks' parts of the embedding are read.
  constexpr int64_t kTokenStride = 7919;
  const int32_t length =
      std::min({kMaxTokens, limits.block_size, limits.max_num_batched_tokens, limits.max_model_len});
  std::vector<int32_t> token_ids;
  for (int64_t i = 1; i <= length; ++i)
    token_ids.push_back(static_cast<int32_t>(i * kTokenStride % limits.vocab_size));
  return token_ids;
}

// FNV-1a over words of 32 bits.
uint64_t FingerprintOf(absl::Span<const float> values) {
  constexpr uint64_t kOffset = 14695981039346656037u, kPrime = 1099511628211u;
  uint64_t hash = kOffset;
  for (const float value : values) {
    uint32_t bits = 0;
    std::memcpy(&bits, &value, sizeof(bits));
    hash = (hash ^ bits) * kPrime;
  }
  return hash;
}

}  // namespace somnus
