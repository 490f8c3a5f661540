// Flags of the workers: where the workers run, how many a replica and a stage have, and in which types they
// compute.

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "coordinator/flags/flags.h"
#include "coordinator/flags/kv_cache_dtype.h"
#include "worker/worker_flags.h"

namespace somnus {
namespace {

TEST(GroupFlagsTest, HowWorkersRun) {
  const auto flags =
      ParseFlags({"m", "--workers=remote:2", "--device=cuda", "--threads-per-worker=3",
                  "--memory-utilization=0.7", "--enforce-eager", "--graph-sizes=1,8", "--max-tune-time=500ms",
                  "--batch-invariant", "--device-chunk-bytes=64MiB", "--backup=file", "--spill-dir=/disk",
                  "--load-format=dummy", "--dtype=half"});
  ASSERT_TRUE(flags.ok()) << flags.status();
  EXPECT_FALSE(flags->local_workers);
  EXPECT_EQ(flags->world_size, 2);
  EXPECT_EQ(flags->device, v1::DEVICE_TYPE_CUDA);
  EXPECT_EQ(flags->threads_per_worker, 3);
  EXPECT_EQ(flags->memory_utilization, 0.7);
  EXPECT_TRUE(flags->enforce_eager);
  EXPECT_EQ(flags->graph_sizes, (std::vector<int32_t>{1, 8}));
  EXPECT_EQ(flags->max_tune_time, absl::Milliseconds(500));
  EXPECT_TRUE(flags->engine.batch_invariant);
  EXPECT_EQ(flags->device_chunk_bytes, 64 << 20);
  EXPECT_EQ(flags->backup, v1::BACKUP_POLICY_FILE);
  EXPECT_EQ(flags->spill_dir, "/disk");
  EXPECT_EQ(flags->load_format, v1::LOAD_FORMAT_DUMMY);
  EXPECT_EQ(flags->dtype, v1::DTYPE_FLOAT16);
}

TEST(GroupFlagsTest, WorkersOfALauncher) {
  const Environment slurm = {{"SLURM_JOB_ID", "7"}, {"SLURM_JOB_NODELIST", "n[0-1]"}, {"SLURM_NTASKS", "4"}};
  auto flags = ParseFlags({"m", "--workers=auto"}, slurm);
  ASSERT_TRUE(flags.ok()) << flags.status();
  EXPECT_FALSE(flags->local_workers);
  EXPECT_EQ(flags->world_size, 4);
  EXPECT_EQ(flags->cluster_host, "0.0.0.0");
  EXPECT_EQ(flags->cluster_port, 20007);
  EXPECT_EQ(flags->discovered,
            "coordinator n0:20007 from SLURM_JOB_NODELIST, world size 4 from SLURM_NTASKS");

  // Flags go before the environment, and without auto nobody asks it.
  flags = ParseFlags({"m", "--workers=auto", "--cluster-port=0", "--cluster-host=10.0.0.1"}, slurm);
  ASSERT_TRUE(flags.ok()) << flags.status();
  EXPECT_EQ(flags->cluster_host, "10.0.0.1");
  EXPECT_EQ(flags->cluster_port, 0);
  EXPECT_EQ(flags->discovered, "world size 4 from SLURM_NTASKS");
  flags = ParseFlags({"m", "--workers=auto", "--workers=remote:3"}, {{"SOMNUS_RANK", "x"}});
  ASSERT_TRUE(flags.ok()) << flags.status();
  EXPECT_EQ(flags->world_size, 3);
  EXPECT_EQ(flags->cluster_host, "127.0.0.1");
  EXPECT_EQ(flags->cluster_port, 50052);
  EXPECT_EQ(flags->discovered, "");

  flags = ParseFlags({"m", "--workers=auto"},
                     {{"SOMNUS_WORLD_SIZE", "2"}, {"SOMNUS_COORDINATOR", "10.0.0.2:29400"}});
  ASSERT_TRUE(flags.ok()) << flags.status();
  EXPECT_EQ(flags->cluster_host, "10.0.0.2");
  EXPECT_EQ(flags->cluster_port, 29400);
}

TEST(GroupFlagsTest, AnEnvironmentThatTellsTooLittleIsNamed) {
  const std::pair<Environment, const char*> cases[] = {
      {{}, "--workers: auto: the environment tells no number of workers; set SOMNUS_WORLD_SIZE"},
      {{{"WORLD_SIZE", "many"}}, "it tells passed over WORLD_SIZE: 'many' is not a whole number"},
      {{{"WORLD_SIZE", "65"}}, "WORLD_SIZE: 65 is more than 64 workers"},
      {{{"SOMNUS_WORLD_SIZE", "0"}}, "SOMNUS_WORLD_SIZE: '0' is not a whole number from 1 to 1024"},
      {{{"SOMNUS_WORLD_SIZE", "2"}, {"SOMNUS_COORDINATOR", "unix:/tmp/x"}},
       "SOMNUS_COORDINATOR: --workers=auto needs host:port"},
  };
  for (const auto& [environment, part] : cases) {
    const absl::Status status = ParseFlags({"m", "--workers=auto"}, environment).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << part;
    EXPECT_NE(status.message().find(part), absl::string_view::npos) << status;
  }
}

TEST(GroupFlagsTest, AWorkersPlace) {
  const Environment environment = {{"SOMNUS_COORDINATOR", "n0:1"},
                                   {"RANK", "3"},
                                   {"LOCAL_RANK", "1"},
                                   {"WORLD_SIZE", "4"},
                                   {"SOMNUS_HOST", "n1"}};
  WorkerFlags flags;
  auto found = FillFromEnvironment(environment, &flags);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(flags.coordinator, "n0:1");
  EXPECT_EQ(flags.rank, 3);
  EXPECT_EQ(flags.device_index, 1);
  EXPECT_EQ(flags.host, "n1");
  EXPECT_EQ(DescribeDiscovery(*found),
            "coordinator n0:1 from SOMNUS_COORDINATOR, rank 3 from RANK, device index 1 "
            "from LOCAL_RANK, host n1 from SOMNUS_HOST");

  flags = {};
  flags.coordinator = "unix:/x";
  flags.rank = 0;
  flags.device_index = 0;
  flags.host = "me";
  found = FillFromEnvironment(environment, &flags);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(flags.coordinator, "unix:/x");
  EXPECT_EQ(flags.rank, 0);
  EXPECT_EQ(flags.device_index, 0);
  EXPECT_EQ(flags.host, "me");
  EXPECT_EQ(DescribeDiscovery(*found), "");

  flags = {};
  const absl::Status status = FillFromEnvironment({{"RANK", "3"}}, &flags).status();
  EXPECT_EQ(
      status.message(),
      "--coordinator: host:port or unix:/path is required; the environment tells none: rank 3 from RANK");
}

TEST(GroupFlagsTest, StagesMultiplyTheWorkers) {
  const absl::StatusOr<Flags> flags =
      ParseFlags({"m", "--workers=2", "--pipeline-parallel-size=3", "--pipeline-layer-partition=4,5,6"});
  ASSERT_TRUE(flags.ok()) << flags.status();
  EXPECT_EQ(flags->world_size, 6);
  EXPECT_TRUE(CheckStages(*flags, 15).ok());
  EXPECT_EQ(CheckStages(*flags, 16).message(),
            "--pipeline-layer-partition: 15 layers in all, but the model has 16");
  EXPECT_EQ(CheckStages(*flags, 2).message(),
            "--pipeline-parallel-size: 3 stages, but the model has 2 layers");
  const absl::StatusOr<Flags> discovered =
      ParseFlags({"m", "--workers=auto", "--pipeline-parallel-size=2"}, {{"SOMNUS_WORLD_SIZE", "4"}});
  ASSERT_TRUE(discovered.ok()) << discovered.status();
  EXPECT_EQ(discovered->world_size, 4);
  const absl::StatusOr<Flags> several =
      ParseFlags({"--model=a=/a", "--model=b=/b", "--workers=2", "--pipeline-parallel-size=2"});
  ASSERT_TRUE(several.ok()) << several.status();
  for (const Flags& each : OfEachModel(*several)) EXPECT_EQ(each.world_size, 4);
}

TEST(GroupFlagsTest, StagesThatCannotBeAreRefused) {
  const auto refusal = [](std::vector<std::string> args, const Environment& environment = {}) {
    args.insert(args.begin(), "m");
    return std::string(ParseFlags(args, environment).status().message());
  };
  EXPECT_EQ(refusal({"--workers=33", "--pipeline-parallel-size=2"}),
            "--pipeline-parallel-size: 2 stages of 33 workers are more than 64");
  EXPECT_EQ(refusal({"--workers=auto", "--pipeline-parallel-size=2"}, {{"SOMNUS_WORLD_SIZE", "3"}}),
            "--pipeline-parallel-size: 3 workers are not 2 stages of the same size");
  EXPECT_EQ(refusal({"--pipeline-parallel-size=2", "--pipeline-layer-partition=1,2,3"}),
            "--pipeline-layer-partition: 3 numbers for 2 stages (--pipeline-parallel-size)");
  EXPECT_EQ(refusal({"--pipeline-parallel-size=2", "--speculative=draft", "--draft-model=d",
                     "--num-speculative-tokens=2"}),
            "--speculative: draft does not go with --pipeline-parallel-size");
}

TEST(GroupFlagsTest, ReplicasHavePlacesAndPortsOfTheirOwn) {
  const absl::StatusOr<Flags> flags =
      ParseFlags({"m", "--workers=remote:3", "--data-parallel-size=2", "--cluster-port=7000"});
  ASSERT_TRUE(flags.ok()) << flags.status();
  const Flags first = OfReplica(*flags, 0), second = OfReplica(*flags, 1);
  EXPECT_EQ(first.cluster_port, 7000);
  EXPECT_EQ(second.cluster_port, 7001);
  EXPECT_EQ(LocalIndex(first, 2), 2);
  EXPECT_EQ(LocalIndex(second, 0), 3);
  EXPECT_EQ(ReplicaPrefix(second), "replica 1: ");
  const absl::StatusOr<Flags> local = ParseFlags({"m", "--data-parallel-size=2", "--run-dir=/run/somnus"});
  ASSERT_TRUE(local.ok()) << local.status();
  EXPECT_EQ(OfReplica(*local, 1).run_dir, "/run/somnus/replica-1");
  const absl::StatusOr<Flags> one = ParseFlags({"m", "--run-dir=/run/somnus"});
  ASSERT_TRUE(one.ok()) << one.status();
  EXPECT_EQ(OfReplica(*one, 0).run_dir, "/run/somnus");
  const absl::StatusOr<Flags> alone = ParseFlags({"m", "--workers=remote:3", "--cluster-port=0"});
  ASSERT_TRUE(alone.ok());
  EXPECT_EQ(OfReplica(*alone, 0).cluster_port, 0);
  EXPECT_EQ(ReplicaPrefix(*alone), "");
}

TEST(GroupFlagsTest, KvCacheDTypesAreVllms) {
  const std::pair<const char*, v1::DType> cases[] = {
      {"auto", v1::DTYPE_UNSPECIFIED},         {"bfloat16", v1::DTYPE_BFLOAT16},
      {"float16", v1::DTYPE_FLOAT16},          {"float32", v1::DTYPE_FLOAT32},
      {"fp8", v1::DTYPE_FLOAT8_E4M3},          {"fp8_e4m3", v1::DTYPE_FLOAT8_E4M3},
      {"fp8-e4m3", v1::DTYPE_FLOAT8_E4M3},     {"int8", v1::DTYPE_INT8},
      {"int8_per_token_head", v1::DTYPE_INT8}, {"int8-per-token-head", v1::DTYPE_INT8},
  };
  for (const auto& [text, dtype] : cases) {
    const auto flags = ParseFlags({"m", "--kv-cache-dtype", text});
    ASSERT_TRUE(flags.ok()) << flags.status();
    EXPECT_EQ(flags->kv_cache_dtype, dtype) << text;
  }
  EXPECT_EQ(ParseFlags({"m", "--kv-cache-dtype=fp8-e4m3"})->kv_cache_dtype_name, "fp8_e4m3");
}

TEST(GroupFlagsTest, KvCacheDTypesResolveAndHaveOneName) {
  EXPECT_EQ(ResolveKvCacheDType(v1::DTYPE_UNSPECIFIED, v1::DTYPE_FLOAT16), v1::DTYPE_FLOAT16);
  EXPECT_EQ(ResolveKvCacheDType(v1::DTYPE_FLOAT8_E4M3, v1::DTYPE_FLOAT16), v1::DTYPE_FLOAT8_E4M3);
  for (const char* name : {"auto", "bfloat16", "float16", "float32", "fp8_e4m3", "int8"}) {
    EXPECT_STREQ(KvCacheDTypeName(*ParseKvCacheDType(name)), name);
  }
}

}  // namespace
}  // namespace somnus
