// Decode graphs count as used memory: a worker on a GPU sizes the KV cache while the graphs exist.
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "absl/strings/str_replace.h"
#include "absl/synchronization/notification.h"
#include "tests/cuda/gpu_worker_parts.h"
#include "tests/fakes/temp_dir.h"
#include "worker/worker.h"
#ifdef SOMNUS_CUDA_EMULATOR
#include "tests/cuda/emulator_util.h"
#endif

namespace somnus::cuda_test {
namespace {

constexpr int64_t kMib = 1 << 20;

WorkerOptions Options() {
  WorkerOptions options;
  options.device = DeviceKind::kCuda;
  options.num_threads = 1;
  return options;
}

// Run options that LoadModel carries.
struct RunOptions {
  double memory_utilization = 0;
  bool enforce_eager = false;
  std::vector<int32_t> graph_sizes;
  int64_t device_chunk_bytes = 0;
  std::string model = "tests/data/tiny/llama-uneven";
  v1::LoadFormat load_format = v1::LOAD_FORMAT_AUTO;
};

constexpr int kGraphs = 3;  // of 1, 2 and 4 sequences

// The reply of a load, and the measurement after the load.
struct LoadedModel {
  int64_t kv_block_bytes = 0;
  v1::ProfileResponse memory;
};

absl::StatusOr<LoadedModel> Load(Worker& worker, const RunOptions& options) {
  v1::LoadModelRequest request;
  request.set_model_path(options.model);
  request.set_load_format(options.load_format);
  request.set_device_chunk_bytes(options.device_chunk_bytes);
  request.set_dtype(v1::DTYPE_FLOAT32);
  request.set_kv_cache_dtype(v1::DTYPE_FLOAT32);
  request.mutable_parallel()->set_world_size(1);
  request.set_max_num_seqs(4);
  request.set_max_num_batched_tokens(32);
  request.set_max_model_len(64);
  request.set_block_size(16);
  request.set_memory_utilization(options.memory_utilization);
  request.set_enforce_eager(options.enforce_eager);
  request.mutable_graph_sizes()->Add(options.graph_sizes.begin(), options.graph_sizes.end());
  request.set_group_epoch(1);
  request.set_weights_version(1);
  RETURN_IF_ERROR(worker.Fence(1, absl::Seconds(60), [] {}).status());
  ASSIGN_OR_RETURN(const v1::LoadModelEvent event, worker.LoadModel(request, [](int64_t, int64_t) {}));
  v1::JoinGroupRequest join;
  join.mutable_parallel()->set_world_size(1);
  join.set_group_epoch(1);
  RETURN_IF_ERROR(worker.JoinGroup(join));
  v1::ProfileRequest profile;
  profile.set_group_epoch(1);
  ASSIGN_OR_RETURN(const v1::ProfileResponse memory, worker.Profile(profile));
  return LoadedModel{event.kv_block_bytes(), memory};
}

absl::StatusOr<int64_t> Allocate(Worker& worker, int64_t num_blocks) {
  v1::AllocateKvCacheRequest request;
  request.set_group_epoch(1);
  v1::KvCacheConfig* config = request.mutable_kv_cache();
  config->set_block_size(16);
  config->set_dtype(v1::DTYPE_FLOAT32);
  config->set_num_blocks(static_cast<int32_t>(num_blocks));
  return worker.AllocateKvCache(request);
}

// The error of a step of one token.
std::string StepError(Worker& worker) {
  v1::StepRequest request;
  request.set_step_id(1);
  request.set_group_epoch(1);
  v1::NewSequence* sequence = request.add_new_sequences();
  sequence->add_token_ids(3);
  sequence->set_num_prompt_tokens(1);
  sequence->add_block_ids(1);
  *request.add_samplings() = GreedySampling();
  request.add_sequences()->set_num_tokens(1);
  v1::StepReply reply;
  absl::Notification done;
  worker.ExecuteAsync(request, [&](const Worker::AwaitReply& step) {
    reply = step();
    done.Notify();
  });
  done.WaitForNotification();
  return reply.error_message();
}

#ifdef SOMNUS_CUDA_EMULATOR
// A device of that size, on which each graph takes graph_bytes.
cuda_emulated::WithOptions Small(int64_t device_bytes, int64_t graph_bytes) {
  return cuda_emulated::WithOptions([=](cuda_emulated::emulator::Options& options) {
    options.device_bytes = device_bytes;
    options.graph_bytes = graph_bytes;
  });
}

#endif

TEST(GraphMemory, TheSizedCacheAndTheGraphsFit) {
  SOMNUS_SKIP_WITHOUT_GPU(MakeCudaDevice());
#ifdef SOMNUS_CUDA_EMULATOR
  const auto small = Small(256 * kMib, kMib);
#endif
  Worker worker(Options(), GpuParts());
  const auto model = Load(worker, {.memory_utilization = 0.1});
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_GT(model->memory.graph_capture_us(), 0);
  EXPECT_EQ(worker.GetStatus().graph_bytes(), model->memory.graph_bytes());
  const auto bytes =
      Allocate(worker, model->memory.available_kv_cache_memory_bytes() / model->kv_block_bytes);
  ASSERT_TRUE(bytes.ok()) << bytes.status();
  EXPECT_EQ(StepError(worker), "");
}

#ifdef SOMNUS_CUDA_EMULATOR

int64_t Available() { return GetEmulatedDeviceMemory().available; }

TEST(GraphMemory, WhatGraphsTakeTheCacheDoesNotGet) {
  const auto small = Small(64 * kMib, 4 * kMib);
  int64_t eager_bytes = 0;
  {
    Worker eager(Options(), GpuParts());
    const auto model = Load(eager, {.memory_utilization = 0.75, .enforce_eager = true});
    ASSERT_TRUE(model.ok()) << model.status();
    EXPECT_EQ(model->memory.graph_bytes(), 0);
    EXPECT_EQ(model->memory.graph_capture_us(), 0);
    eager_bytes = model->memory.available_kv_cache_memory_bytes();
  }
  Worker worker(Options(), GpuParts());
  const auto model = Load(worker, {.memory_utilization = 0.75});
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(model->memory.graph_bytes(), kGraphs * 4 * kMib);
  EXPECT_EQ(model->memory.available_kv_cache_memory_bytes(), eager_bytes - kGraphs * 4 * kMib);
  ASSERT_TRUE(Allocate(worker, model->memory.available_kv_cache_memory_bytes() / model->kv_block_bytes).ok());
  EXPECT_GE(Available(), 16 * kMib) << "what --memory-utilization leaves alone";
  EXPECT_LT(Available(), 16 * kMib + 4 * kMib) << "graphs were counted twice";
  EXPECT_EQ(StepError(worker), "");
}

// The graphs that sized the cache are destroyed before the graphs for serving are captured.
TEST(GraphMemory, EvenAllOfTheDeviceIsEnough) {
  const auto small = Small(48 * kMib, 4 * kMib);
  Worker worker(Options(), GpuParts());
  const auto model = Load(worker, {.memory_utilization = 1});
  ASSERT_TRUE(model.ok()) << model.status();
  const auto bytes =
      Allocate(worker, model->memory.available_kv_cache_memory_bytes() / model->kv_block_bytes);
  ASSERT_TRUE(bytes.ok()) << bytes.status();
  EXPECT_LT(Available(), 4 * kMib);
  EXPECT_EQ(StepError(worker), "");
}

TEST(GraphMemory, ADeviceWithoutRoomForThemSaysWhatToDo) {
  const auto small = Small(64 * kMib, 32 * kMib);
  const int64_t before = Available();
  {
    Worker worker(Options(), GpuParts());
    const absl::Status status = Load(worker, {.memory_utilization = 1}).status();
    EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
    for (const char* part :
         {"the decode graph of 2 sequences, after 1 others", "--graph-sizes", "--enforce-eager"})
      EXPECT_NE(status.message().find(part), std::string::npos) << status;
  }
  EXPECT_EQ(Available(), before) << "memory was leaked";
  Worker worker(Options(), GpuParts());
  const auto model = Load(worker, {.memory_utilization = 1, .graph_sizes = {1}});
  ASSERT_TRUE(model.ok()) << "as it said: " << model.status();
  EXPECT_EQ(model->memory.graph_bytes(), 32 * kMib);
}

TEST(GraphMemory, GraphsThatLeaveNothingForTheCache) {
  const auto small = Small(64 * kMib, 8 * kMib);
  Worker worker(Options(), GpuParts());
  const auto model = Load(worker, {.memory_utilization = 0.4});
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(model->memory.graph_bytes(), kGraphs * 8 * kMib);
  EXPECT_EQ(model->memory.available_kv_cache_memory_bytes(), 0);
}

// A cache of somebody's own choice.
TEST(GraphMemory, ACacheThatLeavesNoRoomForThemIsRefusedAndASmallerOneTaken) {
  const auto small = Small(64 * kMib, 4 * kMib);
  Worker worker(Options(), GpuParts());
  const auto model = Load(worker, {.memory_utilization = 1});
  ASSERT_TRUE(model.ok()) << model.status();
  const int64_t too_many =
      (model->memory.available_kv_cache_memory_bytes() + 6 * kMib) / model->kv_block_bytes;
  const absl::Status status = Allocate(worker, too_many).status();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_EQ(worker.GetStatus().state(), "loaded");
  const auto bytes =
      Allocate(worker, model->memory.available_kv_cache_memory_bytes() / model->kv_block_bytes);
  ASSERT_TRUE(bytes.ok()) << bytes.status();
  EXPECT_EQ(StepError(worker), "");
}

// Counts the chunks that are created, and the ranges of chunks that are opened.
class CountedMemory : public EmulatedVmmDriver {
 public:
  struct Calls {
    int64_t creates = 0, accesses = 0;
  };
  CountedMemory(int64_t chunk_bytes, Calls* calls) : EmulatedVmmDriver(chunk_bytes), calls_(*calls) {}

  absl::Status CreateAll(absl::Span<const int64_t> sizes, std::vector<Handle>* handles) override {
    calls_.creates += static_cast<int64_t>(sizes.size());
    return EmulatedVmmDriver::CreateAll(sizes, handles);
  }
  absl::Status SetAccess(void* address, int64_t bytes) override {
    ++calls_.accesses;
    return EmulatedVmmDriver::SetAccess(address, bytes);
  }

 private:
  Calls& calls_;
};

// A model whose weights are some MiB: llama-uneven's configuration with wide layers.
std::string WideModel(const TempDir& directory) {
  std::ifstream narrow("tests/data/tiny/llama-uneven/config.json");
  std::string config((std::istreambuf_iterator<char>(narrow)), {});
  EXPECT_EQ(absl::StrReplaceAll({{"\"intermediate_size\": 136", "\"intermediate_size\": 2048"}}, &config), 1);
  std::ofstream(directory.path() + "/config.json") << config;
  return directory.path();
}

absl::Status Transit(Worker& worker, uint64_t id, int sleep_level, const std::string& tag) {
  v1::PrepareRequest prepare;
  prepare.set_group_epoch(1);
  prepare.set_operation_id(id);
  prepare.mutable_transition()->set_sleep_level(sleep_level);
  prepare.mutable_transition()->add_tags(tag);
  RETURN_IF_ERROR(worker.Prepare(prepare));
  v1::CommitRequest commit;
  commit.set_group_epoch(1);
  commit.set_prepare_operation_id(id);
  return worker.Commit(commit).status();
}

// The size is an option of the load; one range is opened by one call, however many chunks the range has.
TEST(GraphMemory, ChunksHaveTheSizeThatTheLoadNames) {
  const auto small = Small(256 * kMib, kMib);
  const TempDir directory;
  const std::string model = WideModel(directory);
  for (const int64_t chunk : {2 * kMib, 4 * kMib, 1024 * kMib}) {
    CountedMemory::Calls calls;
    WorkerParts parts = GpuParts();
    parts.open_memory = [&calls](const WorkerOptions& options,
                                 int) -> absl::StatusOr<std::unique_ptr<VmmDriver>> {
      return std::make_unique<CountedMemory>(options.device_chunk_bytes, &calls);
    };
    Worker worker(Options(), parts);
    const auto loaded = Load(worker, {.memory_utilization = 0.5,
                                      .enforce_eager = true,
                                      .device_chunk_bytes = chunk,
                                      .model = model,
                                      .load_format = v1::LOAD_FORMAT_DUMMY});
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    ASSERT_TRUE(Allocate(worker, 8).ok());
    const v1::WorkerStatusResponse awake = worker.GetStatus();
    uint64_t id = 0;
    for (const std::string tag : {"weights", "workspace"}) {
      const int64_t bytes = awake.bytes_by_tag().at(tag);
      ASSERT_EQ(Transit(worker, ++id, 2, tag), absl::OkStatus());
      calls = {};
      ASSERT_EQ(Transit(worker, ++id, 0, tag), absl::OkStatus());
      EXPECT_EQ(calls.creates, (bytes + chunk - 1) / chunk) << tag << " in chunks of " << chunk;
      EXPECT_EQ(calls.accesses, 1) << tag;
    }
    EXPECT_GE(awake.bytes_by_tag().at("weights"), 4 * kMib) << "several chunks of 2 MiB";
  }
}

#endif

}  // namespace
}  // namespace somnus::cuda_test
