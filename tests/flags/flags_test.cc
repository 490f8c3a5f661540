// The coordinator's table of flags: defaults, names old and new, mistakes, help and documentation.

#include "coordinator/flags/flags.h"

#include <gtest/gtest.h>

#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "worker/worker_flags.h"

namespace somnus {
namespace {

TEST(FlagsTest, AModelMayHaveSeveralNames) {
  const auto names_of = [](const std::vector<std::string>& args) {
    const absl::StatusOr<Flags> flags = ParseFlags(args);
    EXPECT_TRUE(flags.ok()) << flags.status();
    std::vector<std::string> names = {flags->model, flags->served_model_name};
    names.insert(names.end(), flags->model_aliases.begin(), flags->model_aliases.end());
    return names;
  };
  using Names = std::vector<std::string>;
  EXPECT_EQ(names_of({"m", "--served-model-name", "a", "b", "c", "--port=0"}), (Names{"m", "a", "b", "c"}));
  EXPECT_EQ(names_of({"--served-model-name", "a", "m"}), (Names{"m", "a"}));
  EXPECT_EQ(names_of({"--served-model-name=a", "m"}), (Names{"m", "a"}));
  EXPECT_EQ(names_of({"m", "--served-model-name", "a", "b", "--served-model-name", "c"}), (Names{"m", "c"}));
  EXPECT_FALSE(
      ParseFlags({"m", "--enable-lora", "--lora-modules=b=/p", "--served-model-name", "a", "b"}).ok())
      << "an adapter and an alias are asked for in the same way";
}

TEST(FlagsTest, OneModelHoweverItIsGiven) {
  for (const std::vector<std::string>& args : std::vector<std::vector<std::string>>{
           {"--model", "m", "--max-num-seqs=7", "--kv-cache-memory-bytes", "4GiB",
            "--enable-prefix-caching=false", "--workers=local:3"},
           {"m", "--max_num_seqs", "7", "--kv_cache_memory_bytes=4294967296", "--no-enable-prefix-caching",
            "--workers=3"}}) {
    const auto flags = ParseFlags(args);
    ASSERT_TRUE(flags.ok()) << flags.status();
    EXPECT_EQ(flags->model, "m");
    EXPECT_EQ(flags->engine.scheduler.max_num_seqs, 7);
    EXPECT_EQ(flags->kv_cache_memory_bytes, int64_t{4} << 30);
    EXPECT_FALSE(flags->engine.scheduler.blocks.enable_prefix_caching);
    EXPECT_TRUE(flags->local_workers);
    EXPECT_EQ(flags->world_size, 3);
  }
}

TEST(FlagsTest, Defaults) {
  const auto flags = ParseFlags({"m"});
  ASSERT_TRUE(flags.ok());
  EXPECT_EQ(flags->host, "127.0.0.1");
  EXPECT_EQ(flags->port, 8000);
  EXPECT_EQ(flags->admin_port, 8001);
  EXPECT_EQ(flags->grpc_port, 50051);
  EXPECT_EQ(flags->control_port, 50054);
  EXPECT_TRUE(flags->engine.async_scheduling);
  EXPECT_TRUE(flags->engine.scheduler.blocks.enable_prefix_caching);
  EXPECT_FALSE(flags->engine.batch_invariant);
  EXPECT_EQ(flags->max_tune_time, absl::Seconds(5));
  EXPECT_EQ(flags->kv_cache_dtype, v1::DTYPE_UNSPECIFIED);
  EXPECT_EQ(flags->kv_cache_dtype_name, "auto");
}

TEST(FlagsTest, Embeddings) {
  auto flags = ParseFlags({"m"});
  ASSERT_TRUE(flags.ok());
  EXPECT_TRUE(flags->pooling.generates);
  EXPECT_FALSE(flags->pooling.type.has_value());
  EXPECT_FALSE(flags->pooling.matryoshka.has_value());
  flags = ParseFlags({"m", "--runner=pooling", "--pooling-type=mean", "--matryoshka-dimensions=64,128"});
  ASSERT_TRUE(flags.ok()) << flags.status();
  EXPECT_FALSE(flags->pooling.generates);
  EXPECT_EQ(flags->pooling.type, Pooling::kMean);
  EXPECT_EQ(flags->pooling.matryoshka->listed, (std::vector<int32_t>{64, 128}));
  EXPECT_FALSE(flags->pooling.matryoshka->any);
  EXPECT_TRUE(ParseFlags({"m", "--matryoshka-dimensions=any"})->pooling.matryoshka->any);
  const auto none = ParseFlags({"m", "--matryoshka-dimensions=none"});
  EXPECT_FALSE(none->pooling.matryoshka->any);
  EXPECT_TRUE(none->pooling.matryoshka->listed.empty());
  EXPECT_FALSE(ParseFlags({"m", "--matryoshka-dimensions=any", "--matryoshka-dimensions=auto"})
                   ->pooling.matryoshka.has_value());
}

TEST(FlagsTest, SchedulingFlagsAreVllmsAndAgreeWithEachOther) {
  const auto flags = ParseFlags({"m", "--max-num-partial-prefills=5", "--max_long_partial_prefills=3",
                                 "--long-prefill-token-threshold=100", "--priority-aging-steps=0"});
  ASSERT_TRUE(flags.ok()) << flags.status();
  EXPECT_EQ(flags->engine.scheduler.max_num_partial_prefills, 5);
  EXPECT_EQ(flags->engine.scheduler.max_long_partial_prefills, 3);
  EXPECT_EQ(flags->engine.scheduler.long_prefill_token_threshold, 100);
  EXPECT_EQ(flags->engine.scheduler.priority_aging_steps, 0);
  const auto refused = ParseFlags({"m", "--max-long-partial-prefills=3"});
  EXPECT_TRUE(absl::IsInvalidArgument(refused.status())) << refused.status();
  EXPECT_NE(refused.status().message().find("--max-long-partial-prefills"), absl::string_view::npos);
  EXPECT_FALSE(ParseFlags({"m", "--max-num-partial-prefills=0"}).ok());
}

// Older spellings, which scripts may still use.
TEST(FlagsTest, OldNames) {
  const auto flags =
      ParseFlags({"m", "--tensor-parallel-size=2", "--gpu-memory-utilization=0.8", "--kv-cache-memory=1GiB",
                  "--overlap=0", "--max-tune-seconds=0", "--step-timeout-s=7", "--heartbeat-timeout-s=8",
                  "--register-timeout-s=9", "--idle-timeout-s=0.5", "--linger-silence-s=0.25"});
  ASSERT_TRUE(flags.ok()) << flags.status();
  EXPECT_EQ(flags->world_size, 2);
  EXPECT_TRUE(flags->local_workers);
  EXPECT_EQ(flags->memory_utilization, 0.8);
  EXPECT_EQ(flags->kv_cache_memory_bytes, 1 << 30);
  EXPECT_FALSE(flags->engine.async_scheduling);
  EXPECT_EQ(flags->max_tune_time, absl::ZeroDuration());
  EXPECT_EQ(flags->engine.step_timeout, absl::Seconds(7));
  EXPECT_EQ(flags->engine.hang_timeout, absl::Seconds(8));
  EXPECT_EQ(flags->register_timeout, absl::Seconds(9));
  EXPECT_EQ(flags->limits.idle_timeout, absl::Milliseconds(500));
  EXPECT_EQ(flags->limits.linger_silence, absl::Milliseconds(250));
}

TEST(FlagsTest, Recovery) {
  const auto flags = ParseFlags({"m", "--hang-timeout-s=6", "--max-recoveries-per-request=1",
                                 "--max-recoveries=0", "--recovery-window-s=60", "--sse-keepalive-s=0"});
  ASSERT_TRUE(flags.ok()) << flags.status();
  EXPECT_EQ(flags->engine.hang_timeout, absl::Seconds(6));
  EXPECT_EQ(flags->engine.max_recoveries_per_request, 1);
  EXPECT_EQ(flags->engine.max_recoveries, 0);
  EXPECT_EQ(flags->engine.recovery_window, absl::Minutes(1));
  EXPECT_EQ(flags->limits.sse_keepalive, absl::ZeroDuration());
  EXPECT_EQ(ParseFlags({"m", "--heartbeat-timeout=7s"})->engine.hang_timeout, absl::Seconds(7));
  EXPECT_FALSE(ParseFlags({"m", "--hang-timeout=900ms"}).ok());
  const auto defaults = ParseFlags({"m"});
  EXPECT_EQ(defaults->engine.hang_timeout, absl::Seconds(4));
  EXPECT_EQ(defaults->engine.max_recoveries_per_request, 3);
  EXPECT_EQ(defaults->engine.max_recoveries, 10);
  EXPECT_EQ(defaults->engine.recovery_window, absl::Seconds(600));
  EXPECT_EQ(defaults->limits.sse_keepalive, absl::Seconds(15));
}

TEST(FlagsTest, EveryEngineCanSleep) {
  EXPECT_TRUE(ParseFlags({"m", "--enable-sleep-mode"}).ok());
  const auto status = ParseFlags({"m", "--enable-sleep-mode=false"}).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
}

TEST(FlagsTest, EveryMistakeNamesItsFlag) {
  const std::pair<std::vector<std::string>, const char*> cases[] = {
      {{}, "--model: no model"},
      {{"m", "n"}, "unexpected argument 'n'"},
      {{"--model=m", "n"}, "unexpected argument 'n'"},
      {{"m", "--prot=9"}, "unknown flag --prot: did you mean --port?"},
      {{"m", "-x"}, "unknown flag -x"},
      {{"m", "--port"}, "--port: has no value"},
      {{"m", "--port=70000"}, "--port: '70000' is not a whole number from 0 to 65535"},
      {{"m", "--port=9000", "--grpc-port=9000"}, "--grpc-port: 9000 is the port of --port already"},
      {{"m", "--host=127.0.0.1", "--admin-port=9000", "--grpc-port=9000"},
       "--grpc-port: 9000 is the port of --admin-port already"},
      {{"m", "--admin-port=9000", "--control-port=9000"},
       "--control-port: 9000 is the port of --admin-port already"},
      {{"m", "--workers=remote:2", "--grpc-port=9000", "--cluster-host=0.0.0.0", "--host=0.0.0.0",
        "--cluster-port=9000"},
       "--cluster-port: 9000 is the port of --grpc-port already"},
      {{"m", "--workers=remote:2", "--data-parallel-size=3", "--admin-port=50054", "--control-port=0"},
       "--cluster-port: 50054 is the port of --admin-port already"},
      {{"m", "--workers=remote:2", "--data-parallel-size=3", "--cluster-port=65534"},
       "--cluster-port: replica 2 has no port"},
      {{"m", "--data-parallel-size=0"}, "--data-parallel-size: '0' is not a whole number from 1 to 64"},
      {{"m", "--spill-dir=/disk"}, "--spill-dir: is for --backup=file"},
      {{"m", "--workers=some"}, "--workers: 'some' is not auto, local:N or remote:N, N from 1 to 64"},
      {{"m", "--workers=local:0"}, "--workers: 'local:0'"},
      {{"m", "--workers=remote:65"}, "--workers: 'remote:65'"},
      {{"m", "--workers=remote:2", "--device-indices=0,1"}, "--device-indices: remote workers"},
      {{"m", "--device=tpu"}, "--device: 'tpu' is not one of auto, cpu, cuda"},
      {{"m", "--dtype=int4"}, "--dtype: 'int4'"},
      {{"m", "--memory-utilization=0"}, "--memory-utilization: '0' is not a number from 0.01 to 1"},
      {{"m", "--kv-cache-dtype=fp8_e5m2"}, "--kv-cache-dtype: 'fp8_e5m2' is not one of"},
      {{"m", "--kv-cache-memory-bytes=lots"}, "--kv-cache-memory-bytes: 'lots'"},
      {{"m", "--kv-cache-memory-bytes=0"}, "--kv-cache-memory-bytes: '0'"},
      {{"m", "--max-body-bytes=12"}, "--max-body-bytes: '12'"},
      {{"m", "--max-json-depth=0"}, "--max-json-depth: '0'"},
      {{"m", "--write-timeout=nan"}, "--write-timeout: 'nan'"},
      {{"m", "--async-scheduling=2"}, "--async-scheduling: '2' is not true or false"},
      {{"m", "--max-tune-time=-1"}, "--max-tune-time: '-1'"},
      {{"m", "--max-num-seqs=600"}, "--max-num-batched-tokens: 512 is less than --max-num-seqs (600)"},
      {{"m", "--runner=both"}, "--runner: 'both' is not one of generate, pooling"},
      {{"m", "--pooling-type=max"}, "--pooling-type: 'max' is not one of auto, last, mean, cls"},
      {{"m", "--matryoshka-dimensions=64,0"},
       "--matryoshka-dimensions: '64,0' is not auto, none, any or numbers"},
      {{"m", "--log-level=loud"}, "--log-level: 'loud' is not one of debug, info, warning, error"},
      {{"--model="}, "--model: '' is empty"},
  };
  for (const auto& [args, expected] : cases) {
    const auto flags = ParseFlags(args);
    ASSERT_FALSE(flags.ok()) << expected;
    EXPECT_EQ(flags.status().message().substr(0, std::string(expected).size()), expected);
    EXPECT_EQ(flags.status().message().find('\n'), absl::string_view::npos) << "one line";
  }
}

TEST(FlagsTest, EveryNameIsThereOnce) {
  Flags flags;
  WorkerFlags worker_flags;
  for (const FlagTable& table : {CoordinatorFlags(&flags), WorkerFlagTable(&worker_flags)}) {
    std::set<std::string> names = {"help", "version"};
    for (const FlagGroup& group : table.groups) {
      for (const Flag& flag : group.flags) {
        EXPECT_TRUE(names.insert(flag.name).second) << flag.name;
        EXPECT_FALSE(flag.help.empty()) << flag.name;
        for (const std::string& alias : flag.aliases) EXPECT_TRUE(names.insert(alias).second) << alias;
      }
    }
  }
}

// A user meets the flags that most users need, in a help of about one screen; the names exist.
TEST(FlagsTest, HelpShowsTheCommonFlagsAlone) {
  Flags flags;
  const FlagTable table = CoordinatorFlags(&flags);
  EXPECT_LE(table.common.size(), 25u);
  const std::string help = HelpText(table), all = FullHelpText(table);
  for (const std::string& name : table.common)
    EXPECT_NE(help.find("\n  --" + name), std::string::npos) << name;
  EXPECT_EQ(help.find("--max-trace-spans"), std::string::npos);
  EXPECT_NE(all.find("--max-trace-spans"), std::string::npos);
  EXPECT_NE(help.find("--help=all"), std::string::npos);
  EXPECT_EQ(all.find("--help=all"), std::string::npos);
}

// docs/flags.md shows what --help=all prints, word for word.
TEST(FlagsTest, TheDocumentationIsWhatHelpPrints) {
  std::ifstream file("docs/flags.md");
  std::stringstream text;
  text << file.rdbuf();
  Flags flags;
  WorkerFlags worker_flags;
  for (const FlagTable& table : {CoordinatorFlags(&flags), WorkerFlagTable(&worker_flags)}) {
    const std::string block = "```text\n" + FullHelpText(table) + "```\n";
    EXPECT_NE(text.str().find(block), std::string::npos) << "docs/flags.md must hold this block:\n" << block;
  }
}

}  // namespace
}  // namespace somnus
