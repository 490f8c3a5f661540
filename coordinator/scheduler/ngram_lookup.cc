#include "coordinator/scheduler/ngram_lookup.h"

#include <algorithm>
#include <bit>

namespace somnus {
namespace {

constexpr size_t kMinBuckets = 64;

// How many of the tokens before `a` are those before `b`, which is later; `most` at most.
int32_t CommonSuffix(absl::Span<const int32_t> tokens, int32_t a, int32_t b, int32_t most) {
  most = std::min(most, a);
  int32_t length = 0;
  while (length < most && tokens[a - 1 - length] == tokens[b - 1 - length]) ++length;
  return length;
}

}  // namespace

size_t NgramLookup::Bucket(const int32_t* ngram) const {
  uint64_t hash = 0;
  for (int32_t i = 0; i < min_; ++i)
    hash = (hash ^ static_cast<uint64_t>(ngram[i])) * 0x9E3779B97F4A7C15ull + static_cast<uint64_t>(i);
  return static_cast<size_t>((hash ^ (hash >> 32)) & (latest_.size() - 1));
}

void NgramLookup::Propose(absl::Span<const int32_t> tokens, int32_t most, std::vector<int32_t>* draft) {
  draft->clear();
  const auto size = static_cast<int32_t>(tokens.size());
  Follow(tokens);
  IndexUpTo(tokens, size);
  if (next_ == 0) next_ = Find(tokens);
  if (next_ == 0) return;
  for (int32_t at = next_; at < next_ + most; ++at)
    draft->push_back(at < size ? tokens[at] : (*draft)[static_cast<size_t>(at - size)]);
}

void NgramLookup::Follow(absl::Span<const int32_t> tokens) {
  const auto size = static_cast<int32_t>(tokens.size());
  while (next_ > 0 && num_seen_ < size) next_ = tokens[next_] == tokens[num_seen_++] ? next_ + 1 : 0;
  num_seen_ = size;
}

void NgramLookup::IndexUpTo(absl::Span<const int32_t> tokens, int32_t end) {
  if (static_cast<size_t>(end) > latest_.size()) {
    latest_.assign(std::max(kMinBuckets, std::bit_ceil(static_cast<size_t>(end))), 0);
    num_indexed_ = 0;
  }
  num_indexed_ = std::max(num_indexed_, min_);
  if (end > num_indexed_) earlier_.resize(static_cast<size_t>(end), 0);
  for (; num_indexed_ < end; ++num_indexed_) {
    int32_t& latest = latest_[Bucket(&tokens[num_indexed_ - min_])];
    earlier_[num_indexed_] = latest;
    latest = num_indexed_;
  }
}

int32_t NgramLookup::Find(absl::Span<const int32_t> tokens) const {
  const auto size = static_cast<int32_t>(tokens.size());
  if (size <= min_) return 0;
  int32_t best = 0, longest = min_ - 1, candidate = latest_[Bucket(&tokens[size - min_])];
  for (int i = 0; i < kMaxCandidates && candidate > 0 && longest < max_; ++i) {
    const int32_t length = CommonSuffix(tokens, candidate, size, max_);
    if (length > longest) best = candidate, longest = length;
    candidate = earlier_[candidate];
  }
  return best;
}

}  // namespace somnus
