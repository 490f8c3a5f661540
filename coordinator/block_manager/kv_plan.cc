#include "coordinator/block_manager/kv_plan.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"

namespace somnus {

absl::StatusOr<KvPlan> PlanKvCache(const std::vector<RankMemory>& ranks, const KvPlanRequest& request) {
  int64_t blocks = std::numeric_limits<int32_t>::max();
  int64_t tightest_block_bytes = 0;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    if (ranks[rank].kv_block_bytes <= 0) {
      return absl::InternalError(
          absl::StrCat("rank ", rank, " reports KV blocks of ", ranks[rank].kv_block_bytes, " bytes"));
    }
    const int64_t bytes =
        request.kv_cache_bytes > 0 ? request.kv_cache_bytes : ranks[rank].available_kv_bytes;
    const int64_t fits = std::max<int64_t>(0, bytes) / ranks[rank].kv_block_bytes;
    if (fits < blocks || tightest_block_bytes == 0) tightest_block_bytes = ranks[rank].kv_block_bytes;
    blocks = std::min(blocks, fits);
  }
  const int64_t per_sequence = (request.max_model_len + request.block_size - 1) / request.block_size;
  blocks = std::min(blocks, per_sequence * request.max_num_seqs + 1);
  if (request.kv_cache_bytes == 0 && request.soft_limit_bytes > 0) {
    blocks = std::min(blocks, std::max(request.soft_limit_bytes / tightest_block_bytes, per_sequence + 1));
  }
  KvPlan plan;
  plan.max_model_len = request.max_model_len;
  plan.num_blocks = static_cast<int32_t>(blocks);
  if (blocks - 1 >= per_sequence) return plan;

  const int64_t needed = (per_sequence + 1) * tightest_block_bytes;
  const bool hopeless = blocks < 2;
  if (request.max_model_len_is_fixed || hopeless) {
    return absl::ResourceExhaustedError(
        absl::StrCat("one sequence of max_model_len ", request.max_model_len, " needs ", needed,
                     " bytes of KV cache on each rank, there are ", blocks * tightest_block_bytes,
                     "; give more with --kv-cache-memory or lower --max-model-len"));
  }
  plan.max_model_len = static_cast<int32_t>((blocks - 1) * request.block_size);
  return plan;
}

}  // namespace somnus
