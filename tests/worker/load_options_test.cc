// A worker's options from LoadModelRequest's run options and the worker's own command line.

#include "worker/load_options.h"

#include <gtest/gtest.h>

#include "tests/worker/fake_parts.h"

namespace somnus {
namespace {

TEST(LoadOptionsTest, EveryRunOptionArrives) {
  v1::LoadModelRequest request = LoadRequest();
  request.set_num_threads(3);
  request.set_numa("2");
  request.set_device_chunk_bytes(64 << 20);
  request.set_memory_utilization(0.25);
  request.set_enforce_eager(true);
  request.set_dequantize(true);
  request.set_expert_parallel(true);
  request.set_expert_load(true);
  request.set_quantization(v1::WEIGHT_QUANTIZATION_INT4);
  for (const int32_t size : {1, 8}) request.add_graph_sizes(size);
  request.set_max_tune_time_us(1500);
  request.set_backup(v1::BACKUP_POLICY_FILE);
  request.set_spill_dir("/disk");
  request.set_kv_cache_dtype(v1::DTYPE_FLOAT8_E4M3);
  const auto options = MakeLoadOptions(request, {});
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->placement.num_threads, 3);
  EXPECT_EQ(options->placement.numa.kind, NumaOption::Kind::kNode);
  EXPECT_EQ(options->placement.numa.node, 2);
  EXPECT_EQ(options->device_chunk_bytes, 64 << 20);
  EXPECT_EQ(options->backup, BackupPolicy::kFile);
  EXPECT_EQ(options->spill_dir, "/disk");
  EXPECT_FALSE(options->checkpoint_is_backup);
  EXPECT_EQ(options->memory_utilization, 0.25);
  EXPECT_TRUE(options->runner.enforce_eager);
  EXPECT_TRUE(options->runner.dequantize);
  EXPECT_TRUE(options->runner.expert_parallel);
  EXPECT_TRUE(options->runner.expert_load);
  EXPECT_EQ(options->runner.quantize, DataType::kQ4_1);
  EXPECT_EQ(options->runner.graph_sizes, (std::vector<int32_t>{1, 8}));
  EXPECT_EQ(options->runner.max_tune_time, absl::Microseconds(1500));
  EXPECT_EQ(options->runner.dtype, DataType::kF32);
  EXPECT_EQ(options->runner.kv_cache_dtype, DataType::kF8E4M3);
  EXPECT_EQ(options->runner.max_num_seqs, 4);
  EXPECT_EQ(options->runner.max_num_batched_tokens, 64);
  EXPECT_EQ(options->runner.max_model_len, 128);
  EXPECT_EQ(options->runner.block_size, 16);
}

TEST(LoadOptionsTest, ARankKnowsItsStage) {
  v1::LoadModelRequest request = LoadRequest();
  request.mutable_parallel()->set_world_size(6);
  request.mutable_parallel()->set_rank(3);
  request.mutable_parallel()->set_num_stages(3);
  for (const int32_t layers : {4, 5, 6}) request.mutable_parallel()->add_stage_layers(layers);
  const auto options = MakeLoadOptions(request, {});
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->runner.pipeline.stage, 1);
  EXPECT_EQ(options->runner.pipeline.num_stages, 3);
  EXPECT_EQ(options->runner.pipeline.stage_layers, (std::vector<int32_t>{4, 5, 6}));
  for (const int32_t num_stages : {-1, 4, 7}) {
    request.mutable_parallel()->set_num_stages(num_stages);
    const absl::Status status = MakeLoadOptions(request, {}).status();
    EXPECT_EQ(status.message().substr(0, 11), "num_stages:") << status;
  }
}

TEST(LoadOptionsTest, EveryTypeOfACache) {
  v1::LoadModelRequest request = LoadRequest();
  for (const auto& [dtype, type] : {std::pair{v1::DTYPE_FLOAT32, DataType::kF32},
                                    {v1::DTYPE_BFLOAT16, DataType::kBF16},
                                    {v1::DTYPE_FLOAT16, DataType::kF16},
                                    {v1::DTYPE_FLOAT8_E4M3, DataType::kF8E4M3},
                                    {v1::DTYPE_INT8, DataType::kI8}}) {
    request.set_kv_cache_dtype(dtype);
    const auto options = MakeLoadOptions(request, {});
    ASSERT_TRUE(options.ok()) << options.status();
    EXPECT_EQ(options->runner.kv_cache_dtype, type);
  }
  request.set_kv_cache_dtype(v1::DTYPE_BFLOAT16);
  request.set_dtype(v1::DTYPE_INT8);
  EXPECT_EQ(MakeLoadOptions(request, {}).status().message(), "dtype: the coordinator must resolve it");
}

TEST(LoadOptionsTest, DefaultsGoByTheDeviceAndTheHost) {
  v1::LoadModelRequest request = LoadRequest(1, 3);
  auto options = MakeLoadOptions(request, {});
  ASSERT_TRUE(options.ok());
  EXPECT_EQ(options->ranks_on_host, 3) << "nobody said which hosts there are";
  EXPECT_EQ(options->placement.ranks_on_host, 3);
  EXPECT_EQ(options->placement.index_on_host, 1);
  EXPECT_EQ(options->placement.num_threads, 0) << "the ranks divide the CPUs";
  EXPECT_EQ(options->placement.numa.kind, NumaOption::Kind::kAuto);
  EXPECT_EQ(options->memory_utilization, 0.5);
  EXPECT_EQ(options->device_chunk_bytes, 1 << 30);
  EXPECT_EQ(options->backup, BackupPolicy::kRelease);
  EXPECT_FALSE(options->runner.enforce_eager);
  EXPECT_FALSE(options->runner.dequantize);
  EXPECT_FALSE(options->runner.quantize.has_value());
  for (const char* host : {"a", "b", "a"}) request.mutable_parallel()->add_rank_hosts(host);
  options = MakeLoadOptions(request, {.device = DeviceKind::kCuda});
  ASSERT_TRUE(options.ok());
  EXPECT_EQ(options->ranks_on_host, 1);
  EXPECT_EQ(options->placement.device, DeviceKind::kCuda);
  EXPECT_EQ(options->memory_utilization, 0.9);
  EXPECT_EQ(options->backup, BackupPolicy::kRetain);
  request.mutable_parallel()->set_rank(2);
  EXPECT_EQ(MakeLoadOptions(request, {})->ranks_on_host, 2);
  EXPECT_EQ(MakeLoadOptions(request, {})->placement.index_on_host, 1);
  request.set_groups_on_host(3);
  request.set_group_on_host(2);
  EXPECT_EQ(MakeLoadOptions(request, {})->ranks_on_host, 6) << "other groups are on the host, too";
  EXPECT_EQ(MakeLoadOptions(request, {})->placement.index_on_host, 5);
  request.set_group_on_host(3);
  EXPECT_FALSE(MakeLoadOptions(request, {}).ok());
  request.set_group_on_host(0);
  request.set_groups_on_host(-1);
  EXPECT_FALSE(MakeLoadOptions(request, {}).ok());
}

TEST(LoadOptionsTest, RanksWithCpusOfTheirOwnNeedNotDivideThem) {
  v1::LoadModelRequest request = LoadRequest(2, 5);
  for (const char* host : {"a", "a", "a", "a", "b"}) request.mutable_parallel()->add_rank_hosts(host);
  // Beside this rank (4-7): a rank that shares some of the CPUs, a rank with different CPUs, a rank whose
  // CPUs are unknown, and a rank on another host.
  for (const char* cpus : {"0-5", "8-11", "4-7", "", "4-7"}) request.mutable_parallel()->add_rank_cpus(cpus);
  const auto options = MakeLoadOptions(request, {});
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->ranks_on_host, 4) << "they share the host's memory";
  EXPECT_EQ(options->placement.ranks_on_host, 3);
  EXPECT_EQ(options->placement.index_on_host, 1);
  EXPECT_EQ(options->placement.other_ranks, 1);
  request.mutable_parallel()->mutable_rank_cpus()->RemoveLast();
  EXPECT_EQ(MakeLoadOptions(request, {}).status().message(), "rank_cpus: 4 lists of 5 ranks");
}

TEST(LoadOptionsTest, WhatTheWorkersOwnCommandLineSaysOfItsCpusComesFirst) {
  v1::LoadModelRequest request = LoadRequest();
  request.set_num_threads(3);
  request.set_numa("1");
  const PlacementRequest placement =
      MakeLoadOptions(request, {.num_threads = 2, .first_cpu = 4, .numa = "off"})->placement;
  EXPECT_EQ(placement.num_threads, 2);
  EXPECT_EQ(placement.first_cpu, 4);
  EXPECT_EQ(placement.numa.kind, NumaOption::Kind::kOff);
}

TEST(LoadOptionsTest, TheDeviceIsTheCoordinatorsUnlessTheWorkerWasToldAnother) {
  v1::LoadModelRequest request = LoadRequest();
  EXPECT_EQ(MakeLoadOptions(request, {.device = DeviceKind::kCuda})->device, DeviceKind::kCuda);
  request.set_device(v1::DEVICE_TYPE_CPU);
  EXPECT_EQ(MakeLoadOptions(request, {.device = DeviceKind::kCuda})->device, DeviceKind::kCpu);
  absl::Status status =
      MakeLoadOptions(request, {.device = DeviceKind::kCuda, .device_is_fixed = true}).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status));
  EXPECT_EQ(status.message(),
            "device: the coordinator's --device is cpu, this worker was started with --device=cuda");
  request.set_device(v1::DEVICE_TYPE_CUDA);
  status = MakeLoadOptions(request, {.device = DeviceKind::kCpu}).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status));
  EXPECT_EQ(status.message(), "device: the coordinator's --device is cuda, this worker has no GPU");
  EXPECT_TRUE(MakeLoadOptions(request, {.device = DeviceKind::kCuda, .device_is_fixed = true}).ok());
}

// An update's weights have a copy then, until the wake-up.
TEST(LoadOptionsTest, WithoutASpillDirTheCheckpointIsTheBackup) {
  v1::LoadModelRequest request = LoadRequest();
  request.set_backup(v1::BACKUP_POLICY_FILE);
  const auto options = MakeLoadOptions(request, {});
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_TRUE(options->checkpoint_is_backup);
  EXPECT_EQ(options->backup, BackupPolicy::kRelease);
  request.set_backup(v1::BACKUP_POLICY_RELEASE);
  EXPECT_FALSE(MakeLoadOptions(request, {})->checkpoint_is_backup);
}

TEST(LoadOptionsTest, ADraftModelIsReadAsTheModelIs) {
  v1::LoadModelRequest request = LoadRequest();
  EXPECT_EQ(MakeLoadOptions(request, {})->runner.num_speculative_tokens, 0);
  request.set_draft_model_path("/models/small");
  request.set_num_speculative_tokens(6);
  for (const v1::LoadFormat format : {v1::LOAD_FORMAT_AUTO, v1::LOAD_FORMAT_DUMMY}) {
    request.set_load_format(format);
    const auto options = MakeLoadOptions(request, {});
    ASSERT_TRUE(options.ok()) << options.status();
    EXPECT_EQ(options->runner.draft_model_path, "/models/small");
    EXPECT_EQ(options->runner.num_speculative_tokens, 6);
    EXPECT_EQ(options->runner.draft_format == LoadFormat::kDummy, format == v1::LOAD_FORMAT_DUMMY);
  }
}

TEST(LoadOptionsTest, WhatIsOutOfBoundsIsNamed) {
  const auto message = [](const std::function<void(v1::LoadModelRequest*)>& change) {
    v1::LoadModelRequest request = LoadRequest();
    change(&request);
    const absl::Status status = MakeLoadOptions(request, {}).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    return std::string(status.message());
  };
  EXPECT_EQ(message([](auto* r) { r->set_num_threads(-1); }), "num_threads: -1 is not from 0 to 1024");
  EXPECT_EQ(message([](auto* r) { r->set_numa("node1"); }),
            "numa: 'node1' is neither auto, off nor a NUMA node from 0 to 1023");
  EXPECT_EQ(message([](auto* r) { r->set_memory_utilization(1.5); }),
            "memory_utilization: 1.5 is not from 0 to 1");
  EXPECT_EQ(message([](auto* r) { r->add_graph_sizes(0); }), "graph_sizes: 0 is not from 1 to 4096");
  EXPECT_EQ(message([](auto* r) { r->set_spill_dir("/disk"); }), "spill_dir: is for BACKUP_POLICY_FILE");
  EXPECT_EQ(message([](auto* r) { r->set_device_chunk_bytes(-1); }), "device_chunk_bytes: -1 is negative");
  EXPECT_EQ(message([](auto* r) { r->set_max_tune_time_us(-1); }), "max_tune_time_us: -1 is negative");
  EXPECT_EQ(message([](auto* r) { r->set_num_speculative_tokens(1); }),
            "num_speculative_tokens: 1 is not from 0 to 0");
  EXPECT_EQ(message([](auto* r) { r->set_draft_model_path("/models/small"); }),
            "num_speculative_tokens: 0 is not from 1 to 64");
  EXPECT_EQ(message([](auto* r) { r->mutable_parallel()->set_rank(1); }), "parallel: rank 1 of 1");
  EXPECT_EQ(message([](auto* r) {
              for (const char* host : {"a", "b"}) r->mutable_parallel()->add_rank_hosts(host);
            }),
            "rank_hosts: 2 hosts of 1 ranks");
  EXPECT_EQ(message([](auto* r) { r->set_dtype(v1::DTYPE_UNSPECIFIED); }),
            "dtype: the coordinator must resolve it");
  EXPECT_EQ(message([](auto* r) { r->set_kv_cache_dtype(v1::DTYPE_UNSPECIFIED); }),
            "kv_cache_dtype: the coordinator must resolve it");
}

}  // namespace
}  // namespace somnus
