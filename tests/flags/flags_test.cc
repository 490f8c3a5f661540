// The coordinator's flags: names, defaults, and rules over several flags.

#include "coordinator/flags/flags.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <set>
#include <sstream>
#include <vector>

#include "coordinator/flags/kv_cache_dtype.h"
#include "worker/worker_flags.h"

namespace somnus {
namespace {

TEST(FlagsTest, AnyPortIsForAllListenersThatAreNotGivenOne) {
  const auto any = ParseFlags({"m", "--port=0", "--grpc-port=7000"});
  ASSERT_TRUE(any.ok()) << any.status();
  EXPECT_EQ((std::vector<int32_t>{any->port, any->admin_port, any->grpc_port, any->control_port}),
            (std::vector<int32_t>{0, 0, 7000, 0}));
  const auto one = ParseFlags({"m", "--admin-port=0", "--port=9000"});
  ASSERT_TRUE(one.ok()) << one.status();
  EXPECT_EQ((std::vector<int32_t>{one->port, one->admin_port, one->grpc_port, one->control_port}),
            (std::vector<int32_t>{9000, 0, 9001, 9002}));
}

TEST(FlagsTest, OnePortMovesAllThatAreNotGiven) {
  const auto ports_of = [](const std::vector<std::string>& args) {
    const absl::StatusOr<Flags> flags = ParseFlags(args);
    EXPECT_TRUE(flags.ok()) << flags.status();
    return std::vector<int32_t>{flags->port, flags->admin_port, flags->grpc_port, flags->control_port};
  };
  EXPECT_EQ(ports_of({"m"}), (std::vector<int32_t>{8000, 8001, 50051, 50054}));
  EXPECT_EQ(ports_of({"m", "--port=8000"}), (std::vector<int32_t>{8000, 8001, 50051, 50054}));
  EXPECT_EQ(ports_of({"m", "--port=9000"}), (std::vector<int32_t>{9000, 9001, 9002, 9003}));
  EXPECT_EQ(ports_of({"m", "--port=9000", "--control-port=9001"}),
            (std::vector<int32_t>{9000, 9002, 9003, 9001}))
      << "a port that is given is nobody else's";
  EXPECT_EQ(ports_of({"m", "--port=50050", "--workers=remote:2"}),
            (std::vector<int32_t>{50050, 50051, 50053, 50054}))
      << "remote workers register at 50052";
  EXPECT_EQ(ParseFlags({"m", "--port=65534"}).status().message(),
            "--port: 65534 leaves no number for --grpc-port");
}

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

TEST(FlagsTest, KeysComeFromTheirFlagsElseFromTheEnvironment) {
  const Environment environment = {{"SOMNUS_API_KEY", "clients"}, {"SOMNUS_ADMIN_API_KEY", "operators"}};
  const auto found = ParseFlags({"m"}, environment);
  ASSERT_TRUE(found.ok());
  EXPECT_TRUE(found->api_keys.Opens("Bearer clients"));
  EXPECT_FALSE(found->api_keys.Opens("Bearer operators"));
  EXPECT_TRUE(found->admin_api_keys.Opens("Bearer operators"));
  const auto given = ParseFlags({"m", "--api-key=a", "--admin-api-key=b"}, environment);
  ASSERT_TRUE(given.ok());
  EXPECT_TRUE(given->api_keys.Opens("Bearer a"));
  EXPECT_FALSE(given->api_keys.Opens("Bearer clients"));
  EXPECT_TRUE(given->admin_api_keys.Opens("Bearer b"));
  EXPECT_TRUE(ParseFlags({"m"})->admin_api_keys.empty());
}

TEST(FlagsTest, DevModeIsOffUnlessAFlagOrTheEnvironmentSaysSo) {
  const Environment on = {{"VLLM_SERVER_DEV_MODE", "1"}, {"SOMNUS_API_KEY", "clients"}};
  EXPECT_FALSE(ParseFlags({"m"})->server_dev_mode);
  EXPECT_FALSE(ParseFlags({"m"}, {{"VLLM_SERVER_DEV_MODE", "0"}})->server_dev_mode);
  EXPECT_TRUE(ParseFlags({"m", "--server-dev-mode"})->server_dev_mode);
  const auto found = ParseFlags({"m"}, on);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_TRUE(found->server_dev_mode);
  EXPECT_TRUE(found->admin_api_keys.Opens("Bearer clients"));
  EXPECT_FALSE(found->admin_api_keys.Opens("Bearer other"));
  const auto given = ParseFlags({"m", "--admin-api-key=operators"}, on);
  ASSERT_TRUE(given.ok()) << given.status();
  EXPECT_FALSE(given->admin_api_keys.Opens("Bearer clients"));
  EXPECT_TRUE(ParseFlags({"m"}, {{"SOMNUS_API_KEY", "clients"}})->admin_api_keys.empty());
}

TEST(FlagsTest, SeveralKeysOpenAndThoseOfAFileHaveNames) {
  const std::string path = ::testing::TempDir() + "/keys";
  const auto write = [&](const std::string& text, mode_t mode) {
    std::ofstream(path) << text;
    ASSERT_EQ(::chmod(path.c_str(), mode), 0);
  };
  write("# of the team\n\nalice:a:1\n bob : b\n", 0600);
  EXPECT_FALSE(ParseFlags({"m", "--api-key-file=" + path}).ok()) << "a name is one word";
  write("# of the team\n\nalice:a:1\nbob:b\n", 0600);
  const auto flags = ParseFlags({"m", "--api-key=x", "--api-key", "y", "--api-key-file=" + path});
  ASSERT_TRUE(flags.ok()) << flags.status();
  for (const char* key : {"x", "y", "a:1", "b"})
    EXPECT_TRUE(flags->api_keys.Opens(std::string("Bearer ") + key)) << key;
  for (const char* no : {"", "Bearer ", "Bearer a", "alice:a:1", "Bearer alice:a:1", "Basic b"})
    EXPECT_FALSE(flags->api_keys.Opens(no)) << no;
  EXPECT_EQ(flags->api_keys.NameOf("bearer a:1"), "alice");
  EXPECT_EQ(flags->api_keys.NameOf("Bearer x"), "");
  EXPECT_TRUE(flags->admin_api_keys.empty());

  const auto message = [&] {
    return std::string(ParseFlags({"m", "--admin-api-key-file=" + path}).status().message());
  };
  write("alice:secret\nalice:secreter\n", 0600);
  EXPECT_EQ(message(), "--admin-api-key-file: " + path + ": line 2 has the name of an earlier key");
  write("a secret\n", 0600);
  EXPECT_EQ(message().find("secret"), std::string::npos) << message();
  write("alice:secret\n", 0644);
  EXPECT_NE(message().find("open to others"), std::string::npos) << message();
  write("\n", 0600);
  EXPECT_NE(message().find("has no key"), std::string::npos) << message();
  ::unlink(path.c_str());
  EXPECT_NE(message().find("No such file"), std::string::npos) << message();
}

TEST(FlagsTest, ATemplateIsAFileOrItsText) {
  const std::string path = ::testing::TempDir() + "/template.jinja";
  std::ofstream(path) << "{{ messages }}";
  EXPECT_EQ(ParseFlags({"m", "--chat-template=" + path})->chat.chat_template, "{{ messages }}");
  EXPECT_EQ(ParseFlags({"m", "--chat-template", "{{ x }}"})->chat.chat_template, "{{ x }}");
  EXPECT_FALSE(ParseFlags({"m", "--chat-template=/none"}).ok());
  std::ofstream(path) << "";
  EXPECT_FALSE(ParseFlags({"m", "--chat-template=" + path}).ok());
}

TEST(FlagsTest, DefaultTemplateKwargsAreAnObjectOfVariables) {
  EXPECT_EQ(ParseFlags({"m", R"(--default-chat-template-kwargs={"a": false})"})->chat.default_template_kwargs,
            R"({"a": false})");
  for (const char* wrong : {"[]", "{", R"({"messages": []})", "a=b"})
    EXPECT_FALSE(ParseFlags({"m", "--default-chat-template-kwargs", wrong}).ok()) << wrong;
}

TEST(FlagsTest, ToolsMayBeCalledWithoutForceUnlessTheFlagSaysNo) {
  EXPECT_TRUE(ParseFlags({"m"})->chat.auto_tool_choice);
  for (const char* flag : {"--enable-auto-tool-choice", "--enable-auto-tool-choice=true"}) {
    const absl::StatusOr<Flags> flags = ParseFlags({"m", flag});
    ASSERT_TRUE(flags.ok()) << flags.status();
    EXPECT_TRUE(flags->chat.auto_tool_choice) << flag;
  }
  EXPECT_FALSE(ParseFlags({"m", "--enable-auto-tool-choice=false"})->chat.auto_tool_choice);
  EXPECT_FALSE(ParseFlags({"m", "--enable-auto-tool-choice=sometimes"}).ok());
}

TEST(FlagsTest, BytesOfGrammarsThatAreKept) {
  EXPECT_EQ(ParseFlags({"m", "--structured-outputs-max-bytes=3MiB"})->chat.grammar_cache.max_bytes, 3 << 20);
  EXPECT_FALSE(ParseFlags({"m", "--structured-outputs-max-bytes=0"}).ok());
  EXPECT_FALSE(ParseFlags({"m", "--structured-outputs-max-bytes=-1"}).ok());
}

TEST(FlagsTest, TheBoundsOfSchemasAreFlags) {
  const auto flags =
      ParseFlags({"m", "--structured-outputs-max-choices=7", "--structured-outputs-max-schema-keys=100",
                  "--structured-outputs-max-pattern-bytes=99"});
  ASSERT_TRUE(flags.ok()) << flags.status();
  EXPECT_EQ(flags->chat.gate.max_choices, 7);
  EXPECT_EQ(flags->chat.gate.max_keys, 100);
  EXPECT_EQ(flags->chat.gate.regex.max_bytes, 99);
  EXPECT_FALSE(ParseFlags({"m", "--structured-outputs-max-choices=0"}).ok());
}

TEST(FlagsTest, CertificatesThatAreOfNoUseAreNamed) {
  const std::pair<std::vector<std::string>, const char*> cases[] = {
      {{"m", "--ssl-certfile=/none"}, "--ssl-keyfile"},
      {{"m", "--ssl-keyfile=/none"}, "--ssl-certfile"},
      {{"m", "--ssl-ca-certs=/none"}, "--ssl-certfile"},
      {{"m", "--ssl-certfile=/none", "--ssl-keyfile=/none"}, "--ssl-certfile"},
      {{"m", "--admin-ssl-certfile=/none"}, "--admin-ssl-keyfile"},
      {{"m", "--admin-ssl-certfile=/none", "--admin-ssl-keyfile=/none"}, "--admin-ssl-certfile"},
  };
  for (const auto& [args, flag] : cases) {
    const absl::Status status = ParseFlags(args).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_EQ(status.message().substr(0, status.message().find(':')), flag);
  }
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

TEST(FlagsTest, HowWorkersRun) {
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

TEST(FlagsTest, EveryEngineCanSleep) {
  EXPECT_TRUE(ParseFlags({"m", "--enable-sleep-mode"}).ok());
  const auto status = ParseFlags({"m", "--enable-sleep-mode=false"}).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
}

TEST(FlagsTest, WorkersOfALauncher) {
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

TEST(FlagsTest, AnEnvironmentThatTellsTooLittleIsNamed) {
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

TEST(FlagsTest, AWorkersPlace) {
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

TEST(FlagsTest, KvCacheDTypesAreVllms) {
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

TEST(FlagsTest, KvCacheDTypesResolveAndHaveOneName) {
  EXPECT_EQ(ResolveKvCacheDType(v1::DTYPE_UNSPECIFIED, v1::DTYPE_FLOAT16), v1::DTYPE_FLOAT16);
  EXPECT_EQ(ResolveKvCacheDType(v1::DTYPE_FLOAT8_E4M3, v1::DTYPE_FLOAT16), v1::DTYPE_FLOAT8_E4M3);
  for (const char* name : {"auto", "bfloat16", "float16", "float32", "fp8_e4m3", "int8"}) {
    EXPECT_STREQ(KvCacheDTypeName(*ParseKvCacheDType(name)), name);
  }
}

TEST(FlagsTest, LimitsOfTheFront) {
  const auto flags = ParseFlags({"m", "--max-body-bytes=1MiB", "--max-connections=9", "--idle-timeout=0.5",
                                 "--linger-silence=250ms", "--max-linger-bytes=1MiB",
                                 "--max-num-waiting-tokens=77", "--max-stop-strings=16"});
  ASSERT_TRUE(flags.ok()) << flags.status();
  EXPECT_EQ(flags->limits.max_body_bytes, 1 << 20);
  EXPECT_EQ(flags->limits.max_connections, 9);
  EXPECT_EQ(flags->limits.idle_timeout, absl::Milliseconds(500));
  EXPECT_EQ(flags->limits.linger_silence, absl::Milliseconds(250));
  EXPECT_EQ(flags->limits.max_linger_bytes, 1 << 20);
  EXPECT_EQ(flags->limits.max_stop_strings, 16);
  EXPECT_EQ(flags->engine.queue.max_num_waiting_tokens, 77);
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

TEST(FlagsTest, StagesMultiplyTheWorkers) {
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

TEST(FlagsTest, StagesThatCannotBeAreRefused) {
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

TEST(FlagsTest, ReplicasHavePlacesAndPortsOfTheirOwn) {
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
