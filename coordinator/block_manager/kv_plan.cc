#include "coordinator/block_manager/kv_plan.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "base/null_block.h"
#include "coordinator/block_manager/block_manager_options.h"

namespace somnus {
namespace {

// How many bytes a rank's cache may take, of which a sequence of max_model_len needs `blocks_at_once` blocks.
int64_t RankBytes(const RankMemory& rank, const KvPlanRequest& request, int64_t blocks_at_once) {
  if (request.kv_cache_memory_bytes > 0) return request.kv_cache_memory_bytes;
  const int64_t available = std::max<int64_t>(0, rank.available_kv_cache_memory_bytes);
  if (!rank.on_host) return available;
  return std::min(available,
                  std::max(kHostKvSoftLimitBytes, NumBlocks(blocks_at_once) * rank.kv_block_bytes));
}

// How many blocks a sequence of max_model_len has at once.
int64_t BlocksAtOnce(const KvPlanRequest& request) {
  const int64_t all = (int64_t{request.max_model_len} + request.block_size - 1) / request.block_size;
  if (request.attention_reach == 0) return all;
  return std::min(all, WindowBlocks(request.attention_reach, request.max_step_tokens, request.block_size));
}

}  // namespace

int32_t LongestSequence(int64_t num_blocks, const KvPlanRequest& request) {
  const int64_t total = TotalBlocks(num_blocks);
  if (total >= BlocksAtOnce(request)) return request.max_model_len;
  return static_cast<int32_t>(total * request.block_size);
}

absl::StatusOr<KvPlan> PlanKvCache(const std::vector<RankMemory>& ranks, const KvPlanRequest& request) {
  int64_t num_blocks = std::numeric_limits<int32_t>::max();
  int64_t tightest_block_bytes = 0;
  const int64_t per_sequence = (request.max_model_len + request.block_size - 1) / request.block_size;
  const int64_t at_once = BlocksAtOnce(request);
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    if (ranks[rank].kv_block_bytes <= 0) {
      return absl::InternalError(
          absl::StrCat("rank ", rank, " reports KV blocks of ", ranks[rank].kv_block_bytes, " bytes"));
    }
    const int64_t block_bytes = ranks[rank].kv_block_bytes;
    const int64_t fits = RankBytes(ranks[rank], request, at_once) / block_bytes;
    if (fits < num_blocks || tightest_block_bytes == 0) tightest_block_bytes = block_bytes;
    num_blocks = std::min(num_blocks, fits);
  }
  num_blocks = std::min(num_blocks, NumBlocks(per_sequence * request.max_num_seqs));
  KvPlan plan;
  plan.max_model_len = LongestSequence(num_blocks, request);
  plan.num_blocks = static_cast<int32_t>(num_blocks);
  if (plan.max_model_len == request.max_model_len) return plan;

  const int64_t needed = NumBlocks(at_once) * tightest_block_bytes;
  const bool hopeless = TotalBlocks(num_blocks) < 1;
  if (request.max_model_len_is_fixed || hopeless) {
    return absl::ResourceExhaustedError(
        absl::StrCat("one sequence of max_model_len ", request.max_model_len, " needs ", needed,
                     " bytes of KV cache on each rank, there are ", num_blocks * tightest_block_bytes,
                     "; give more with --kv-cache-memory-bytes or lower --max-model-len"));
  }
  return plan;
}

int32_t PlanHostBlocks(const std::vector<int64_t>& kv_block_bytes, int64_t bytes, int64_t most) {
  int64_t blocks = most;
  for (const int64_t block_bytes : kv_block_bytes) {
    if (block_bytes > 0) blocks = std::min(blocks, bytes / block_bytes);
  }
  return static_cast<int32_t>(blocks);
}

int64_t SumBlockBytes(const std::vector<int64_t>& kv_block_bytes) {
  int64_t sum = 0, largest = 0;
  for (const int64_t bytes : kv_block_bytes) largest = std::max(largest, bytes);
  for (const int64_t bytes : kv_block_bytes) sum += bytes > 0 ? bytes : largest;
  return sum;
}

}  // namespace somnus
