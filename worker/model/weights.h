#pragma once
// A rank's weights: where each lives in the one `weights` region, and how to fill it from a checkpoint.
//
// WeightPlan::Create looks every tensor up and checks its shape before any memory is taken, so that a
// checkpoint that does not fit its config fails at once: NotFound or InvalidArgument with the tensor's name
// and both shapes. Matrices that read the same input are fused (q, k, v; gate, up) and packed for the device;
// norms, biases and OPT's position table are f32.

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/checkpoint.h"
#include "kernels/device.h"
#include "kernels/ops.h"
#include "worker/model/load_jobs.h"
#include "worker/model/shards.h"
#include "worker/model/weight_upload.h"

namespace somnus {

// H: this rank's query heads, KV: its KV heads, D: head_dim, M: its MLP rows, V: its vocabulary rows.
// Null pointers and n == 0 mean "this model (or this rank) has none".
struct LayerWeights {
  const float* attention_norm = nullptr;       // [hidden]
  const float* attention_norm_bias = nullptr;  // [hidden]
  LinearWeight qkv;                            // [(H + 2 KV) D, hidden]
  const float* qkv_bias = nullptr;             // [(H + 2 KV) D]
  const float* q_norm = nullptr;               // [D]
  const float* k_norm = nullptr;               // [D]
  LinearWeight out;                            // [hidden, H D]
  const float* out_bias = nullptr;             // [hidden], on the last rank only
  const float* mlp_norm = nullptr;             // [hidden]
  const float* mlp_norm_bias = nullptr;        // [hidden]
  LinearWeight up;                             // [2 M, hidden] gate then up; OPT: [M, hidden]
  const float* up_bias = nullptr;              // as up's rows
  LinearWeight down;                           // [hidden, M]
  const float* down_bias = nullptr;            // [hidden], on the last rank only
};

struct ModelWeights {
  LinearWeight embedding;                 // [V, embedding_dim]
  const float* position_table = nullptr;  // [max_position_embeddings + offset, hidden]
  LinearWeight project_in;                // [hidden, embedding_dim], when they differ
  LinearWeight project_out;               // [embedding_dim, hidden]
  std::vector<LayerWeights> layers;
  const float* final_norm = nullptr;       // [hidden]
  const float* final_norm_bias = nullptr;  // [hidden]
  LinearWeight head;                       // [V, embedding_dim]; the embedding itself when tied
};

// Where a part of a fused matrix comes from.
struct WeightSource {
  const TensorInfo* tensor = nullptr;
  Range rows;
  Range cols;
};

// Movable; immutable after Create but for Bind. Its TensorInfos belong to the checkpoint of Create.
class WeightPlan {
 public:
  using Progress = LoadProgress;

  static absl::StatusOr<WeightPlan> Create(const Checkpoint& checkpoint, const ModelShards& shards,
                                           DataType dtype, const Device& device);

  int64_t region_bytes() const { return region_bytes_; }
  const ModelWeights& weights() const { return *weights_; }

  // Points weights() into the region at `base`, 256-byte aligned.
  void Bind(void* base);
  // Reads, converts and packs everything, a thread on each allowed CPU. After Bind. The matrices of a dummy
  // checkpoint are made by the device. Host memory beside the checkpoint's maps: on an asynchronous device as
  // weight_upload.h says, whose copies are done, or given up, at the return; else 512 KiB, or 64 rows if they
  // are more, for each thread. An error names the tensor, and the region is then undefined.
  absl::Status Fill(const Checkpoint& checkpoint, Device& device, const Progress& progress) const;

 private:
  friend class WeightPlanBuilder;
  struct Matrix {
    LinearWeight* target = nullptr;  // in *weights_
    int64_t offset = 0;
    std::vector<WeightSource> sources;  // stacked by rows
  };
  struct Vector {
    const float** target = nullptr;
    int64_t offset = 0;
    std::vector<WeightSource> sources;  // one after another
  };
  struct Job;

  std::vector<Job> MakeJobs(bool matrices) const;
  void FillMatricesRandomly(Device& device) const;
  std::vector<UploadPiece> MakePieces(bool matrices, int64_t max_bytes) const;
  absl::Status RunJob(const Checkpoint& checkpoint, const Device& device, const Job& job,
                      std::vector<float>* scratch) const;

  std::unique_ptr<ModelWeights> weights_;
  std::vector<Matrix> matrices_;
  std::vector<Vector> vectors_;
  bool tied_ = false;
  int64_t region_bytes_ = 0;
};

}  // namespace somnus
