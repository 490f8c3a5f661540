#pragma once
// How many KV blocks a group of workers gets. A pure function of the ranks' measurements and the user's
// wishes.

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"

namespace somnus {

struct RankMemory {
  int64_t kv_block_bytes = 0;                   // this rank's share of one block
  int64_t available_kv_cache_memory_bytes = 0;  // that profiling left
  bool on_host = false;                         // the cache is in the memory of a host, not of a GPU
};

// A host's memory is shared with other processes, and mapping it takes time. On a host a rank's cache
// therefore gets at most this many bytes, unless a sequence of max_model_len needs more or the user asked for
// a size. A GPU's memory is used in full.
inline constexpr int64_t kHostKvSoftLimitBytes = 512 << 20;

struct KvPlanRequest {
  int32_t block_size = 16;
  int32_t max_num_seqs = 128;
  int32_t max_model_len = 2048;
  bool max_model_len_is_fixed = false;  // the user asked for it: an error rather than a shorter context
  int64_t kv_cache_memory_bytes = 0;    // of each rank, as the user asked for it; 0: what profiling found
  // Where every layer has a window, as in BlockManagerOptions: a sequence has no more blocks at once than
  // WindowBlocks says, however long the sequence is. A reach of 0: blocks of all tokens.
  int64_t attention_reach = 0;
  int32_t max_step_tokens = 512;
};

struct KvPlan {
  int32_t num_blocks = 0;       // counts the null block (base/null_block.h)
  int32_t num_host_blocks = 0;  // of the host tier; 0: there is none
  int32_t max_model_len = 0;
  int64_t kv_block_bytes = 0;  // of one block, over all ranks
};

// The longest sequence, of max_model_len tokens at most, that a cache of `num_blocks` blocks (with the null
// block) can serve.
int32_t LongestSequence(int64_t num_blocks, const KvPlanRequest& request);

// num_blocks is the minimum over the ranks, and at most as many blocks as max_num_seqs sequences of
// max_model_len can use. At least one sequence of max_model_len can be served: where such a sequence does not
// fit, a max_model_len that the user did not ask for is reduced; else ResourceExhausted says how much is
// missing.
absl::StatusOr<KvPlan> PlanKvCache(const std::vector<RankMemory>& ranks, const KvPlanRequest& request);

// How many blocks of the host tier fit into `bytes` of host memory on every rank, but no more than `most`.
// `kv_block_bytes` is by rank; a rank with 0 is not known yet and does not count.
int32_t PlanHostBlocks(const std::vector<int64_t>& kv_block_bytes, int64_t bytes, int64_t most);

// The bytes of a block, over all ranks. A rank with 0 is not known yet and counts as the largest rank.
int64_t SumBlockBytes(const std::vector<int64_t>& kv_block_bytes);

}  // namespace somnus
