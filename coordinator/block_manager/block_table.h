#pragma once
// The block table of a sequence: which blocks of the device hold the keys and values of the sequence's
// tokens. Values, which the block manager and its parts share; each block in a table is referenced once by
// that table. The null block stands for a block that the sequence has given back, as no later query attends
// its tokens (BlockManagerOptions::attention_reach).

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "base/check.h"
#include "base/null_block.h"
#include "coordinator/block_manager/block_manager_options.h"
#include "coordinator/block_manager/block_ops.h"
#include "coordinator/block_manager/block_pool.h"
#include "coordinator/block_manager/host_prefix_cache.h"

namespace somnus {

inline bool IsNull(const KvBlock& block) { return block.id == kNullBlock; }

struct BlockTable {
  std::vector<KvBlock*> blocks;
  int32_t num_given_back = 0;  // leading blocks that were given back; there may be more
  std::string salt;
  int32_t num_committed = 0;     // leading blocks that were given to BlockPool::Remember
  std::vector<uint64_t> hashes;  // of the leading full blocks, num_committed at least
  // The id of the block known for the last committed content; 0 though num_committed > 0: the chain is
  // broken.
  uint64_t last_content_id = 0;
  // While the table begins: the contents behind `blocks` that the host tier has. num_committed counts both.
  std::vector<const HostPrefixCache::Entry*> on_host;

  bool is_broken() const { return num_committed > 0 && last_content_id == 0; }
  int32_t num_blocks() const { return static_cast<int32_t>(blocks.size()); }
};

// The index of the block with the first token that the query at `position` attends.
inline int32_t FirstSeenBlock(const BlockManagerOptions& options, int64_t position) {
  const int64_t first = position + 1 - options.attention_reach;
  return options.attention_reach == 0 || first < 0 ? 0 : static_cast<int32_t>(first / options.block_size);
}

// How many blocks a table of a sequence of `num_tokens` tokens has before its next step, the blocks that were
// given back included: those of all tokens, or, where blocks are given back on the way, as many as the step
// may need.
inline int32_t TableSize(const BlockManagerOptions& options, int64_t num_tokens, int32_t num_given_back) {
  const int32_t all = BlocksFor(num_tokens, options.block_size);
  if (options.attention_reach == 0 || options.max_step_tokens == 0) return all;
  const int64_t at_once = WindowBlocks(options.attention_reach, options.max_step_tokens, options.block_size);
  return static_cast<int32_t>(std::min<int64_t>(all, num_given_back + at_once));
}

// Gives back the blocks before block `end`. Returns how many the table had.
inline int32_t GiveBackBefore(int32_t end, BlockPool* pool, BlockTable* table) {
  int32_t count = 0;
  for (; table->num_given_back < end; ++table->num_given_back) {
    KvBlock*& block = table->blocks[table->num_given_back];
    if (IsNull(*block)) continue;
    pool->Release(std::exchange(block, pool->null_block()));
    ++count;
  }
  return count;
}

using BlockTables = absl::flat_hash_map<int64_t, BlockTable>;  // by sequence

// The table of a sequence, which must have one.
inline BlockTable& TableOf(int64_t sequence, BlockTables* tables) {
  const auto found = tables->find(sequence);
  SOMNUS_CHECK(found != tables->end());
  return found->second;
}
inline const BlockTable& TableOf(int64_t sequence, const BlockTables& tables) {
  const auto found = tables.find(sequence);
  SOMNUS_CHECK(found != tables.end());
  return found->second;
}

// The leading tokens of a sequence, which has a table, whose keys and values are in the cache.
struct ComputedTokens {
  int64_t sequence;
  int64_t num_tokens;
};

}  // namespace somnus
