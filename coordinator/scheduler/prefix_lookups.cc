#include "coordinator/scheduler/prefix_lookups.h"

#include <algorithm>

namespace somnus {

int64_t CommonPrefix(const Sequence& a, const Sequence& b) {
  const size_t length = std::min(a.tokens.size(), b.tokens.size());
  return std::mismatch(a.tokens.begin(), a.tokens.begin() + length, b.tokens.begin()).first -
         a.tokens.begin();
}

void CountMisses(const Sequence& sequence, const BlockManagerOptions& blocks, int64_t num_found,
                 CacheMissCounts* counts) {
  const int64_t length = sequence.prompt_len();
  const int64_t missed = length - num_found;
  if (!blocks.enable_prefix_caching) return counts->Add(CacheMiss::kOff, missed);
  if (sequence.owes_prompt_logprobs()) return counts->Add(CacheMiss::kPromptLogprobs, missed);
  // The block with the last token is never looked up.
  const int64_t tail = std::min(missed, (length - 1) % blocks.block_size + 1);
  counts->Add(tail == blocks.block_size ? CacheMiss::kLastToken : CacheMiss::kPartialBlock, tail);
  counts->Add(sequence.request.cache_salt.empty() ? CacheMiss::kNotCached : CacheMiss::kSalt, missed - tail);
}

}  // namespace somnus
