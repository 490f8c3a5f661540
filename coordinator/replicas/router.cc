#include "coordinator/replicas/router.h"

#include <algorithm>
#include <tuple>

#include "base/check.h"
#include "coordinator/block_manager/block_pool.h"

namespace somnus {

PrefixChain MakePrefixChain(absl::Span<const int32_t> prompt, const std::string& cache_salt,
                            int32_t block_size) {
  const auto size = static_cast<size_t>(block_size);
  PrefixChain chain;
  uint64_t parent = 0;
  for (size_t begin = 0; begin + size < prompt.size() && chain.size() < kMaxChain; begin += size) {
    parent = HashBlock(parent, prompt.subspan(begin, size), begin == 0 ? cache_salt : "");
    chain.push_back(parent);
  }
  return chain;
}

int64_t Router::CountKnown(const PrefixChain& chain, int replica) const {
  int64_t count = 0;
  for (const uint64_t hash : chain) {
    const auto it = blocks_.find(hash);
    if (it == blocks_.end() || (it->second->replicas >> replica & 1) == 0) break;
    ++count;
  }
  return count;
}

int Router::Choose(const PrefixChain& chain, const std::vector<Candidate>& candidates) {
  SOMNUS_CHECK(!candidates.empty());
  const Candidate *affine = nullptr, *least = nullptr;
  int64_t longest = 0;
  for (const Candidate& candidate : candidates) {
    const auto key = [this](const Candidate& one) {
      return std::make_tuple(one.load, last_choice_[one.replica], one.replica);
    };
    if (least == nullptr || key(candidate) < key(*least)) least = &candidate;
    const int64_t known = CountKnown(chain, candidate.replica);
    if (affine == nullptr || known > longest || (known == longest && key(candidate) < key(*affine))) {
      affine = &candidate;
      longest = known;
    }
  }
  const double bearable = static_cast<double>(least->load) * (1 + kSlackShare) +
                          static_cast<double>(kLoadPerCachedToken * longest * block_size_);
  const bool near = longest > 0 && static_cast<double>(affine->load) <= bearable;
  const int chosen = (near ? affine : least)->replica;
  last_choice_[chosen] = ++num_choices_;
  return chosen;
}

void Router::Note(const PrefixChain& chain, int replica) {
  // From the end, so that the first block, without which the others are of no use, is the latest.
  const size_t count = std::min(chain.size(), static_cast<size_t>(max_blocks_));
  for (size_t i = count; i-- > 0;) {
    const uint64_t bit = uint64_t{1} << replica;
    const auto it = blocks_.find(chain[i]);
    if (it != blocks_.end()) {
      it->second->replicas |= bit;
      recency_.splice(recency_.begin(), recency_, it->second);
      continue;
    }
    recency_.push_front({chain[i], bit});
    blocks_.emplace(chain[i], recency_.begin());
  }
  while (blocks_.size() > static_cast<size_t>(max_blocks_)) {
    blocks_.erase(recency_.back().hash);
    recency_.pop_back();
  }
}

void Router::Forget(int replica) {
  const uint64_t bit = uint64_t{1} << replica;
  for (auto it = recency_.begin(); it != recency_.end();) {
    it->replicas &= ~bit;
    if (it->replicas != 0) {
      ++it;
      continue;
    }
    blocks_.erase(it->hash);
    it = recency_.erase(it);
  }
}

}  // namespace somnus
