#include "coordinator/flags.h"

#include <gtest/gtest.h>

#include "coordinator/kv_cache_dtype.h"

namespace somnus {
namespace {

TEST(FlagsTest, HyphensUnderscoresAndBothWaysOfGivingAValue) {
  for (const std::vector<std::string>& args :
       std::vector<std::vector<std::string>>{{"--model", "m", "--max-num-seqs=7", "--kv-cache-memory", "4GiB",
                                              "--enable-prefix-caching=false", "--workers=local:3"},
                                             {"m", "--max_num_seqs", "7", "--kv_cache_memory=4294967296",
                                              "--no-enable-prefix-caching", "--tensor_parallel_size=3"}}) {
    const auto flags = ParseFlags(args);
    ASSERT_TRUE(flags.ok()) << flags.status();
    EXPECT_EQ(flags->model, "m");
    EXPECT_EQ(flags->max_num_seqs, 7);
    EXPECT_EQ(flags->kv_cache_memory, int64_t{4} << 30);
    EXPECT_FALSE(flags->enable_prefix_caching);
    EXPECT_TRUE(flags->local_workers);
    EXPECT_EQ(flags->num_workers, 3);
  }
}

TEST(FlagsTest, Defaults) {
  const auto flags = ParseFlags({"m"});
  ASSERT_TRUE(flags.ok());
  EXPECT_EQ(flags->host, "127.0.0.1");
  EXPECT_EQ(flags->port, 8000);
  EXPECT_EQ(flags->admin_port, 8001);
  EXPECT_EQ(flags->grpc_port, 50051);
  EXPECT_EQ(flags->overlap, 1);
  EXPECT_TRUE(flags->enable_prefix_caching);
}

TEST(FlagsTest, SchedulingFlagsAreVllmsAndAgreeWithEachOther) {
  const auto flags = ParseFlags({"m", "--max-num-partial-prefills=5", "--max_long_partial_prefills=3",
                                 "--long-prefill-token-threshold=100", "--priority-aging-steps=0"});
  ASSERT_TRUE(flags.ok()) << flags.status();
  EXPECT_EQ(flags->max_num_partial_prefills, 5);
  EXPECT_EQ(flags->max_long_partial_prefills, 3);
  EXPECT_EQ(flags->long_prefill_token_threshold, 100);
  EXPECT_EQ(flags->priority_aging_steps, 0);
  const auto refused = ParseFlags({"m", "--max-long-partial-prefills=3"});
  EXPECT_TRUE(absl::IsInvalidArgument(refused.status())) << refused.status();
  EXPECT_NE(refused.status().message().find("--max-long-partial-prefills"), absl::string_view::npos);
  EXPECT_FALSE(ParseFlags({"m", "--max-num-partial-prefills=0"}).ok());
}

TEST(FlagsTest, Units) {
  const std::pair<const char*, int64_t> cases[] = {
      {"1000", 1000}, {"1KiB", 1024}, {"1.5 MiB", 1572864}, {"2GB", 2000000000}, {"3g", int64_t{3} << 30}};
  for (const auto& [text, bytes] : cases) {
    const auto flags = ParseFlags({"m", "--kv-cache-memory", text});
    ASSERT_TRUE(flags.ok()) << text;
    EXPECT_EQ(flags->kv_cache_memory, bytes) << text;
  }
}

TEST(FlagsTest, KvCacheDTypesAreVllms) {
  const std::pair<const char*, v1::DType> cases[] = {
      {"auto", v1::DTYPE_UNSPECIFIED},     {"bfloat16", v1::DTYPE_BFLOAT16},
      {"float16", v1::DTYPE_FLOAT16},      {"float32", v1::DTYPE_FLOAT32},
      {"fp8", v1::DTYPE_FLOAT8_E4M3},      {"fp8_e4m3", v1::DTYPE_FLOAT8_E4M3},
      {"fp8-e4m3", v1::DTYPE_FLOAT8_E4M3},
  };
  for (const auto& [text, dtype] : cases) {
    for (const char* name : {"--kv-cache-dtype", "--kv_cache_dtype"}) {
      const auto flags = ParseFlags({"m", name, text});
      ASSERT_TRUE(flags.ok()) << flags.status();
      EXPECT_EQ(flags->kv_cache_dtype, dtype) << text;
    }
  }
  EXPECT_EQ(ParseFlags({"m"})->kv_cache_dtype, v1::DTYPE_UNSPECIFIED);
  EXPECT_EQ(ParseFlags({"m"})->kv_cache_dtype_name, "auto");
  EXPECT_EQ(ParseFlags({"m", "--kv-cache-dtype=fp8-e4m3"})->kv_cache_dtype_name, "fp8_e4m3");
}

TEST(FlagsTest, KvCacheDTypesResolveAndHaveOneName) {
  EXPECT_EQ(ResolveKvCacheDType(v1::DTYPE_UNSPECIFIED, v1::DTYPE_FLOAT16), v1::DTYPE_FLOAT16);
  EXPECT_EQ(ResolveKvCacheDType(v1::DTYPE_FLOAT8_E4M3, v1::DTYPE_FLOAT16), v1::DTYPE_FLOAT8_E4M3);
  for (const char* name : {"auto", "bfloat16", "float16", "float32", "fp8_e4m3"}) {
    EXPECT_STREQ(KvCacheDTypeName(*ParseKvCacheDType(name)), name);
  }
}

TEST(FlagsTest, DevicesOptions) {
  const auto flags = ParseFlags({"m", "--batch-invariant", "--max_tune_seconds=0"});
  ASSERT_TRUE(flags.ok()) << flags.status();
  EXPECT_TRUE(flags->batch_invariant);
  EXPECT_EQ(flags->max_tune_seconds, 0);
  EXPECT_FALSE(ParseFlags({"m"})->batch_invariant);
  EXPECT_LT(ParseFlags({"m"})->max_tune_seconds, 0) << "the worker's own";
  EXPECT_FALSE(ParseFlags({"m", "--max-tune-seconds=-1"}).ok());
}

TEST(FlagsTest, LimitsOfTheFront) {
  const auto flags = ParseFlags({"m", "--max-body-bytes=1MiB", "--max-connections=9", "--idle-timeout-s=0.5",
                                 "--linger-silence-s=0.25", "--max-linger-bytes=1MiB",
                                 "--max-num-waiting-tokens=77", "--max-stop-strings=16"});
  ASSERT_TRUE(flags.ok()) << flags.status();
  EXPECT_EQ(flags->limits.max_body_bytes, 1 << 20);
  EXPECT_EQ(flags->limits.max_connections, 9);
  EXPECT_EQ(flags->limits.idle_timeout, absl::Milliseconds(500));
  EXPECT_EQ(flags->limits.linger_silence, absl::Milliseconds(250));
  EXPECT_EQ(flags->limits.max_linger_bytes, 1 << 20);
  EXPECT_EQ(flags->limits.max_stop_strings, 16);
  EXPECT_EQ(flags->max_num_waiting_tokens, 77);
}

TEST(FlagsTest, EveryMistakeNamesItsFlag) {
  const std::pair<std::vector<std::string>, const char*> cases[] = {
      {{}, "--model"},
      {{"m", "n"}, "'n'"},
      {{"m", "--colour=red"}, "--colour"},
      {{"m", "-x"}, "-x"},
      {{"m", "--port"}, "--port: has no value"},
      {{"m", "--port=70000"}, "--port: '70000'"},
      {{"m", "--port=8x"}, "--port"},
      {{"m", "--port=9000", "--grpc-port=9000"}, "--port: 9000 is given twice"},
      {{"m", "--workers=3"}, "--workers"},
      {{"m", "--workers=local:0"}, "--workers"},
      {{"m", "--device=tpu"}, "--device"},
      {{"m", "--dtype=int4"}, "--dtype"},
      {{"m", "--kv-cache-dtype=fp8_e5m2"}, "--kv-cache-dtype: 'fp8_e5m2'"},
      {{"m", "--kv-cache-dtype=int8"}, "--kv-cache-dtype"},
      {{"m", "--kv_cache_dtype="}, "--kv-cache-dtype"},
      {{"m", "--kv-cache-memory=lots"}, "--kv-cache-memory"},
      {{"m", "--max-body-bytes=12"}, "--max-body-bytes"},
      {{"m", "--max-json-depth=0"}, "--max-json-depth"},
      {{"m", "--write-timeout-s=nan"}, "--write-timeout-s"},
      {{"m", "--kv-cache-memory=-1"}, "--kv-cache-memory"},
      {{"m", "--kv-cache-memory=0"}, "--kv-cache-memory"},
      {{"m", "--overlap=2"}, "--overlap"},
      {{"m", "--no-overlap"}, "--no-overlap"},
      {{"m", "--enable-prefix-caching=maybe"}, "--enable-prefix-caching"},
      {{"m", "--max-num-seqs=600"}, "--max-num-batched-tokens"},
      {{"m", "--shutdown-timeout=nan"}, "--shutdown-timeout"},
      {{"m", "--log-level=loud"}, "--log-level"},
      {{"--model="}, "--model"},
  };
  for (const auto& [args, expected] : cases) {
    const auto flags = ParseFlags(args);
    ASSERT_FALSE(flags.ok()) << expected;
    EXPECT_NE(flags.status().message().find(expected), absl::string_view::npos) << flags.status();
    EXPECT_EQ(flags.status().message().find('\n'), absl::string_view::npos) << "one line";
  }
}

TEST(FlagsTest, HelpAndVersionNeedNoModelAndHelpKnowsEveryFlag) {
  EXPECT_TRUE(ParseFlags({"--help"})->help);
  EXPECT_TRUE(ParseFlags({"-h"})->help);
  EXPECT_TRUE(ParseFlags({"--version"})->version);
  for (const char* name : {"--model", "--kv-cache-memory", "--admin-port", "--threads-per-worker"}) {
    EXPECT_NE(FlagsHelp().find(name), std::string::npos) << name;
  }
}

}  // namespace
}  // namespace somnus
