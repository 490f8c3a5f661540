// Adapters that the package peft has saved (tests/data/make_lora_goldens.py): log-probabilities agree with
// peft and transformers, or the adapter is refused, and the message names the reason.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "checkpoint/lora_adapter.h"
#include "tests/checkpoint/writers.h"
#include "tests/runner/mini_engine.h"
#include "tests/runner/rank_group.h"

namespace somnus {
namespace {

using nlohmann::json;
using testing::HasSubstr;

constexpr char kFolder[] = "tests/data/lora";

std::string Expected(const std::string& adapter) { return ReadFile(adapter + "/expected.json"); }

// The folders of adapters whose expected.json has the key.
std::vector<std::string> Adapters(const char* key) {
  std::vector<std::string> adapters;
  for (const auto& entry : std::filesystem::directory_iterator(kFolder)) {
    const std::string path = entry.path().string();
    if (json::parse(Expected(path)).contains(key)) adapters.push_back(path);
  }
  std::sort(adapters.begin(), adapters.end());
  return adapters;
}

std::string ModelOf(const json& expected) {
  return "tests/data/variants/" + expected["model"].get<std::string>();
}

// The largest difference of a prompt token's log-probability.
double WorstOf(RankGroup& group, const json& cases, int32_t adapter_slot) {
  std::vector<MiniRequest> requests;
  for (const json& one : cases) {
    MiniRequest& request = requests.emplace_back();
    request.prompt = one["prompt"].get<std::vector<int32_t>>();
    request.max_tokens = 1;
    request.sampling.set_num_prompt_logprobs(0);
    request.adapter_slot = adapter_slot;
  }
  MiniOptions options;
  options.num_blocks = 64;
  options.max_step_tokens = 64;
  options.max_running = 4;
  const auto results = RunAll(group, requests, options);
  EXPECT_TRUE(results.ok()) << results.status();
  if (!results.ok()) return 1e9;
  double worst = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    const auto& got = (*results)[i].prompt_logprobs;
    EXPECT_EQ(got.size() + 1, requests[i].prompt.size());
    for (size_t token = 0; token < got.size(); ++token) {
      const double want = cases[i]["prompt_logprobs"][token + 1].get<double>();
      const double distance = std::fabs(got[token].logprobs(0) - want);
      worst = distance <= worst ? worst : distance;  // a NaN is the worst
    }
  }
  return worst;
}

TEST(PeftGoldens, LogprobsAreThoseOfPeft) {
  const std::vector<std::string> adapters = Adapters("cases");
  EXPECT_GE(adapters.size(), 14u);
  for (const std::string& path : adapters) {
    const json expected = json::parse(Expected(path));
    for (const int world_size : {1, 2}) {
      SCOPED_TRACE(testing::Message() << path << " on " << world_size << " ranks");
      ModelRunnerOptions options = SmallRunnerOptions();
      options.max_model_len = 64;  // OPT has a hundred positions
      options.max_adapters = 1;
      options.max_lora_rank = LoraAdapter::kMaxRank;
      const auto group = RankGroup::Load(ModelOf(expected), world_size, options, 64);
      ASSERT_TRUE(group.ok()) << group.status();
      v1::WorkerAdapter adapter;
      adapter.set_slot(1);
      adapter.set_id(1);
      adapter.set_path(path);
      for (int rank = 0; rank < world_size; ++rank)
        ASSERT_EQ((*group)->runner(rank).SetAdapters({adapter}), absl::OkStatus());
      EXPECT_LT(WorstOf(**group, expected["cases"], 1), 1e-4);
      EXPECT_GT(WorstOf(**group, expected["cases"], 0), 0.01) << "the adapter changes something";
    }
  }
}

TEST(PeftGoldens, WhatIsNotSupportedIsRefusedByName) {
  const std::vector<std::string> adapters = Adapters("refused");
  EXPECT_GE(adapters.size(), 11u);
  for (const std::string& path : adapters) {
    const json expected = json::parse(Expected(path));
    const auto base = Checkpoint::Open(ModelOf(expected));
    ASSERT_TRUE(base.ok()) << base.status();
    const absl::Status status = LoraAdapter::Open(path, (*base)->config(), LoraAdapter::kMaxRank).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << path << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(expected["refused"].get<std::string>())) << path;
  }
}

}  // namespace
}  // namespace somnus
