#pragma once
// How a group runs its model, from flags, checkpoint and measurements. Pure functions.

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "checkpoint/model_config.h"
#include "coordinator/block_manager/kv_plan.h"
#include "coordinator/flags/flags.h"
#include "proto/worker.pb.h"

namespace somnus {

// The type of weights and activations: `requested`, or for "auto" (DTYPE_UNSPECIFIED) float32 where the
// checkpoint stores float32, and bfloat16 for every 16-bit and quantized type.
v1::DType ResolveDType(v1::DType requested, StorageType stored);

// Everything but the rank, the epoch and the operation.
v1::LoadModelRequest MakeLoadRequest(const Flags& flags, const ModelConfig& config, int32_t max_model_len);

// How many tokens a query attends at most, as the coordinator's books count: BlockManagerOptions.
int64_t AttentionReachOf(const Flags& flags, const ModelConfig& config);

// The wishes of the flags for the KV cache of a model with that reach, which serves up to `max_model_len`
// tokens.
KvPlanRequest PlanRequestOf(const Flags& flags, int32_t max_model_len, int64_t attention_reach);

// The number of KV blocks, from every rank's measurements; the vectors are by rank.
absl::StatusOr<KvPlan> PlanBlocks(const Flags& flags, v1::DeviceType device,
                                  const std::vector<int64_t>& kv_block_bytes,
                                  const std::vector<v1::ProfileResponse>& profiles,
                                  const KvPlanRequest& request);

// The blocks of the host tier, as the flags ask; as PlanHostBlocks.
int32_t HostBlocks(const Flags& flags, const std::vector<int64_t>& kv_block_bytes, int32_t num_blocks);
// Bytes of the host tier that a rank on a GPU has ready; 0 where steps never swap.
int64_t SwapSpaceAhead(const Flags& flags);

}  // namespace somnus
