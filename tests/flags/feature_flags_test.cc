// Flags of browsers, of the KV cache and the host tier, of adapters, of the access log and traces, and of
// speculation.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "coordinator/flags/flags.h"

namespace somnus {
namespace {

using Words = std::vector<std::string>;

TEST(BrowserFlagsTest, ListsAreWordsOrJson) {
  const auto defaults = ParseFlags({"m"});
  ASSERT_TRUE(defaults.ok()) << defaults.status();
  EXPECT_TRUE(defaults->cors.allowed_origins.empty()) << "no page may do anything";
  EXPECT_EQ(defaults->cors.allowed_methods, Words{"*"});
  EXPECT_EQ(defaults->cors.allowed_headers, Words{"*"});
  EXPECT_FALSE(defaults->cors.allow_credentials);
  EXPECT_FALSE(defaults->request_id_headers);
  const auto given = ParseFlags({"m", R"(--allowed-origins=["https://a.example", "http://b:3000"])",
                                 "--allowed-methods=GET, POST", "--allow-credentials",
                                 "--admin-allowed-hosts=gpu.example,other", "--enable-request-id-headers"});
  ASSERT_TRUE(given.ok()) << given.status();
  EXPECT_EQ(given->cors.allowed_origins, (Words{"https://a.example", "http://b:3000"}));
  EXPECT_EQ(given->cors.allowed_methods, (Words{"GET", "POST"}));
  EXPECT_TRUE(given->cors.allow_credentials);
  EXPECT_EQ(given->admin_allowed_hosts, (Words{"gpu.example", "other"}));
  EXPECT_TRUE(given->request_id_headers);
  EXPECT_EQ(ParseFlags({"m", "--allowed-origins=*"})->cors.allowed_origins, Words{"*"});
  EXPECT_TRUE(ParseFlags({"m", "--allowed-origins=[]"})->cors.allowed_origins.empty());
}

TEST(BrowserFlagsTest, AProxyMayLeaveItsPath) {
  const auto root_of = [](const char* flag) { return ParseFlags({"m", flag})->root_path; };
  EXPECT_EQ(root_of("--root-path=/llm"), "/llm");
  EXPECT_EQ(root_of("--root-path=/a/b-1/"), "/a/b-1");
  EXPECT_EQ(root_of("--root-path=/"), "");
  EXPECT_EQ(root_of("--root-path="), "");
  for (const char* flag : {"--root-path=llm", "--root-path=/a b", "--root-path=/a//b", "--root-path=//",
                           "--root-path=/a?b", "--root-path=/%41"})
    EXPECT_TRUE(absl::IsInvalidArgument(ParseFlags({"m", flag}).status())) << flag;
}

TEST(BrowserFlagsTest, WhatNoBrowserWouldSendIsRefused) {
  for (const char* flag :
       {"--allowed-origins=chat.example", "--allowed-origins=https://a/", "--allowed-origins=[1]",
        "--allowed-origins=[\"a", "--allowed-methods=", "--allowed-headers=a b", "--admin-allowed-hosts=a,,b",
        "--allowed-headers=X\r\nY"}) {
    const absl::Status status = ParseFlags({"m", flag}).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << flag;
  }
}

TEST(CacheFlagsTest, TheHostTierOfTheKvCache) {
  constexpr int64_t kGib = int64_t{1} << 30;
  const auto defaults = ParseFlags({"m"});
  ASSERT_TRUE(defaults.ok());
  EXPECT_FALSE(KeepsKvOnSleep(*defaults));
  EXPECT_EQ(defaults->swap_space_bytes, 4 * kGib);
  EXPECT_TRUE(KeepsKvOnSleep(*ParseFlags({"m", "--keep-kv-on-sleep"})));
  const std::pair<const char*, int64_t> sizes[] = {
      {"8", 8 * kGib},       {"0.5", kGib / 2},        {"0", 0},
      {"512MiB", 512 << 20}, {"8589934592", 8 * kGib}, {"2GB", 2'000'000'000}};
  for (const auto& [text, bytes] : sizes)
    EXPECT_EQ(ParseFlags({"m", absl::StrCat("--swap-space=", text)})->swap_space_bytes, bytes) << text;
  for (const char* text : {"-1", "much", "", "nan"}) {
    const absl::Status status = ParseFlags({"m", absl::StrCat("--swap-space=", text)}).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << text;
  }
}

TEST(CacheFlagsTest, PreemptionBySwapNeedsRoomThatNobodyElseCountsOn) {
  const auto defaults = ParseFlags({"m"});
  EXPECT_EQ(defaults->engine.scheduler.preemption, PreemptionMode::kAuto);
  EXPECT_TRUE(MaySwap(*defaults));
  EXPECT_FALSE(MaySwap(*ParseFlags({"m", "--preemption=recompute"})));
  EXPECT_FALSE(MaySwap(*ParseFlags({"m", "--swap-space=0"})));
  const std::vector<std::string> models = {"--model=a=x", "--model=b=y", "--host-memory-budget=1GiB"};
  EXPECT_FALSE(MaySwap(*ParseFlags(models)));
  std::vector<std::string> swapping = models;
  swapping.push_back("--preemption=swap");
  EXPECT_TRUE(absl::IsInvalidArgument(ParseFlags(swapping).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(ParseFlags({"m", "--preemption=swap", "--swap-space=0"}).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(ParseFlags({"m", "--preemption=discard"}).status()));
}

TEST(CacheFlagsTest, CachedPrefixesInHostMemoryNeedTheSameRoom) {
  EXPECT_FALSE(CachesOnHost(*ParseFlags({"m"}))) << "it takes host memory, and is asked for";
  const std::string on = "--prefix-cache-on-host=on";
  EXPECT_TRUE(CachesOnHost(*ParseFlags({"m", on})));
  EXPECT_TRUE(CachesOnHost(*ParseFlags({"m", "--prefix-cache-on-host=auto", "--preemption=recompute"})));
  EXPECT_TRUE(absl::IsInvalidArgument(ParseFlags({"m", on, "--swap-space=0"}).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(ParseFlags({"m", on, "--no-enable-prefix-caching"}).status()));
  const std::vector<std::string> models = {"--model=a=x", "--model=b=y", "--host-memory-budget=1GiB", on};
  EXPECT_TRUE(absl::IsInvalidArgument(ParseFlags(models).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(ParseFlags({"m", "--prefix-cache-step-blocks=0"}).status()));
}

using testing::HasSubstr;

TEST(LoraFlags, ModulesComeAsPairsAndAsJson) {
  const absl::StatusOr<Flags> flags = ParseFlags(
      {"m", "--enable-lora", "--lora-modules=a=/adapters/a=1", "--max-loras=2", "--lora-unload-timeout=5s",
       "--max-lora-names=9", "--lora-ready-timeout=6s", "--lora-retry-pause=7s",
       R"(--lora-modules=[{"name": "b", "path": "/b"}, {"name": "c", "path": "/c", "base_model_name": "m"}])"});
  ASSERT_TRUE(flags.ok()) << flags.status();
  const LoraFlags& lora = flags->lora;
  ASSERT_EQ(lora.modules.size(), 3u);
  EXPECT_EQ(lora.modules[0].name, "a");
  EXPECT_EQ(lora.modules[0].path, "/adapters/a=1");
  EXPECT_EQ(lora.modules[2].base, "m");
  EXPECT_EQ(MaxAdapters(lora), 3);
  EXPECT_EQ(lora.max_rank, 16);
  EXPECT_EQ(lora.unload_timeout, absl::Seconds(5));
  EXPECT_EQ(lora.max_names, 9);
  EXPECT_EQ(lora.ready_timeout, absl::Seconds(6));
  EXPECT_EQ(lora.retry_pause, absl::Seconds(7));
}

TEST(LoraFlags, RefusesWhatCannotBe) {
  const std::vector<std::string> refused[] = {
      {"m", "--lora-modules=a=/a"},
      {"m", "--enable-lora", "--lora-modules=a"},
      {"m", "--enable-lora", "--lora-modules=a="},
      {"m", "--enable-lora", "--lora-modules=a=/a", "--lora-modules=a=/b"},
      {"m", "--enable-lora", R"(--lora-modules={"name": "a"})"},
      {"m", "--enable-lora", R"(--lora-modules={"name": "a", "path": 1})"},
      {"m", "--enable-lora", R"(--lora-modules={"name": "a", "path": "/a", "rank": 4})"},
      {"m", "--enable-lora", R"(--lora-modules=[{"name": "a")"},
      {"--model=x=/x", "--model=y=/y", "--enable-lora", "--lora-modules=a=/a"},
      {"--model=x=/x", "--model=y=/y", "--enable-lora",
       R"(--lora-modules={"name": "x", "path": "/a", "base_model_name": "y"})"}};
  for (const std::vector<std::string>& args : refused) {
    const absl::StatusOr<Flags> flags = ParseFlags(args);
    ASSERT_FALSE(flags.ok()) << args.back();
    EXPECT_THAT(std::string(flags.status().message()), HasSubstr("--lora-modules")) << args.back();
  }
  EXPECT_FALSE(ParseFlags({"m", "--enable-lora", "--max-lora-rank=65"}).ok());
  EXPECT_FALSE(ParseFlags({"m", "--enable-lora", "--max-loras=4", "--max-cpu-loras=2"}).ok());
}

TEST(LoraFlags, EachOfSeveralModelsHasItsOwn) {
  const absl::StatusOr<Flags> flags =
      ParseFlags({"--model=x=/x", "--model=y=/y", "--enable-lora",
                  R"(--lora-modules=[{"name": "a", "path": "/a", "base_model_name": "y"}])"});
  ASSERT_TRUE(flags.ok()) << flags.status();
  const std::vector<Flags> each = OfEachModel(*flags);
  ASSERT_EQ(each.size(), 2u);
  EXPECT_TRUE(each[0].lora.modules.empty());
  ASSERT_EQ(each[1].lora.modules.size(), 1u);
  EXPECT_EQ(each[1].lora.modules[0].name, "a");
}

TEST(ObservationFlagsTest, NothingIsWrittenDownOrMeasuredUnlessAFlagSaysSo) {
  const auto flags = ParseFlags({"m"});
  ASSERT_TRUE(flags.ok()) << flags.status();
  EXPECT_EQ(flags->access_log, "");
  EXPECT_EQ(flags->traces.endpoint, "");
  EXPECT_FALSE(flags->kv_cache_metrics);
}

TEST(ObservationFlagsTest, FlagsAndVariables) {
  const auto flags = ParseFlags({"m", "--access-log=-", "--kv-cache-metrics", "--kv-cache-metrics-sample=0.5",
                                 "--otlp-traces-endpoint=http://otel:4318", "--otlp-traces-sample=0.1",
                                 "--otlp-traces-queue=100", "--otlp-traces-timeout=2s"},
                                {{"OTEL_SERVICE_NAME", "chat"}});
  ASSERT_TRUE(flags.ok()) << flags.status();
  EXPECT_EQ(flags->access_log, "-");
  EXPECT_TRUE(flags->kv_cache_metrics);
  EXPECT_EQ(flags->kv_cache_metrics_sample, 0.5);
  EXPECT_EQ(flags->traces.endpoint, "http://otel:4318/v1/traces");
  EXPECT_EQ(flags->traces.service_name, "chat");
  EXPECT_EQ(flags->traces.sample, 0.1);
  EXPECT_EQ(flags->traces.max_queued_spans, 100);
  EXPECT_EQ(flags->traces.timeout, absl::Seconds(2));
  const auto variable = ParseFlags({"m"}, {{"OTEL_EXPORTER_OTLP_ENDPOINT", "http://otel:4318"}});
  EXPECT_EQ(variable->traces.endpoint, "http://otel:4318/v1/traces");
}

TEST(ObservationFlagsTest, AWrongEndpointNamesTheFlag) {
  const absl::Status status = ParseFlags({"m", "--otlp-traces-endpoint=grpc://otel:4317"}).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_TRUE(absl::StrContains(status.message(), "--otlp-traces-endpoint")) << status;
}

TEST(SpeculationFlagsTest, SpeculationIsOffAndComesFromPromptLookup) {
  EXPECT_EQ(ParseFlags({"m"})->engine.scheduler.speculation.num_speculative_tokens, 0);
  const auto flags = ParseFlags({"m", "--num-speculative-tokens=8", "--speculative=ngram",
                                 "--prompt-lookup-min=3", "--prompt_lookup_max=3"});
  ASSERT_TRUE(flags.ok()) << flags.status();
  EXPECT_EQ(flags->engine.scheduler.speculation.num_speculative_tokens, 8);
  EXPECT_EQ(flags->prompt_lookup_min, 3);
  EXPECT_EQ(flags->prompt_lookup_max, 3);
  const std::vector<std::string> refused[] = {{"m", "--prompt-lookup-min=6"},
                                              {"m", "--speculative=draft", "--num-speculative-tokens=4"},
                                              {"m", "--speculative=draft", "--draft-model=d"},
                                              {"m", "--draft-model=d", "--num-speculative-tokens=4"},
                                              {"m", "--num-speculative-tokens=65"},
                                              {"m", "--prompt-lookup-min=0"}};
  for (const std::vector<std::string>& args : refused) {
    const absl::Status status = ParseFlags(args).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << args[1];
    EXPECT_NE(status.message().find(args[1].substr(0, args[1].find('='))), absl::string_view::npos) << status;
  }
}

TEST(SpeculationFlagsTest, ADraftModelIsForDraftsAlone) {
  EXPECT_FALSE(ParseFlags({"m", "--num-speculative-tokens=4"})->has_draft_model());
  const auto flags =
      ParseFlags({"m", "--num-speculative-tokens=4", "--speculative=draft", "--draft-model=/models/small"});
  ASSERT_TRUE(flags.ok()) << flags.status();
  EXPECT_TRUE(flags->has_draft_model());
  EXPECT_EQ(flags->draft_model, "/models/small");
}

}  // namespace
}  // namespace somnus
