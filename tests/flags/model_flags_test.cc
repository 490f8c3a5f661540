// --model=NAME=PATH, and what is about several models.

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "coordinator/flags/flags.h"

namespace somnus {
namespace {

TEST(ModelFlagsTest, ModelsHaveNames) {
  absl::StatusOr<Flags> flags = ParseFlags({"--model=a=x/y=z"});
  ASSERT_TRUE(flags.ok()) << flags.status();
  EXPECT_EQ(flags->model, "x/y=z");
  EXPECT_EQ(flags->served_model_name, "a");
  EXPECT_TRUE(flags->models.empty()) << "it is one model";
  flags = ParseFlags({"--model=./x=y"});
  ASSERT_TRUE(flags.ok()) << flags.status();
  EXPECT_EQ(flags->model, "./x=y") << "a name has no slash";
  flags = ParseFlags({"--model=a=x", "m", "--model=b=y", "--served-model-name=c", "--pin-model=b",
                      "--model-priority=a=-3", "--model-ttft-target=a=2s", "--model-ttft-target=500ms",
                      "--model-tpot-target=b=0.1", "--device-memory-budget=2GiB", "--residency-policy=slo"});
  ASSERT_TRUE(flags.ok()) << flags.status();
  const std::vector<Flags> each = OfEachModel(*flags);
  ASSERT_EQ(each.size(), 3u);
  const char* const expected[][2] = {{"c", "m"}, {"a", "x"}, {"b", "y"}};
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(each[i].served_model_name, expected[i][0]);
    EXPECT_EQ(each[i].model, expected[i][1]);
  }
  EXPECT_EQ(flags->pinned_models.count("b"), 1u);
  EXPECT_EQ(flags->model_priorities.at("a"), -3);
  EXPECT_EQ(TargetOf(flags->model_ttft_targets, "a"), absl::Seconds(2));
  EXPECT_EQ(TargetOf(flags->model_ttft_targets, "b"), absl::Milliseconds(500)) << "that of all";
  EXPECT_EQ(TargetOf(flags->model_tpot_targets, "a"), absl::ZeroDuration());
  EXPECT_EQ(TargetOf(flags->model_tpot_targets, "b"), absl::Milliseconds(100));
  EXPECT_EQ(flags->devices.residency.policy, ResidencyPolicy::kSlo);
  EXPECT_EQ(flags->device_memory_budget, int64_t{2} << 30);
}

TEST(ModelFlagsTest, AliasesOfOneOfSeveralModelsAreThatModelsAlone) {
  const absl::StatusOr<Flags> flags =
      ParseFlags({"m", "--model=b=y", "--served-model-name", "a", "c", "org/d"});
  ASSERT_TRUE(flags.ok()) << flags.status();
  const std::vector<Flags> each = OfEachModel(*flags);
  ASSERT_EQ(each.size(), 2u);
  EXPECT_EQ(each[0].served_model_name, "a");
  EXPECT_EQ(each[0].model_aliases, (std::vector<std::string>{"c", "org/d"}));
  EXPECT_EQ(each[1].served_model_name, "b");
  EXPECT_TRUE(each[1].model_aliases.empty());
}

TEST(ModelFlagsTest, AModelMayHaveSeveralNames) {
  absl::StatusOr<Flags> flags = ParseFlags({"--model=a,b=x", "--model=c=y"});
  ASSERT_TRUE(flags.ok()) << flags.status();
  const std::vector<Flags> each = OfEachModel(*flags);
  ASSERT_EQ(each.size(), 2u);
  EXPECT_EQ(each[0].served_model_name, "a");
  EXPECT_EQ(each[0].model_aliases, std::vector<std::string>{"b"});
  EXPECT_TRUE(each[1].model_aliases.empty());
  flags = ParseFlags({"--model=a,b=x"});
  ASSERT_TRUE(flags.ok()) << flags.status();
  EXPECT_EQ(flags->served_model_name, "a");
  EXPECT_EQ(flags->model_aliases, std::vector<std::string>{"b"});
}

TEST(ModelFlagsTest, ServedNamesOfTheOnlyModelLeaveItsOwnNames) {
  const absl::StatusOr<Flags> flags = ParseFlags({"--model=a,b,c=x", "--served-model-name", "d", "b"});
  ASSERT_TRUE(flags.ok()) << flags.status();
  EXPECT_EQ(flags->model, "x");
  EXPECT_EQ(flags->served_model_name, "d");
  EXPECT_EQ(flags->model_aliases, (std::vector<std::string>{"b", "a", "c"}));
}

TEST(ModelFlagsTest, WhatDoesNotGoTogetherIsRefused) {
  const std::vector<std::pair<std::vector<std::string>, const char*>> cases = {
      {{"--model=a="}, "--model: 'a=' has no path after the name"},
      {{"--model=a,=x"}, "--model: 'a,=x' has an empty name"},
      {{"--model=a,b=x", "--model=b=y"}, "--model: two models are named b"},
      {{"--model=a=x", "--model=a=y"}, "--model: two models are named a"},
      {{"--model=a=x", "--model=b=y", "--served-model-name=c"}, "--served-model-name: all models have"},
      {{"m", "--model=b=y", "--served-model-name", "a", "b"}, "--model: two models are named b"},
      {{"--model=a=x", "--model=b=y", "--workers=remote:1"}, "--workers: several models need workers of"},
      {{"--model=a=x", "--device-memory-budget=1GiB"}, "--device-memory-budget: is for several models"},
      {{"m", "--pin-model=m"}, "--pin-model: is for several models"},
      {{"m", "--model-tpot-target=1s"}, "--model-tpot-target: is for several models"},
      {{"--model=a=x", "--model=b=y", "--model-ttft-target=1s"},
       "--model-ttft-target: is for --residency-pol"},
      {{"m", "--model-ttft-target=a=soon"}, "--model-ttft-target: 'a=soon' is not [NAME=]TIME"},
      {{"m", "--model-tpot-target==1s"}, "--model-tpot-target: '=1s' is not [NAME=]TIME"},
      {{"m", "--prefetch-cpu-share=0"}, "--prefetch-cpu-share: '0' is not a number from 0.001 to 1"},
      {{"m", "--prefetch-cpu-share=1.5"}, "--prefetch-cpu-share: '1.5' is not a number from 0.001 to 1"},
      {{"m", "--model-priority=7"}, "--model-priority: '7' is not NAME=N"},
  };
  for (const auto& [args, expected] : cases) {
    const auto flags = ParseFlags(args);
    ASSERT_FALSE(flags.ok()) << expected;
    EXPECT_EQ(flags.status().message().substr(0, std::string(expected).size()), expected);
  }
}

TEST(ModelFlagsTest, EveryModelHasTheFlagsThatAreForAll) {
  const auto flags =
      ParseFlags({"--model=a=/m", "--model=b=/m", "--backup=file", "--prefetch-cpu-share=0.5"});
  ASSERT_TRUE(flags.ok()) << flags.status();
  for (const Flags& model : OfEachModel(*flags)) {
    EXPECT_EQ(model.backup, v1::BACKUP_POLICY_FILE);
    EXPECT_EQ(model.spill_dir, "") << "the checkpoint is the backup";
    EXPECT_EQ(model.prefetch_cpu_share, 0.5);
  }
  EXPECT_EQ(ParseFlags({"m"})->prefetch_cpu_share, 0.125);
}

TEST(ModelFlagsTest, OneOfSeveralModelsKeepsTheKvCacheOfOpenRequests) {
  for (const Flags& flags : OfEachModel(*ParseFlags({"--model=a=/m", "--model=b=/m"})))
    EXPECT_TRUE(KeepsKvOnSleep(flags));
  for (const Flags& flags :
       OfEachModel(*ParseFlags({"--model=a=/m", "--model=b=/m", "--no-keep-kv-on-sleep"})))
    EXPECT_FALSE(KeepsKvOnSleep(flags));
}

TEST(ModelFlagsTest, EachModelHasARunDirectoryOfItsOwn) {
  const absl::StatusOr<Flags> flags =
      ParseFlags({"x", "--model=a=y", "--model=a.b=z", "--run-dir=/r", "--data-parallel-size=2"});
  ASSERT_TRUE(flags.ok()) << flags.status();
  std::vector<std::string> paths;
  for (const Flags& model : OfEachModel(*flags)) paths.push_back(OfReplica(model, 1).run_dir);
  EXPECT_EQ(paths, (std::vector<std::string>{"/r/model-/replica-1", "/r/model-a/replica-1",
                                             "/r/model-a_2eb/replica-1"}));
}

}  // namespace
}  // namespace somnus
