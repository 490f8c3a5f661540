#pragma once
// Decode batches as graphs: one per batch size, queued by one call instead of some hundreds. A batch is
// padded to the next size. What changes from step to step is read from the step's inputs, which stay at their
// addresses, so graphs survive sleep and wake.

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/device.h"
#include "kernels/tensor.h"

namespace somnus {

// Used by the runner thread alone.
class GraphRunner {
 public:
  // Lays out a batch of `size` sequences of one token each, and, when it `runs`, brings its inputs to the
  // device.
  using Prepare = std::function<absl::Status(int32_t size, bool runs)>;
  // Queues the model's ops for what was prepared; returns their output.
  using Queue = std::function<absl::StatusOr<TensorView>()>;

  // Records a graph per size, the largest first: the smaller ones then fit into the memory that the device
  // keeps for it. `warm`: all sizes have run since the process started; otherwise each runs once before it is
  // recorded. Replaces what was recorded before. After an error there are no graphs; ResourceExhausted says
  // what would need less memory.
  absl::Status Capture(Device* device, const std::vector<int32_t>& sizes, bool warm, const Prepare& prepare,
                       const Queue& queue);
  void Clear() { graphs_.clear(); }
  int count() const { return static_cast<int>(graphs_.size()); }

  // The size of the smallest graph for `num_seqs` sequences; 0: there is none.
  int32_t PaddedSize(int64_t num_seqs) const;
  // Queues the graph of exactly that size; returns its output.
  TensorView Launch(int32_t size);

 private:
  struct Graph {
    int32_t size = 0;
    std::unique_ptr<DeviceGraph> graph;
    TensorView output;
  };
  static absl::StatusOr<Graph> CaptureOne(Device* device, int32_t size, bool warm, const Prepare& prepare,
                                          const Queue& queue);

  std::vector<Graph> graphs_;  // ascending
};

}  // namespace somnus
