#pragma once
// Reads adapters (LoRA) into a rank's host memory: from the files to the matrices as the device has them.
//
// Shards: of column-parallel linears (q, k, v, gate, up) a rank has all of A and its rows of B; of
// row-parallel linears (o, down) its columns of A and all of B, so that the ranks' addends add up to the
// whole change.
//
// Immutable, and shares nothing with the runner: all methods are thread safe, also while steps run.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "checkpoint/lora_adapter.h"
#include "checkpoint/model_config.h"
#include "proto/worker.pb.h"
#include "worker/model/shards.h"
#include "worker/runner/model_runner.h"

namespace somnus {

// A rank's copy of one adapter in host memory. Plain data.
struct HostAdapter {
  // The matrices of one linear as the device has them: [rank, k] and [rank, n].
  struct Matrices {
    int32_t rank = 0;
    std::vector<uint8_t> a, b;
  };

  uint64_t id = 0;
  std::string fingerprint;        // of the files
  std::vector<Matrices> linears;  // [layers of the stage][kNumLoraTargets]
};

class AdapterReader {
 public:
  // The rank's part of one linear.
  struct Part {
    Range rows;  // of B
    Range cols;  // of A
  };

  AdapterReader(const ModelConfig& config, const ModelShards& shards, const ModelRunnerOptions& options);

  // Errors name the adapter, and the tensor or the key. Cancelled: `has_left`, which is asked between two
  // matrices, returned true.
  absl::StatusOr<std::shared_ptr<const HostAdapter>> Read(const v1::WorkerAdapter& adapter,
                                                          const std::function<bool()>& has_left) const;
  const Part& part(int target) const { return parts_[static_cast<size_t>(target)]; }

 private:
  static Part PartOf(LoraTarget target, const ModelConfig& config, const ModelShards& shards);
  absl::StatusOr<std::shared_ptr<const HostAdapter>> ReadFiles(const v1::WorkerAdapter& adapter,
                                                               const std::function<bool()>& has_left) const;
  // The rank's part, in the device's type, with B transposed.
  HostAdapter::Matrices Convert(const LoraMatrices& whole, const Part& part) const;

  const ModelConfig config_;
  const Range layers_;  // of the rank's stage
  const DataType dtype_;
  const int32_t max_rank_;
  const std::vector<Part> parts_;  // [kNumLoraTargets]
};

}  // namespace somnus
