#pragma once
// Decode batches as graphs: a graph per batch size, queued by a single call instead of some hundreds. A batch
// is padded to the next size. All that changes from step to step is read from the step's inputs, which stay
// at the same addresses, so graphs survive sleep and wake.

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/device.h"
#include "kernels/tensor.h"
#include "worker/comm/communicator.h"
#include "worker/runner/model_runner.h"

namespace somnus {

// Borrows device and communicator. Used by the runner thread alone.
class GraphRunner {
 public:
  // Lays out a batch of `size` sequences of a token each, and, when the batch `runs`, brings the inputs to
  // the device.
  using Prepare = std::function<absl::Status(int32_t size, bool runs)>;
  // Queues the model's ops for the prepared batch, and returns the output.
  using Queue = std::function<absl::StatusOr<TensorView>()>;

  GraphRunner(const ModelRunnerOptions& options, Device* device, const Communicator* communicator);

  // The sizes of decode batches to prepare for; ascending.
  const std::vector<int32_t>& batch_sizes() const { return batch_sizes_; }
  // False on a CPU, when eager, and where a collective cannot be queued.
  bool enabled() const;

  // Records a graph per size, the largest first: the smaller graphs then fit into the memory that the device
  // keeps for the largest. A size that has not run since the group formed runs once before. Replaces earlier
  // graphs; does nothing where graphs are not enabled. After an error there are no graphs; ResourceExhausted
  // names flags that need less memory.
  absl::StatusOr<GraphReport> Capture(const Prepare& prepare, const Queue& queue);
  // The next step is to capture, on all ranks together.
  void Defer(bool deferred) { deferred_ = deferred; }
  // Whether a capture was deferred; asks once.
  bool TakeDeferred() { return std::exchange(deferred_, false); }
  // Forgets all graphs, also a deferred capture.
  void Clear();
  // Forgets the graphs of an earlier epoch, and defers the capture of new graphs. Every rank then runs every
  // size again, because a rank that is new does, and collectives are for all ranks.
  void BeginEpoch();

  // The size of the smallest graph for `num_seqs` sequences; 0: there is none.
  int32_t PaddedSize(int64_t num_seqs) const;
  // Queues the graph of exactly that size, and returns the output.
  TensorView Launch(int32_t size);

 private:
  struct Graph {
    int32_t size = 0;
    std::unique_ptr<DeviceGraph> graph;
    TensorView output;
  };
  absl::StatusOr<Graph> CaptureOne(int32_t size, const Prepare& prepare, const Queue& queue) const;
  absl::Status CaptureAll(const Prepare& prepare, const Queue& queue);

  Device& device_;
  const Communicator& communicator_;
  const bool enforce_eager_;
  const std::vector<int32_t> batch_sizes_;
  std::vector<Graph> graphs_;  // ascending
  bool warm_ = false;          // every size has run since the group formed
  bool deferred_ = false;
};

}  // namespace somnus
