#pragma once
// A model's weights on a rank: where each weight lies in the region `weights`, how the region is filled, and
// which checkpoints and updates can take the place of the weights that were loaded.
//
// Owns the region. Borrowed, and must outlive the weights: config, shards, device, allocator. The device must
// be done with the region when the weights are destroyed. Used by the runner thread alone.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "allocator/sleepable_allocator.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/mapped_file.h"
#include "kernels/device.h"
#include "worker/model/kv_scales.h"
#include "worker/model/shards.h"
#include "worker/model/updated_tensors.h"
#include "worker/model/weight_plan.h"
#include "worker/runner/model_runner.h"

namespace somnus {

class RankWeights {
 public:
  using Progress = ModelRunner::Progress;

  RankWeights(const ModelConfig* config, const ModelShards* shards, const ModelRunnerOptions& options,
              Device* device, SleepableAllocator* allocator);
  ~RankWeights();
  RankWeights(const RankWeights&) = delete;

  // Plans where the checkpoint's weights lie and takes the region; reads the scales of an fp8 KV cache, but
  // no weight. The error names the tensor.
  absl::Status Allocate(const Checkpoint& checkpoint);
  // Fills the region from the checkpoint of Allocate, unless the options say otherwise. Waits for the device.
  absl::Status Read(const Checkpoint& checkpoint, const Progress& progress);

  // After Allocate; valid as long as this object.
  const ModelWeights& weights() const { return plan_.weights(); }
  // As ModelRunner::weight_pieces; after Allocate.
  const std::vector<WeightPiece>& pieces() const { return pieces_; }
  // By layer; empty: all 1.
  const std::vector<KvScales>& kv_scales() const { return kv_scales_; }
  // The types of the matrices and the bytes of each, for people.
  std::string DescribeTypes() const { return plan_.DescribeTypes(); }
  // For the log: the checkpoint's quantized types that this device expands, because the device cannot compute
  // with the types; or, with --dequantize, the types that --no-dequantize would compute with.
  std::string StoredTypesNote(const Checkpoint& checkpoint) const;

  // Where the checkpoint's weights would lie.
  absl::StatusOr<WeightPlan> Plan(const Checkpoint& checkpoint) const;
  // Whether weights of `plan` can be written over the weights that were loaded.
  bool Fits(const WeightPlan& plan) const { return plan.LiesAs(plan_); }
  // Writes the checkpoint's weights over the weights that were loaded. `plan` fits, and was made of the
  // checkpoint. After an error the contents are undefined.
  absl::Status Overwrite(WeightPlan plan, const Checkpoint& checkpoint, const Progress& progress);

  // Four functions as in ModelRunner. Reload drops the backups of the weights.
  absl::Status CheckReload(const Checkpoint& checkpoint) const;
  absl::StatusOr<std::vector<FileRange>> Ranges(const Checkpoint& checkpoint) const;
  absl::Status Reload(const Checkpoint& checkpoint, const Progress& progress);
  // Drops no backups: DropBackups does, once the update can begin. The update must end before this object
  // does.
  absl::StatusOr<std::unique_ptr<UpdatedTensors>> BeginUpdate(bool needs_all);
  // Backups would restore the old weights at the next wake-up.
  void DropBackups();

 private:
  // The types of matrices, by the options.
  WeightTypes Types() const { return {options_.dtype, !options_.dequantize, options_.quantize}; }
  // Where the checkpoint's weights would lie, once the checkpoint is known to be of the same model.
  absl::StatusOr<WeightPlan> PlanReload(const Checkpoint& checkpoint) const;
  bool HasScales() const;

  const ModelConfig& config_;
  const ModelShards& shards_;
  const ModelRunnerOptions options_;
  Device& device_;
  SleepableAllocator& allocator_;

  WeightPlan plan_;
  std::vector<WeightPiece> pieces_;
  std::vector<KvScales> kv_scales_;
  void* region_ = nullptr;
};

}  // namespace somnus
