// A part that is made by the part's own defaults, as in tests and benchmarks, is the part that a server
// without flags has: each number has one default.
#include <gtest/gtest.h>

#include "coordinator/block_manager/kv_plan.h"
#include "coordinator/engine/engine_options.h"
#include "coordinator/flags/flags.h"
#include "coordinator/group/load_plan.h"
#include "coordinator/several_models/shared_devices_options.h"
#include "worker/load_options.h"

namespace somnus {
namespace {

Flags ServerWithoutFlags() {
  absl::StatusOr<Flags> flags = ParseFlags({"model"});
  EXPECT_TRUE(flags.ok()) << flags.status();
  return *std::move(flags);
}

TEST(DefaultsTest, AWorkersOptionsAreThoseOfAServerWithoutFlags) {
  ModelConfig config{.stored_type = StorageType::kBF16};
  const ModelRunnerOptions own;
  v1::LoadModelRequest request = MakeLoadRequest(ServerWithoutFlags(), config, own.max_model_len);
  request.mutable_parallel()->set_world_size(1);
  const absl::StatusOr<LoadOptions> loaded = MakeLoadOptions(request, WorkerOptions());
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  const ModelRunnerOptions& served = loaded->runner;
  EXPECT_EQ(served.dtype, own.dtype);
  EXPECT_EQ(served.dequantize, own.dequantize);
  EXPECT_EQ(served.quantize, own.quantize);
  EXPECT_EQ(served.max_num_seqs, own.max_num_seqs);
  EXPECT_EQ(served.max_num_batched_tokens, own.max_num_batched_tokens);
  EXPECT_EQ(served.block_size, own.block_size);
  EXPECT_EQ(served.graph_sizes, own.graph_sizes);
  EXPECT_EQ(served.enforce_eager, own.enforce_eager);
  EXPECT_EQ(served.max_tune_time, own.max_tune_time);
  EXPECT_EQ(served.num_speculative_tokens, own.num_speculative_tokens);
  EXPECT_EQ(LoadOptions().memory_utilization, DefaultMemoryUtilization(LoadOptions().device));
}

TEST(DefaultsTest, TheKvCacheIsPlannedForTheSequencesThatTheSchedulerRuns) {
  const SchedulerOptions scheduler = ServerWithoutFlags().engine.scheduler;
  const KvPlanRequest own;
  EXPECT_EQ(own.max_num_seqs, scheduler.max_num_seqs);
  EXPECT_EQ(own.block_size, scheduler.blocks.block_size);
  EXPECT_EQ(own.max_step_tokens, scheduler.max_num_batched_tokens);
  EXPECT_EQ(own.kv_cache_memory_bytes, ServerWithoutFlags().kv_cache_memory_bytes);
}

// Parsing no flag changes no default, and a number on which scheduler and worker must agree stands once.
TEST(DefaultsTest, AnEnginesOptionsAreThoseOfAServerWithoutFlags) {
  const EngineOptions served = ServerWithoutFlags().engine, own;
  EXPECT_EQ(served.scheduler.max_num_seqs, own.scheduler.max_num_seqs);
  EXPECT_EQ(served.scheduler.max_num_batched_tokens, own.scheduler.max_num_batched_tokens);
  EXPECT_EQ(served.queue.max_num_waiting, own.queue.max_num_waiting);
  EXPECT_EQ(served.stale_weights_timeout, own.stale_weights_timeout);
  EXPECT_EQ(served.hang_timeout, own.hang_timeout);
  EXPECT_EQ(own.scheduler.max_num_seqs, ModelRunnerOptions().max_num_seqs);
  EXPECT_EQ(own.scheduler.max_num_batched_tokens, ModelRunnerOptions().max_num_batched_tokens);
  EXPECT_EQ(own.scheduler.blocks.block_size, ModelRunnerOptions().block_size);
  EXPECT_EQ(own.step_timeout, WorkerOptions().step_timeout);
  EXPECT_EQ(ServerWithoutFlags().devices.operator_wait, SharedDevicesOptions().operator_wait);
}

}  // namespace
}  // namespace somnus
