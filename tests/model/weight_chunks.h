#pragma once
// The chunks that a client sends of a checkpoint, and the region of a rank, filled from such chunks or by a
// load.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status_macros.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/memory_checkpoint.h"
#include "worker/model/updated_tensors.h"
#include "worker/model/weight_loader.h"

namespace somnus {

// A stored tensor, which is not quantized, in chunks of at most `chunk_bytes`.
inline std::vector<v1::WeightChunk> ChunksOf(const TensorInfo& tensor, uint64_t chunk_bytes) {
  std::vector<v1::WeightChunk> chunks;
  for (uint64_t at = 0; at < tensor.bytes; at += chunk_bytes) {
    v1::WeightChunk& chunk = chunks.emplace_back();
    if (at == 0) {
      chunk.set_name(tensor.name);
      chunk.set_dtype(tensor.type == StorageType::kF32    ? v1::WEIGHT_DTYPE_FLOAT32
                      : tensor.type == StorageType::kBF16 ? v1::WEIGHT_DTYPE_BFLOAT16
                                                          : v1::WEIGHT_DTYPE_FLOAT16);
      chunk.mutable_shape()->Add(tensor.shape.begin(), tensor.shape.end());
    }
    chunk.set_data(tensor.data + at, std::min(chunk_bytes, tensor.bytes - at));
  }
  return chunks;
}

// Everything that an update of this model may have, the last tensor first.
inline std::vector<v1::WeightChunk> ChunksOf(const Checkpoint& checkpoint, uint64_t chunk_bytes) {
  std::vector<v1::WeightChunk> chunks;
  const std::unique_ptr<MemoryCheckpoint> known = MemoryCheckpoint::Create(checkpoint.config());
  std::vector<const TensorInfo*> tensors = known->Tensors();
  std::reverse(tensors.begin(), tensors.end());
  for (const TensorInfo* tensor : tensors) {
    for (v1::WeightChunk& chunk : ChunksOf(*checkpoint.Find(tensor->name), chunk_bytes))
      chunks.push_back(std::move(chunk));
  }
  return chunks;
}

// The part of a model that a rank holds.
struct RankPart {
  int rank = 0;
  int world_size = 1;
  DataType dtype = DataType::kF32;
};

inline absl::StatusOr<WeightPlan> PlanOf(const Checkpoint& checkpoint, const RankPart& part,
                                         const Device& device) {
  return WeightPlan::Create(checkpoint, MakeShards(checkpoint.config(), part.rank, part.world_size),
                            WeightTypes{.dtype = part.dtype}, device);
}

// Fills the region by a load.
inline absl::Status FillByLoad(const Checkpoint& checkpoint, const RankPart& part, Device& device,
                               void* region) {
  ASSIGN_OR_RETURN(WeightPlan plan, PlanOf(checkpoint, part, device));
  plan.Bind(region);
  RETURN_IF_ERROR(LoadWeights(plan, checkpoint, device, nullptr));
  return device.Synchronize();
}

// Fills the region by an update with the chunks.
inline absl::Status FillByUpdate(const ModelConfig& config, const std::vector<v1::WeightChunk>& chunks,
                                 const RankPart& part, Device& device, void* region) {
  WeightPlan plan;
  UpdatedTensors update(
      config, /*needs_all=*/true,
      [&](const Checkpoint& tensors, const TensorInfo& tensor) {
        return LoadTensor(plan, tensors, tensor, device);
      },
      [&](const v1::CudaMemory& memory, void* to) {
        return device.CopyFromProcess(memory.handle(), memory.offset(), memory.bytes(), to);
      });
  ASSIGN_OR_RETURN(plan, PlanOf(update.tensors(), part, device));
  plan.Bind(region);
  for (const v1::WeightChunk& chunk : chunks) RETURN_IF_ERROR(update.Add(chunk));
  RETURN_IF_ERROR(update.EndStream());
  RETURN_IF_ERROR(update.CheckComplete());
  return device.Synchronize();
}

}  // namespace somnus
