#include "coordinator/block_manager/kv_plan.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "base/null_block.h"

namespace somnus {
namespace {

// How many bytes a rank's cache may take.
int64_t RankBytes(const RankMemory& rank, const KvPlanRequest& request, int64_t blocks_per_sequence) {
  if (request.kv_cache_memory_bytes > 0) return request.kv_cache_memory_bytes;
  const int64_t available = std::max<int64_t>(0, rank.available_kv_cache_memory_bytes);
  if (!rank.on_host) return available;
  return std::min(available,
                  std::max(kHostKvSoftLimitBytes, NumBlocks(blocks_per_sequence) * rank.kv_block_bytes));
}

}  // namespace

absl::StatusOr<KvPlan> PlanKvCache(const std::vector<RankMemory>& ranks, const KvPlanRequest& request) {
  int64_t num_blocks = std::numeric_limits<int32_t>::max();
  int64_t tightest_block_bytes = 0;
  const int64_t per_sequence = (request.max_model_len + request.block_size - 1) / request.block_size;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    if (ranks[rank].kv_block_bytes <= 0) {
      return absl::InternalError(
          absl::StrCat("rank ", rank, " reports KV blocks of ", ranks[rank].kv_block_bytes, " bytes"));
    }
    const int64_t block_bytes = ranks[rank].kv_block_bytes;
    const int64_t fits = RankBytes(ranks[rank], request, per_sequence) / block_bytes;
    if (fits < num_blocks || tightest_block_bytes == 0) tightest_block_bytes = block_bytes;
    num_blocks = std::min(num_blocks, fits);
  }
  num_blocks = std::min(num_blocks, NumBlocks(per_sequence * request.max_num_seqs));
  KvPlan plan;
  plan.max_model_len = request.max_model_len;
  plan.num_blocks = static_cast<int32_t>(num_blocks);
  if (TotalBlocks(num_blocks) >= per_sequence) return plan;

  const int64_t needed = NumBlocks(per_sequence) * tightest_block_bytes;
  const bool hopeless = TotalBlocks(num_blocks) < 1;
  if (request.max_model_len_is_fixed || hopeless) {
    return absl::ResourceExhaustedError(
        absl::StrCat("one sequence of max_model_len ", request.max_model_len, " needs ", needed,
                     " bytes of KV cache on each rank, there are ", num_blocks * tightest_block_bytes,
                     "; give more with --kv-cache-memory-bytes or lower --max-model-len"));
  }
  plan.max_model_len = static_cast<int32_t>(TotalBlocks(num_blocks) * request.block_size);
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
