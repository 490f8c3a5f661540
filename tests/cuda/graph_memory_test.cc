// Decode graphs count as used memory: a worker on a GPU sizes its KV cache while they exist.
#include <gtest/gtest.h>

#include "absl/synchronization/notification.h"
#include "tests/cuda/gpu_worker_parts.h"
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
};

constexpr int kGraphs = 3;  // of 1, 2 and 4 sequences

// What a load tells, and the measurement after it.
struct LoadedModel {
  int64_t kv_block_bytes = 0;
  v1::ProfileResponse memory;
};

absl::StatusOr<LoadedModel> Load(Worker& worker, const RunOptions& options) {
  v1::LoadModelRequest request;
  request.set_model_path("tests/data/tiny/llama-uneven");
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

// The graphs that sized the cache are destroyed before those for serving are captured.
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

#endif

}  // namespace
}  // namespace somnus::cuda_test
