#pragma once
// Chooses the replica for a prompt: prefix affinity against load.
//
// The rule. The affine replica is known to have computed the longest prefix of the prompt, in whole blocks;
// of equals the least loaded replica counts. That replica is chosen unless it is clearly more loaded than the
// least loaded replica: by more than kLoadPerCachedToken tokens for each token of that prefix, and by more
// than kSlackShare of the least load beside. Then, and where no prefix is known, the least loaded replica is
// chosen; of equals the replica that was chosen longest ago. Load is in tokens, so that both sides of the
// comparison are what somebody would have to compute or attend to: a prefix that another replica does not
// have costs its tokens once more there, and takes blocks there for as long as both keep it. A replica
// without room is never chosen, however much it has cached: a prompt that waits is worse than a prompt that
// is computed again.
//
// The memory. By block of a prompt (its hash chain, salted as the prefix cache's, block_manager/block_pool.h)
// the replicas that computed it last. The memory is an estimate: blocks that a replica's cache has evicted
// since are not known, so the memory is bounded to about the size of the caches, and blocks that no prompt
// had for longest are forgotten first.
//
// A value; not thread safe.

#include <cstdint>
#include <list>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/types/span.h"

namespace somnus {

// The hashes of a prompt's whole blocks, each with all that comes before it.
using PrefixChain = std::vector<uint64_t>;
// Of at most kMaxChain blocks: a longer prefix is told apart by its beginning. The last token of a prompt is
// always computed, so its block is never adopted, and not in the chain.
inline constexpr size_t kMaxChain = 4096;
PrefixChain MakePrefixChain(absl::Span<const int32_t> prompt, const std::string& cache_salt,
                            int32_t block_size);

class Router {
 public:
  static constexpr int64_t kLoadPerCachedToken = 4;
  static constexpr double kSlackShare = 0.5;
  static constexpr int kMaxReplicas = 64;

  struct Candidate {
    int replica = 0;
    int64_t load = 0;  // tokens that wait or run there
  };

  // `max_blocks`: how many blocks are remembered, 0 for none.
  Router(int32_t block_size, int64_t max_blocks) : block_size_(block_size), max_blocks_(max_blocks) {}

  // The replica of one of `candidates`, the replicas with room, of which there is at least one.
  int Choose(const PrefixChain& chain, const std::vector<Candidate>& candidates);
  // `replica` computes that prompt. To be called after each choice.
  void Note(const PrefixChain& chain, int replica);
  // The replica's cache is empty.
  void Forget(int replica);

  // How many blocks at the front of `chain` the replica is known to have.
  int64_t CountKnown(const PrefixChain& chain, int replica) const;
  size_t num_blocks() const { return blocks_.size(); }

 private:
  struct Block {
    uint64_t hash;
    uint64_t replicas;  // a bit for each
  };

  const int32_t block_size_;
  const int64_t max_blocks_;
  std::list<Block> recency_;  // the latest first
  absl::flat_hash_map<uint64_t, std::list<Block>::iterator> blocks_;
  std::vector<int64_t> last_choice_ = std::vector<int64_t>(kMaxReplicas, 0);
  int64_t num_choices_ = 0;
};

}  // namespace somnus
