#pragma once
// A rank's model with KV cache and batch state; runs steps. Used by the runner thread alone.
//
// Borrowed, and must outlive the runner: device, communicator, allocator. The checkpoint is needed during
// Load only. All large memory comes from the allocator, under the tags weights, kv_cache and workspace.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "allocator/sleepable_allocator.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/mapped_file.h"
#include "kernels/device.h"
#include "kernels/ops.h"
#include "kernels/tensor.h"
#include "proto/worker.pb.h"
#include "worker/comm/communicator.h"
#include "worker/model/shards.h"
#include "worker/model/updated_tensors.h"

namespace somnus {

class AdapterReader;
struct HostAdapter;

struct ModelRunnerOptions {
  // The type of activations into linears, and of weights whose stored type is not computed with.
  DataType dtype = DataType::kBF16;
  bool dequantize = false;  // true: no weight is computed in the checkpoint's quantized type
  // --quantization: kQ8_0 (int8), kQ4_1 (int4) or kF8E4M3 (fp8), which the matrices of the layers become that
  // would get dtype. A GPU takes fp8 alone, of a checkpoint of fp8, which gets dtype all the same.
  std::optional<DataType> quantize;
  bool expert_parallel = false;  // ranks divide the experts, and not the width of each
  bool expert_load = false;      // replies say how many tokens each expert had in the step
  // Empty: dtype. A GPU takes dtype, kF8E4M3 or kI8, the CPU any type.
  std::optional<DataType> kv_cache_dtype;
  int32_t max_num_seqs = 128;  // slots
  int32_t max_num_batched_tokens = 512;
  int32_t max_model_len = 2048;
  int32_t block_size = 16;
  // Decode batches of the sizes run as graphs where the device has graphs; a batch between two sizes is
  // padded to the larger size. Sizes beyond the largest batch are left out. Empty:
  // DefaultGraphSizes(max_num_seqs).
  std::vector<int32_t> graph_sizes;
  bool enforce_eager = false;  // no graphs
  // How long Profile may measure matrix products, at the sizes above and at the largest prompt's. A size that
  // was not measured in time is computed in the library's usual way.
  absl::Duration max_tune_time = absl::Seconds(5);
  bool read_weights = true;  // false: memory is taken, and nothing is written there
  // A small model of the same vocabulary, that makes guesses for steps to check; empty: none. The draft
  // model's weights are read anew whenever the model's weights are, and where an update brings all weights.
  std::string draft_model_path;
  LoadFormat draft_format = LoadFormat::kAuto;
  int32_t num_speculative_tokens = 0;  // guesses for a sequence in a step, at most
  // The communicator's ranks are those of this stage, and the communicator has links to the stages beside.
  PipelinePlace pipeline;
  int32_t max_adapters = 0;    // that can be loaded at once; 0: the model takes no adapters
  int32_t max_loras = 1;       // different adapters of one step, each with a place in the device's memory
  int32_t max_lora_rank = 16;  // of an adapter; 1 to LoraAdapter::kMaxRank
};

// 1, 2, 4, 8, 16, 24, ... up to max_num_seqs, and no more than 512.
std::vector<int32_t> DefaultGraphSizes(int32_t max_num_seqs);

// A step that was queued. When kStepsInFlight steps are queued, Launch blocks until some thread has waited
// for the oldest.
class PendingStep {
 public:
  virtual ~PendingStep() = default;
  // Returns the reply once the device has done the step. To be called once, from any thread.
  virtual absl::StatusOr<v1::StepReply> Wait() = 0;
};

// Where a runner gets the masks of steps that await masks. Implementations are thread safe.
class StepMaskSource {
 public:
  virtual ~StepMaskSource() = default;
  // Blocks until the masks of the step have come. Aborted: the step's epoch is over.
  virtual absl::StatusOr<v1::StepMasks> AwaitMasks(int64_t group_epoch, int64_t step_id) = 0;
};

struct GraphReport {
  int count = 0;  // 0 where there are no graphs: on a CPU, or eager
  double seconds = 0;
};

// A part of the weights that lies in memory as one.
struct WeightPiece {
  std::string name;            // the checkpoint's names of its tensors: "a.weight+b.weight"
  const void* data = nullptr;  // on the device
  int64_t bytes = 0;
};

class ModelRunner {
 public:
  // Gets bytes_loaded and bytes_total of this rank's shard; called often, from any thread.
  using Progress = std::function<void(int64_t, int64_t)>;

  // Allocates and fills `weights`; allocates `workspace`. An error of reading names the tensor.
  static absl::StatusOr<std::unique_ptr<ModelRunner>> Load(const Checkpoint& checkpoint,
                                                           const ModelRunnerOptions& options, Device* device,
                                                           Communicator* communicator,
                                                           SleepableAllocator* allocator,
                                                           const Progress& progress);
  virtual ~ModelRunner() = default;

  // Bytes of a block over all layers, K and V, this rank's heads; the draft model's part included.
  virtual int64_t kv_block_bytes() const = 0;
  // The types that this rank's weights are computed in, for people: "Q4_1 63.3 MiB, Q8_0 28.7 MiB".
  virtual std::string weight_types() const = 0;
  // Runs the largest steps on scratch memory, so that everything that a step touches is resident when the
  // caller measures the memory that is left for the KV cache.
  virtual absl::Status Profile() = 0;
  // Captures the decode graphs over scratch memory and keeps the graphs, so that the caller's measurement
  // counts the memory of the graphs. ResourceExhausted: the device has no room for the graphs.
  virtual absl::StatusOr<GraphReport> ProfileGraphs() = 0;
  // Allocates the cache, of which the first num_mapped_blocks have memory, drops the graphs of ProfileGraphs,
  // and captures graphs over the cache: now, or, with `defer_graphs`, at the next Launch, on all ranks
  // together. Both numbers count the null block, and are at least 2. ResourceExhausted: a smaller number can
  // be tried.
  virtual absl::Status AllocateKvCache(int32_t num_blocks, int32_t num_mapped_blocks, bool defer_graphs) = 0;
  // Gives memory to the first num_mapped_blocks of the cache, and takes memory from all later blocks, as far
  // as pages allow; while the cache sleeps, for the time after the wake-up. Waits for the device. Blocks that
  // have memory before and after keep the contents, and graphs stay. FailedPrecondition: there is no cache,
  // or a sequence has a later block. After an error nothing has changed.
  virtual absl::Status ResizeKvCache(int32_t num_mapped_blocks) = 0;

  // Queues copies of whole blocks between the cache and a part of the host tier, in order with steps; `pool`,
  // of kv_block_bytes for each of the pool's blocks, must stay unchanged until the device has done the
  // copies. A draft model's parts of all blocks lie behind the model's; the computed tokens of each are known
  // by the block's number in the tier, pool.first_block and on. InvalidArgument: a block does not exist.
  virtual absl::Status SwapBlocks(SwapDirection direction, const KvHostPool& pool,
                                  absl::Span<const BlockSwap> swaps) = 0;

  // Begins an epoch: waits until the device is done and until somebody has waited for every step, or
  // destroyed the PendingStep; then forgets the batch and the error of a failed step. Weights and KV cache
  // stay. Graphs that hold the communicator's buffers are dropped, and captured again at the next Launch. An
  // error is the device's, which is of no use any longer.
  virtual absl::Status BeginEpoch() = 0;

  // Queues one step (order as in proto StepRequest), whose swaps the owner has queued. The reply of the last
  // stage's rank 0 carries tokens; all other replies none. An error leaves the runner failed until
  // BeginEpoch: every later call returns the same error. The next step may be launched before anybody waits
  // for the last: the needed tokens are on the device.
  virtual absl::StatusOr<std::unique_ptr<PendingStep>> Launch(const v1::StepRequest& request) = 0;
  // Where the last stage's rank 0 gets masks that do not come in the step's message; borrowed. Without a
  // source such a step is InvalidArgument.
  virtual void SetMaskSource(StepMaskSource* /*source*/) {}
  // Runs a fixed prompt on the null block, on all ranks together, and returns a fingerprint of the logits,
  // bit for bit, on rank 0 of the last stage; 0 on other ranks. FailedPrecondition: a slot is in use, or
  // there is no KV cache; nothing was computed. Further errors as in Launch.
  virtual absl::StatusOr<uint64_t> SelfCheck() = 0;
  // Launch and Wait.
  absl::StatusOr<v1::StepReply> Execute(const v1::StepRequest& request);

  // Ok when ReloadWeights can put the checkpoint's weights in the place of the loaded weights: the checkpoint
  // is of the same model, and the tensors lie in memory alike. NotFound and InvalidArgument say why not.
  virtual absl::Status CheckReload(const Checkpoint& checkpoint) const = 0;
  // The bytes of the checkpoint's files that ReloadWeights would read; none where the checkpoint has no
  // files.
  virtual absl::StatusOr<std::vector<FileRange>> WeightRanges(const Checkpoint& /*checkpoint*/) const {
    return std::vector<FileRange>();
  }
  // Reads the weights again, over old weights, or into a region that was discarded by a sleep and mapped
  // again. Drops the backups of weights. Errors of CheckReload have changed nothing; after further errors the
  // contents are undefined. No step may be under way.
  virtual absl::Status ReloadWeights(const Checkpoint& checkpoint, const Progress& progress) = 0;
  // The weights of the model, and behind them a draft model's, whose names begin with "draft_model:". The
  // addresses are those of every time at which the memory is mapped.
  virtual std::vector<WeightPiece> weight_pieces() const { return {}; }
  // Weights that come by chunks, each weight written over the old weight as soon as the new weight is whole,
  // while no step is under way. Drops backups of old weights. New weights are quantized as at the load.
  // `needs_all` as in UpdatedTensors. FailedPrecondition: the weights are computed in a file's quantized
  // types. The update must end before the runner does.
  virtual absl::StatusOr<std::unique_ptr<UpdatedTensors>> BeginWeightUpdate(bool needs_all) = 0;
  // Reads adapters on any thread, also while steps run, for AddReadAdapters. Null: the model takes no
  // adapters.
  virtual std::shared_ptr<const AdapterReader> adapter_reader() const { return nullptr; }
  // Keeps adapters that adapter_reader() has read, in place of the adapters of the call before, until the
  // next SetAdapters, which reads no files of the adapters that it names, and drops the others.
  virtual void AddReadAdapters(std::vector<std::shared_ptr<const HostAdapter>> /*adapters*/) {}
  // InvalidArgument: two of `adapters` have the same slot, or the model has no such slot.
  virtual absl::Status CheckAdapters(absl::Span<const v1::WorkerAdapter> /*adapters*/) const {
    return absl::OkStatus();
  }
  // Makes `adapters` the adapters that steps can name: reads new ones, drops all that are not named. Waits
  // for the device. Each adapter has a copy in host memory, which steps read. Errors name the adapter, and
  // nothing has changed. No step may be under way; memory may sleep.
  virtual absl::Status SetAdapters(absl::Span<const v1::WorkerAdapter> /*adapters*/) {
    return absl::UnimplementedError("this model takes no adapters");
  }
  // LoraAdapter::Fingerprint by the id of each adapter of SetAdapters.
  virtual std::map<uint64_t, std::string> AdapterFingerprints() const { return {}; }
  // The bytes of host memory that the adapters' copies take, and the adapters of AddReadAdapters.
  virtual int64_t adapter_host_bytes() const { return 0; }
  // To be called after any sleep: computes the small tables in workspace again and empties the batch state.
  virtual absl::Status ResetAfterWake() = 0;
};

}  // namespace somnus
