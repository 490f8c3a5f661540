#pragma once
// Which rows and columns of a checkpoint a rank holds, and where each lies in the `weights` region: the
// family's list of tensors (checkpoint/family.h), cut by the rank's shards.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "checkpoint/checkpoint.h"
#include "kernels/device.h"
#include "kernels/tensor.h"
#include "worker/model/shards.h"
#include "worker/model/weights.h"

namespace somnus {

// The types in which matrices are computed.
struct WeightTypes {
  DataType dtype = DataType::kBF16;
  // Quantized tensors keep their type where the device computes with that type and the rank's columns are
  // whole blocks. All other tensors get `dtype`.
  bool keep_quantized = false;
  // --quantization: the type of the layers' matrices that would get `dtype`, if the device computes with this
  // type and the rank's columns are whole blocks. Never of the embedding, the output matrix and OPT's
  // projections between layers and embedding.
  std::optional<DataType> quantize;
};

// The type of weights that are stored as `type`; nothing for types that no device computes with.
std::optional<DataType> QuantizedType(StorageType type);

// Where a part of a fused matrix comes from.
struct WeightSource {
  const TensorInfo* tensor = nullptr;
  Range rows;
  Range cols;
};

// Whether a weight of `type` takes the source's blocks as stored in the checkpoint: the blocks are of that
// type, and for fp8 with scales of blocks no such block ends within 32 rows of the weight.
bool TakesStoredBlocks(const WeightSource& source, DataType type);

// Movable; immutable after Create but for Bind. The TensorInfos belong to the checkpoint of Create.
class WeightPlan {
 public:
  struct Matrix {
    LinearWeight* target = nullptr;  // in weights()
    int64_t offset = 0;
    int64_t bytes = 0;
    std::vector<WeightSource> sources;  // stacked by rows
  };
  struct Vector {
    const float** target = nullptr;  // in weights()
    int64_t offset = 0;
    int64_t bytes = 0;
    std::vector<WeightSource> sources;  // one after another
  };

  // Takes no memory. NotFound and InvalidArgument name a tensor that is missing or has another shape than the
  // configuration says.
  static absl::StatusOr<WeightPlan> Create(const Checkpoint& checkpoint, const ModelShards& shards,
                                           const WeightTypes& types, const Device& device);

  // Whether weights that were loaded by `other` can be replaced in place: every matrix and vector has the
  // same type, shape and offset.
  bool LiesAs(const WeightPlan& other) const;
  // The types of the matrices and the bytes of each, for people: "Q4_1 63.3 MiB, Q8_0 28.7 MiB".
  std::string DescribeTypes() const;

  // The quantized types of the checkpoint's matrices that are computed in a type other than the stored type,
  // for people: "Q4_1, Q8_0"; empty: no such matrix. Numbers of a quantization_config may fit no type.
  std::string DescribeExpanded() const;

  int64_t region_bytes() const { return region_bytes_; }
  const ModelWeights& weights() const { return *weights_; }
  const std::vector<Matrix>& matrices() const { return matrices_; }
  const std::vector<Vector>& vectors() const { return vectors_; }

  // Points weights() into the region at `base`, aligned to kArrayAlignment (carver.h).
  void Bind(void* base);

 private:
  friend class WeightPlanBuilder;

  std::unique_ptr<ModelWeights> weights_;
  std::vector<Matrix> matrices_;
  std::vector<Vector> vectors_;
  bool tied_ = false;  // the head is the embedding, and the rank has both
  int64_t region_bytes_ = 0;
};

}  // namespace somnus
