#pragma once
// A model for tests of the worker: a byte pattern as weights, tokens that count up, and failures on demand.

#include <atomic>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "base/status_macros.h"
#include "checkpoint/family.h"
#include "checkpoint/memory_checkpoint.h"
#include "worker/worker.h"

namespace somnus {

// The state that the test reads and controls. Used by the runner thread and, between calls, by the test.
struct FakeModelControl {
  absl::Status open_error, load_error, execute_error, kv_error, reload_error, reset_error, epoch_error,
      profile_error;
  std::deque<absl::Status> wait_errors;  // of the next launched steps
  std::atomic<int> opens{0};
  int reloads = 0, resets = 0, epochs = 0;
  std::vector<std::vector<int32_t>> swaps;   // the device's blocks of each call of SwapBlocks
  std::function<void()> on_reload;           // in the middle of reading
  absl::Notification* hold_load = nullptr;   // a load waits for this
  absl::Notification* hold_reply = nullptr;  // the next step's reply waits for this
  std::atomic<int> steps{0};
  absl::Notification* hold_step = nullptr;  // the next step waits for this
  uint8_t* weights = nullptr;
  uint8_t* kv_cache = nullptr;
  absl::Status check_error, update_error, place_error;
  std::vector<FileRange> ranges;  // of the checkpoint's weights
  std::string changed_files;      // the end of the checkpoint's fingerprint
  std::atomic<int> touches{0};    // of the checkpoint's file: a touch changes the stamp
  absl::Status stamp_error;
  std::vector<std::string> placed;  // names of tensors that updates have brought
  std::shared_ptr<const AdapterReader> adapter_reader;
  std::vector<std::shared_ptr<const HostAdapter>> read_adapters;
  absl::Status adapters_error;  // of CheckAdapters
  std::atomic<int> num_placed{0};
};

// A model of eleven small tensors; the output matrix is the embedding, [8, 4].
inline ModelConfig FakeConfig() {
  ModelConfig config;
  config.name = "fake";
  config.family = FindFamily([](const Family& family) { return std::string(family.model_type) == "llama"; });
  config.vocab_size = 8;
  config.hidden_size = config.embedding_dim = config.intermediate_size = config.head_dim = 4;
  config.num_layers = config.num_heads = config.num_kv_heads = 1;
  config.max_position_embeddings = 128;
  config.tie_word_embeddings = true;
  return config;
}

// An update of that model: `fill` is called with the first number of each tensor that is whole.
inline std::unique_ptr<UpdatedTensors> FakeUpdate(FakeModelControl* control, bool needs_all,
                                                  std::function<void(uint8_t)> fill) {
  return std::make_unique<UpdatedTensors>(
      FakeConfig(), needs_all,
      [control, fill = std::move(fill)](const Checkpoint& checkpoint,
                                        const TensorInfo& tensor) -> absl::Status {
        RETURN_IF_ERROR(control->place_error);
        float first = 0;
        RETURN_IF_ERROR(checkpoint.ReadRows(tensor, 0, 1, 0, 1, &first));
        fill(static_cast<uint8_t>(first));
        control->placed.push_back(tensor.name);
        ++control->num_placed;
        return absl::OkStatus();
      });
}

// A chunk with a whole tensor, filled with one number.
inline v1::WeightChunk WholeTensor(const TensorInfo& tensor, float value) {
  v1::WeightChunk chunk;
  chunk.set_name(tensor.name);
  chunk.set_dtype(v1::WEIGHT_DTYPE_FLOAT32);
  size_t count = 1;
  for (const int64_t size : tensor.shape) {
    chunk.add_shape(size);
    count *= static_cast<size_t>(size);
  }
  const std::vector<float> values(count, value);
  chunk.set_data(values.data(), count * sizeof(float));
  return chunk;
}

// A chunk for each tensor of FakeConfig.
inline std::vector<v1::WeightChunk> AllTensors(float value) {
  const std::unique_ptr<MemoryCheckpoint> tensors = MemoryCheckpoint::Create(FakeConfig());
  std::vector<v1::WeightChunk> chunks;
  for (const TensorInfo* tensor : tensors->Tensors()) chunks.push_back(WholeTensor(*tensor, value));
  return chunks;
}

class FakeCheckpoint : public Checkpoint {
 public:
  const ModelConfig& config() const override { return config_; }
  absl::StatusOr<TokenizerData> ReadTokenizer() const override { return absl::UnimplementedError("fake"); }
  const TensorInfo* Find(absl::string_view) const override { return nullptr; }
  std::vector<const TensorInfo*> Tensors() const override { return {}; }
  absl::Status ReadRows(const TensorInfo&, int64_t, int64_t, int64_t, int64_t, float*) const override {
    return absl::UnimplementedError("fake");
  }
  absl::Status ReadStoredRows(const TensorInfo&, int64_t, int64_t, int64_t, int64_t, void*) const override {
    return absl::UnimplementedError("fake");
  }

 private:
  ModelConfig config_;
};

// A step with a known reply.
class FinishedStep : public PendingStep {
 public:
  explicit FinishedStep(absl::StatusOr<v1::StepReply> reply, absl::Notification* hold = nullptr)
      : reply_(std::move(reply)), hold_(hold) {}
  absl::StatusOr<v1::StepReply> Wait() override {
    if (hold_ != nullptr) hold_->WaitForNotification();
    return std::move(reply_);
  }

 private:
  absl::StatusOr<v1::StepReply> reply_;
  absl::Notification* const hold_;
};

class FakeRunner : public ModelRunner {
 public:
  static constexpr int64_t kBytes = 4 << 20;

  FakeRunner(FakeModelControl* control, SleepableAllocator* allocator, Communicator* communicator)
      : control_(control), allocator_(allocator), communicator_(communicator) {}
  ~FakeRunner() override {
    for (void* data : {weights_, workspace_, kv_cache_}) {
      if (data != nullptr) allocator_->Free(data).IgnoreError();
    }
  }

  absl::Status Init(const Progress& progress, bool reads_weights) {
    weights_ = allocator_->Allocate("weights", kBytes).value();
    workspace_ = allocator_->Allocate("workspace", kBytes).value();
    control_->weights = static_cast<uint8_t*>(weights_);
    for (int i = 1; i <= 4; ++i) progress(i * kBytes / 4, kBytes);
    if (control_->hold_load != nullptr) control_->hold_load->WaitForNotification();
    if (reads_weights) memset(weights_, 7, kBytes);
    return control_->load_error;
  }

  int64_t kv_block_bytes() const override { return 1 << 16; }
  std::string weight_types() const override { return "float32 0.5 MiB"; }
  absl::Status Profile() override { return control_->profile_error; }
  absl::StatusOr<GraphReport> ProfileGraphs() override { return GraphReport(); }
  absl::Status AllocateKvCache(int32_t num_blocks, int32_t num_mapped_blocks, bool) override {
    if (!control_->kv_error.ok()) return control_->kv_error;
    absl::StatusOr<void*> data = allocator_->AllocateRows("kv_cache", num_blocks * kv_block_bytes(), 1,
                                                          num_mapped_blocks * kv_block_bytes());
    if (!data.ok()) return data.status();
    kv_cache_ = *data;
    control_->kv_cache = static_cast<uint8_t*>(kv_cache_);
    return absl::OkStatus();
  }
  absl::Status ResizeKvCache(int32_t num_mapped_blocks) override {
    if (!control_->kv_error.ok()) return control_->kv_error;
    return allocator_->Resize(kv_cache_, num_mapped_blocks * kv_block_bytes());
  }
  absl::Status SwapBlocks(SwapDirection direction, const KvHostPool& pool,
                          absl::Span<const BlockSwap> swaps) override {
    for (const BlockSwap& swap : swaps) {
      char* const cached = static_cast<char*>(kv_cache_) + swap.device_block * kv_block_bytes();
      char* const pooled = static_cast<char*>(pool.data) + swap.host_block * kv_block_bytes();
      const bool to_host = direction == SwapDirection::kToHost;
      memcpy(to_host ? pooled : cached, to_host ? cached : pooled, kv_block_bytes());
    }
    return absl::OkStatus();
  }
  absl::Status BeginEpoch() override {
    ++control_->epochs;
    return control_->epoch_error;
  }
  absl::StatusOr<std::unique_ptr<PendingStep>> Launch(const v1::StepRequest& request) override {
    if (control_->hold_step != nullptr) std::exchange(control_->hold_step, nullptr)->WaitForNotification();
    if (!control_->execute_error.ok()) return control_->execute_error;
    ++control_->steps;
    if (!control_->wait_errors.empty()) {
      const absl::Status error = control_->wait_errors.front();
      control_->wait_errors.pop_front();
      return std::make_unique<FinishedStep>(error);
    }
    float one = 1;
    if (absl::Status status = communicator_->AllReduceSum(&one, 1, DataType::kF32); !status.ok())
      return status;
    memset(kv_cache_, 1, 64);
    v1::StepReply reply;
    reply.add_tokens()->set_token_id(static_cast<int32_t>(request.step_id()) +
                                     static_cast<uint8_t*>(weights_)[kBytes - 1]);
    return std::make_unique<FinishedStep>(std::move(reply), std::exchange(control_->hold_reply, nullptr));
  }
  // Weights that are damaged anywhere change the fingerprint.
  absl::StatusOr<uint64_t> SelfCheck() override {
    RETURN_IF_ERROR(control_->execute_error);
    float one = 1;
    RETURN_IF_ERROR(communicator_->AllReduceSum(&one, 1, DataType::kF32));
    const std::string_view bytes(static_cast<const char*>(weights_), kBytes);
    return communicator_->rank() == 0 ? std::hash<std::string_view>()(bytes) : 0;
  }
  std::vector<WeightPiece> weight_pieces() const override { return {{"all", weights_, kBytes}}; }
  absl::Status CheckReload(const Checkpoint&) const override { return control_->check_error; }
  absl::StatusOr<std::vector<FileRange>> WeightRanges(const Checkpoint&) const override {
    return control_->ranges;
  }
  absl::Status ReloadWeights(const Checkpoint&, const Progress&) override {
    ++control_->reloads;
    allocator_->DropBackups("weights");
    memset(weights_, 7, kBytes / 2);
    if (control_->on_reload) control_->on_reload();
    if (!control_->reload_error.ok()) return control_->reload_error;
    memset(weights_, 7, kBytes);
    return absl::OkStatus();
  }
  absl::StatusOr<std::unique_ptr<UpdatedTensors>> BeginWeightUpdate(bool needs_all) override {
    if (!control_->update_error.ok()) return control_->update_error;
    allocator_->DropBackups("weights");
    return FakeUpdate(control_, needs_all, [this](uint8_t value) { memset(weights_, value, kBytes); });
  }
  std::shared_ptr<const AdapterReader> adapter_reader() const override { return control_->adapter_reader; }
  void AddReadAdapters(std::vector<std::shared_ptr<const HostAdapter>> adapters) override {
    control_->read_adapters = std::move(adapters);
  }
  absl::Status CheckAdapters(absl::Span<const v1::WorkerAdapter>) const override {
    return control_->adapters_error;
  }
  int64_t adapter_host_bytes() const override { return static_cast<int64_t>(control_->read_adapters.size()); }
  absl::Status ResetAfterWake() override {
    ++control_->resets;
    return control_->reset_error;
  }

 private:
  FakeModelControl* const control_;
  SleepableAllocator* const allocator_;
  Communicator* const communicator_;
  void *weights_ = nullptr, *workspace_ = nullptr, *kv_cache_ = nullptr;
};

inline WorkerParts FakeParts(FakeModelControl* control) {
  WorkerParts parts = RealWorkerParts();
  // Tests have all CPUs of the process, also on a host with several nodes, or with several threads of a core.
  parts.numa_nodes = nullptr;
  parts.cpu_topology = nullptr;
  parts.open_checkpoint = [control](const std::string&,
                                    LoadFormat) -> absl::StatusOr<std::unique_ptr<Checkpoint>> {
    ++control->opens;
    if (!control->open_error.ok()) return control->open_error;
    return std::make_unique<FakeCheckpoint>();
  };
  parts.fingerprint = [control](const std::string& path, LoadFormat) -> absl::StatusOr<std::string> {
    return absl::StrCat("fingerprint of ", path, control->changed_files);
  };
  parts.stamp = [control](const std::string& path, LoadFormat) -> absl::StatusOr<CheckpointStamp> {
    RETURN_IF_ERROR(control->stamp_error);
    return CheckpointStamp{{{.name = path, .modified_ns = control->touches.load()}}};
  };
  parts.load_runner =
      [control](const Checkpoint&, const ModelRunnerOptions& options, Device*, Communicator* communicator,
                SleepableAllocator* allocator,
                const ModelRunner::Progress& progress) -> absl::StatusOr<std::unique_ptr<ModelRunner>> {
    auto runner = std::make_unique<FakeRunner>(control, allocator, communicator);
    if (absl::Status status = runner->Init(progress, options.read_weights); !status.ok()) return status;
    return runner;
  };
  return parts;
}

inline v1::LoadModelRequest LoadRequest(int rank = 0, int world_size = 1) {
  v1::LoadModelRequest request;
  request.set_model_path("fake");
  request.set_dtype(v1::DTYPE_FLOAT32);
  request.set_kv_cache_dtype(v1::DTYPE_FLOAT32);
  request.mutable_parallel()->set_rank(rank);
  request.mutable_parallel()->set_world_size(world_size);
  request.set_max_num_seqs(4);
  request.set_max_num_batched_tokens(64);
  request.set_max_model_len(128);
  request.set_block_size(16);
  request.set_group_epoch(1);
  request.set_weights_version(1);
  return request;
}

inline v1::JoinGroupRequest JoinRequest(int rank = 0, int world_size = 1, const std::string& group = "",
                                        int64_t epoch = 1) {
  v1::JoinGroupRequest request;
  request.mutable_parallel()->set_rank(rank);
  request.mutable_parallel()->set_world_size(world_size);
  request.mutable_parallel()->set_group_name(group);
  request.set_group_epoch(epoch);
  return request;
}

inline v1::KvCacheConfig KvConfig(int num_blocks = 64) {
  v1::KvCacheConfig config;
  config.set_block_size(16);
  config.set_num_blocks(num_blocks);
  config.set_dtype(v1::DTYPE_FLOAT32);
  return config;
}

inline v1::AllocateKvCacheRequest KvRequest(const v1::KvCacheConfig& config = KvConfig(), int64_t epoch = 1,
                                            bool defer_graphs = false) {
  v1::AllocateKvCacheRequest request;
  *request.mutable_kv_cache() = config;
  request.set_group_epoch(epoch);
  request.set_defer_graphs(defer_graphs);
  return request;
}

// `level` 0: a wake-up; no tags: all.
inline v1::Transition TransitionOf(int level, const std::vector<std::string>& tags = {}) {
  v1::Transition transition;
  transition.set_sleep_level(level);
  transition.mutable_tags()->Add(tags.begin(), tags.end());
  return transition;
}

inline v1::PrepareRequest PrepareOf(const v1::Transition& transition, uint64_t id, int64_t epoch = 1) {
  v1::PrepareRequest request;
  request.set_group_epoch(epoch);
  request.set_operation_id(id);
  *request.mutable_transition() = transition;
  return request;
}

inline v1::CommitRequest CommitOf(uint64_t id, int64_t epoch = 1) {
  v1::CommitRequest request;
  request.set_group_epoch(epoch);
  request.set_prepare_operation_id(id);
  return request;
}

inline v1::AbortRequest AbortOf(uint64_t id, int64_t epoch = 1) {
  v1::AbortRequest request;
  request.set_group_epoch(epoch);
  request.set_prepare_operation_id(id);
  return request;
}

// Both phases of a transition, with an id that is later than of any earlier transition of the process.
inline absl::StatusOr<v1::CommitResponse> RunTransition(Worker& worker, const v1::Transition& transition,
                                                        int64_t epoch = 1) {
  static std::atomic<uint64_t> last_id{1000};
  const uint64_t id = ++last_id;
  RETURN_IF_ERROR(worker.Prepare(PrepareOf(transition, id, epoch)));
  return worker.Commit(CommitOf(id, epoch));
}

inline absl::StatusOr<v1::CommitResponse> Sleep(Worker& worker, int level, int64_t epoch = 1) {
  return RunTransition(worker, TransitionOf(level), epoch);
}

inline absl::StatusOr<v1::CommitResponse> WakeUp(Worker& worker, const std::vector<std::string>& tags = {},
                                                 int64_t epoch = 1) {
  return RunTransition(worker, TransitionOf(0, tags), epoch);
}

// Fence, with more patience than any test needs.
inline absl::StatusOr<v1::WorkerSnapshot> BeginEpoch(Worker& worker, int64_t epoch) {
  return worker.Fence(epoch, absl::Seconds(60), [] {});
}

// The way of all ranks from a new process to Awake in epoch 1.
inline absl::Status MakeAwake(Worker& worker, int rank = 0, int world_size = 1, const std::string& group = "",
                              const v1::KvCacheConfig& cache = KvConfig(),
                              v1::BackupPolicy backup = v1::BACKUP_POLICY_UNSPECIFIED) {
  RETURN_IF_ERROR(BeginEpoch(worker, 1).status());
  v1::LoadModelRequest load = LoadRequest(rank, world_size);
  load.set_backup(backup);
  RETURN_IF_ERROR(worker.LoadModel(load, [](int64_t, int64_t) {}).status());
  RETURN_IF_ERROR(worker.JoinGroup(JoinRequest(rank, world_size, group)));
  return worker.AllocateKvCache(KvRequest(cache)).status();
}

// A step's reply.
inline v1::StepReply RunStep(Worker& worker, const v1::StepRequest& request) {
  v1::StepReply reply;
  absl::Notification done;
  worker.ExecuteAsync(request, [&](const Worker::AwaitReply& step) {
    reply = step();
    done.Notify();
  });
  done.WaitForNotification();
  return reply;
}

inline v1::StepRequest EmptyStep(int64_t id, int64_t epoch = 1) {
  v1::StepRequest request;
  request.set_step_id(id);
  request.set_group_epoch(epoch);
  return request;
}

}  // namespace somnus
