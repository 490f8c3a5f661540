#pragma once
// One rank of a model in this process, driven by step messages without RPC or coordinator: the runner's best
// speed. The load is the same as of llama-batched-bench: `batch` prompts of `prompt_tokens`, in steps of at
// most `max_step_tokens`, then `new_tokens` decode steps. Not thread safe.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "allocator/sleepable_allocator.h"
#include "allocator/vmm_driver.h"
#include "checkpoint/checkpoint.h"
#include "kernels/device.h"
#include "tools/bench/decode/step_work.h"
#include "worker/comm/communicator.h"
#include "worker/runner/model_runner.h"

namespace somnus {

struct DecodeLoopOptions {
  std::string model;
  LoadFormat load_format = LoadFormat::kAuto;
  bool enforce_eager = false;
  DataType dtype = DataType::kBF16;
  // As in ModelRunnerOptions.
  bool dequantize = true;
  std::optional<DataType> quantize;
  std::optional<DataType> kv_cache_dtype;
  int threads = 2;  // of a CPU
  int32_t max_batch = 32;
  int32_t max_len = 512;  // prompt and new tokens of one sequence
  int32_t max_step_tokens = 512;
  // Blocks of the KV cache, as counted by BlocksFor; 0: enough for max_batch sequences of max_len tokens.
  int64_t kv_blocks = 0;
  // The share of the device's remaining memory that the KV cache takes, if that is more.
  double kv_share = 0;
  // The largest share that the KV cache may take, regardless of need; Fits then says which load has room. 0:
  // no limit.
  double max_kv_share = 0;
};

// A device and its memory.
struct LoopDevice {
  std::unique_ptr<VmmDriver> driver;
  std::unique_ptr<Device> device;
};

struct LoopSample {
  double prefill_seconds = 0;
  double decode_seconds = 0;
  int64_t prompt_tokens = 0;  // over all sequences
  int64_t new_tokens = 0;     // decoded after each sequence's first
  int64_t decode_steps = 0;
  HostCalls launching;  // calls to the device made to launch the decode steps, without the waits for replies
};

class DecodeLoop {
 public:
  static absl::StatusOr<std::unique_ptr<DecodeLoop>> Load(const DecodeLoopOptions& options,
                                                          LoopDevice device);
  // On this host's CPU.
  static absl::StatusOr<std::unique_ptr<DecodeLoop>> Load(const DecodeLoopOptions& options);

  // Blocks that `batch` sequences of `len` tokens take.
  static int64_t BlocksFor(int32_t batch, int32_t len);
  // Whether the KV cache has room for `batch` sequences of `len` tokens.
  bool Fits(int32_t batch, int32_t len) const { return BlocksFor(batch, len) < num_blocks_; }

  // InvalidArgument for a batch or lengths above the options' limits, ResourceExhausted for a load that does
  // not fit.
  absl::StatusOr<LoopSample> Run(int32_t batch, int32_t prompt_tokens, int32_t new_tokens);

  int64_t weights_bytes() const { return weights_bytes_; }
  int64_t kv_cache_bytes() const { return kv_cache_bytes_; }
  // The work of a step, and whether the products are of bytes.
  const ModelWork& work() const { return work_; }
  bool multiplies_bytes() const;
  const ModelConfig& config() const { return checkpoint_->config(); }
  SleepableAllocator& allocator() { return *allocator_; }
  VmmDriver& driver() { return *driver_; }
  // To be called after a level-1 sleep and wake-up through allocator(): no sequence is left.
  absl::Status ResetAfterWake() {
    last_batch_ = 0;
    return runner_->ResetAfterWake();
  }
  // Reads weights of the same shape from `path` again. Returns the seconds until all are on the device.
  absl::StatusOr<double> ReloadSeconds(const std::string& path);
  double load_seconds() const { return load_seconds_; }
  // The decode graphs, and the device memory that graphs hold; none on a CPU.
  const GraphReport& graphs() const { return graphs_; }
  int64_t graph_bytes() const { return graph_bytes_; }
  std::string device() const { return device_->Describe(); }

 private:
  absl::Status AllocateKvCache();
  absl::Status Prefill(int32_t batch, int32_t prompt_tokens, int32_t new_tokens);
  absl::Status Decode(int32_t batch, int32_t new_tokens, HostCalls* launching);

  DecodeLoopOptions options_;
  std::unique_ptr<Checkpoint> checkpoint_;
  std::unique_ptr<VmmDriver> driver_;
  std::unique_ptr<SleepableAllocator> allocator_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Communicator> communicator_;
  std::unique_ptr<ModelRunner> runner_;
  ModelWork work_;
  int64_t num_blocks_ = 0;  // the null block included
  int64_t weights_bytes_ = 0;
  int64_t kv_cache_bytes_ = 0;
  double load_seconds_ = 0;
  GraphReport graphs_;
  int64_t graph_bytes_ = 0;
  int32_t last_batch_ = 0;
  int64_t step_id_ = 0;
};

}  // namespace somnus
