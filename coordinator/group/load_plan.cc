#include "coordinator/group/load_plan.h"

#include <algorithm>

#include "absl/time/time.h"
#include "base/log.h"
#include "base/null_block.h"
#include "base/status_macros.h"
#include "coordinator/flags/kv_cache_dtype.h"
#include "coordinator/flags/quantization.h"
#include "proto/limits.h"

namespace somnus {

v1::DType ResolveDType(v1::DType requested, StorageType stored) {
  if (requested != v1::DTYPE_UNSPECIFIED) return requested;
  return stored == StorageType::kF32 ? v1::DTYPE_FLOAT32 : v1::DTYPE_BFLOAT16;
}

v1::LoadModelRequest MakeLoadRequest(const Flags& flags, const ModelConfig& config, int32_t max_model_len) {
  v1::LoadModelRequest request;
  request.set_model_path(flags.model);
  request.set_load_format(flags.load_format);
  request.set_dtype(ResolveDType(flags.dtype, config.stored_type));
  request.set_kv_cache_dtype(ResolveKvCacheDType(flags.kv_cache_dtype, request.dtype()));
  request.set_dequantize(DequantizesAtLoad(flags.dequantize, flags.quantization));
  request.set_quantization(WeightQuantizationOf(flags.quantization));
  request.set_expert_parallel(flags.expert_parallel);
  request.set_expert_load(flags.expert_load_metrics);
  request.set_max_num_seqs(flags.engine.scheduler.max_num_seqs);
  request.set_max_num_batched_tokens(flags.engine.scheduler.max_num_batched_tokens);
  request.set_max_model_len(max_model_len);
  request.set_block_size(flags.engine.scheduler.blocks.block_size);
  request.set_batch_invariant(flags.engine.batch_invariant);
  request.set_device(flags.device);
  request.set_num_threads(flags.threads_per_worker);
  request.set_memory_utilization(flags.memory_utilization);
  request.set_enforce_eager(flags.enforce_eager);
  request.mutable_graph_sizes()->Add(flags.graph_sizes.begin(), flags.graph_sizes.end());
  request.set_device_chunk_bytes(flags.device_chunk_bytes);
  request.set_backup(flags.backup);
  request.set_spill_dir(flags.spill_dir);
  request.set_max_tune_time_us(absl::ToInt64Microseconds(flags.max_tune_time));
  request.set_kv_cache_memory_bytes(flags.kv_cache_memory_bytes);
  request.set_weights_version(1);
  // The hosts of remote workers are not known yet; each replica is taken to have hosts of its own.
  if (flags.local_workers && flags.data_parallel_size > 1) {
    request.set_groups_on_host(flags.data_parallel_size);
    request.set_group_on_host(flags.replica);
  }
  request.set_numa(flags.numa);
  if (flags.pipeline_parallel_size > 1) {
    v1::ParallelConfig* const parallel = request.mutable_parallel();
    parallel->set_num_stages(flags.pipeline_parallel_size);
    parallel->mutable_stage_layers()->Add(flags.pipeline_layer_partition.begin(),
                                          flags.pipeline_layer_partition.end());
  }
  if (flags.has_draft_model()) {
    request.set_draft_model_path(flags.draft_model);
    request.set_num_speculative_tokens(flags.engine.scheduler.speculation.num_speculative_tokens);
  }
  if (flags.lora.enabled) {
    request.set_max_adapters(MaxAdapters(flags.lora));
    request.set_max_loras(flags.lora.max_loras);
    request.set_max_lora_rank(flags.lora.max_rank);
  }
  return request;
}

// A draft model attends in the same blocks, mostly the whole context.
int64_t AttentionReachOf(const Flags& flags, const ModelConfig& config) {
  return flags.has_draft_model() ? 0 : config.AttentionReach();
}

KvPlanRequest PlanRequestOf(const Flags& flags, int32_t max_model_len, int64_t attention_reach) {
  KvPlanRequest request;
  request.block_size = flags.engine.scheduler.blocks.block_size;
  request.max_num_seqs = flags.engine.scheduler.max_num_seqs;
  request.max_model_len = max_model_len;
  request.max_model_len_is_fixed = flags.max_model_len > 0;
  request.kv_cache_memory_bytes = flags.kv_cache_memory_bytes;
  request.attention_reach = attention_reach;
  request.max_step_tokens = flags.engine.scheduler.max_num_batched_tokens;
  return request;
}

absl::StatusOr<KvPlan> PlanBlocks(const Flags& flags, v1::DeviceType device,
                                  const std::vector<int64_t>& kv_block_bytes,
                                  const std::vector<v1::ProfileResponse>& profiles,
                                  const KvPlanRequest& request) {
  std::vector<RankMemory> memory;
  for (size_t rank = 0; rank < profiles.size(); ++rank) {
    memory.push_back({kv_block_bytes[rank], profiles[rank].available_kv_cache_memory_bytes(),
                      device == v1::DEVICE_TYPE_CPU});
  }
  ASSIGN_OR_RETURN(const KvPlan plan, PlanKvCache(memory, request));
  if (plan.max_model_len < request.max_model_len) {
    LogWarning("{}max_model_len is {}, not {}: the KV cache holds no more", ReplicaPrefix(flags),
               plan.max_model_len, request.max_model_len);
  }
  return plan;
}

int32_t HostBlocks(const Flags& flags, const std::vector<int64_t>& kv_block_bytes, int32_t num_blocks) {
  // A sleep keeps no more than the cache holds. Sequences that were preempted one after the other, each time
  // when the rest had filled the cache, can have more blocks together: the k-th largest has a k-th of the
  // cache, and a thousand such sequences have less than eight caches in all.
  constexpr int64_t kMostCaches = 8;
  if (CachesOnHost(flags)) return PlanHostBlocks(kv_block_bytes, flags.swap_space_bytes, kMaxKeptBlocks);
  if (!KeepsKvOnSleep(flags) && !MaySwap(flags)) return 0;
  const int64_t most = TotalBlocks(num_blocks) * (MaySwap(flags) ? kMostCaches : 1);
  return PlanHostBlocks(kv_block_bytes, flags.swap_space_bytes, std::min<int64_t>(most, kMaxKeptBlocks));
}

int64_t SwapSpaceAhead(const Flags& flags) {
  const bool steps_swap = MaySwap(flags) || CachesOnHost(flags);
  return steps_swap ? std::min(flags.swap_space_ahead_bytes, flags.swap_space_bytes) : 0;
}

}  // namespace somnus
