#include "tools/simulator/serving_simulation.h"

#include <gtest/gtest.h>

#include "tools/simulator/figures.h"
#include "tools/simulator/head_of_line.h"
#include "tools/simulator/paged_engine.h"
#include "tools/simulator/serving_report.h"
#include "tools/simulator/svg_chart.h"

namespace somnus {
namespace {

constexpr CostModel kPaper = {25e-3, 0.167e-3, 0.287e-3, 0.695e-6, 33e-6};

class Given : public RequestSource {
 public:
  explicit Given(std::vector<LoadRequest> requests) : requests_(std::move(requests)) {
    for (size_t i = 0; i < requests_.size(); ++i) requests_[i].id = static_cast<int64_t>(i);
  }
  std::optional<LoadRequest> Next() override {
    if (next_ == requests_.size()) return std::nullopt;
    return requests_[next_++];
  }

 private:
  std::vector<LoadRequest> requests_;
  size_t next_ = 0;
};

LoadRequest Request(double arrival_s, int32_t input, int32_t output) {
  LoadRequest request{.arrival_s = arrival_s, .input = input, .output = output};
  return request;
}

SimulationOptions Options(ServingPolicy policy) {
  SimulationOptions options{.policy = policy, .cost = kPaper};
  return options;
}

ServingOutcome Serve(const SimulationOptions& options, double rate, int64_t requests, uint64_t seed = 1) {
  DrawnLoadOptions load{.rate = rate, .requests = requests, .seed = seed};
  const auto outcome = Simulate(options, DrawLoad(load).get());
  EXPECT_TRUE(outcome.ok()) << outcome.status();
  return *outcome;
}

// Every step takes one second.
TEST(ServingSimulationTest, TimesAreThoseOfTheSteps) {
  SimulationOptions options = Options(ServingPolicy::kSomnus);
  options.cost = {1, 0, 0, 0};
  Given load({Request(10, 20, 4), Request(10.5, 20, 1)});
  const auto outcome = Simulate(options, &load);
  ASSERT_TRUE(outcome.ok());
  EXPECT_EQ(outcome->requests, 2);
  EXPECT_EQ(outcome->num_steps, 4);
  // The first request: a step each second from 10. The second waits for the step under way, until 11.
  EXPECT_DOUBLE_EQ(outcome->ttft_s.mean, (1 + 1.5) / 2);
  EXPECT_DOUBLE_EQ(outcome->normalized_latency_s.mean, (4.0 / 4 + 1.5) / 2);
  EXPECT_DOUBLE_EQ(outcome->simulated_s, 14);
}

TEST(ServingSimulationTest, TheSeedDecidesEverything) {
  for (const ServingPolicy policy : {ServingPolicy::kSomnus, ServingPolicy::kOrcaPow2}) {
    const SimulationOptions options = Options(policy);
    const std::string first = ToJson(Serve(options, 2, 200)).dump();
    EXPECT_EQ(first, ToJson(Serve(options, 2, 200)).dump());
    EXPECT_NE(first, ToJson(Serve(options, 2, 200, 2)).dump());
  }
}

TEST(ServingSimulationTest, JsonHasTheNamesThatScriptsReadFrom) {
  const nlohmann::json json = ToJson(Serve(Options(ServingPolicy::kSomnus), 1, 20));
  for (const char* name : {"mean_normalized_latency_s", "kv_utilization", "num_preemptions", "sharing_saved",
                           "simulated_s", "median_ttft_s", "p99_ttft_s"}) {
    ASSERT_TRUE(json.contains(name)) << name;
    EXPECT_TRUE(json[name].is_number()) << name;
  }
  EXPECT_GT(json["kv_utilization"].get<double>(), 0);
  EXPECT_LE(json["kv_utilization"].get<double>(), 1);
}

// As the coordinator does by default: sequences whose copies cost less than computing again are swapped.
TEST(ServingSimulationTest, PreemptsAsServed) {
  SimulationOptions options = Options(ServingPolicy::kSomnus);
  const ServingOutcome served = Serve(options, 4, 300);
  EXPECT_GT(served.num_swap_preemptions, 0);
  options.cost.per_swapped_token = 1;
  const ServingOutcome dear = Serve(options, 4, 300);
  EXPECT_EQ(dear.num_swap_preemptions, 0);
  EXPECT_GT(dear.num_preemptions, 0);
}

TEST(ServingSimulationTest, MemoryIsWastedAsInThePaper) {
  EXPECT_GE(Serve(Options(ServingPolicy::kSomnus), 4, 1000).kv_utilization, 0.96);
  const ServingOutcome max = Serve(Options(ServingPolicy::kOrcaMax), 4, 1000);
  EXPECT_NEAR(max.running_requests, 7, 0.1);  // pieces of 2,048 slots in 15,728
  EXPECT_NEAR(max.live, 0.204, 0.04);
  const ServingOutcome oracle = Serve(Options(ServingPolicy::kOrcaOracle), 4, 1000);
  EXPECT_EQ(oracle.surplus, 0);
  EXPECT_GT(oracle.live, max.live);
}

TEST(ServingSimulationTest, PoliciesRankAsInThePaper) {
  double last = 1e9;
  for (const ServingPolicy policy :
       {ServingPolicy::kSomnus, ServingPolicy::kOrcaOracle, ServingPolicy::kOrcaPow2, ServingPolicy::kOrcaMax,
        ServingPolicy::kFasterTransformer}) {
    const auto rate = SustainedRate(Options(policy), LoadTrace::kShareGpt, 200, 1, 0.3, 4);
    ASSERT_TRUE(rate.ok());
    EXPECT_LT(*rate, last);
    last = *rate;
  }
}

// The paper's figures for 2 to 6 samples and beams, at rates where most requests run.
TEST(ServingSimulationTest, SharingSavesMemoryAsInThePaper) {
  for (const int32_t count : {2, 4, 6}) {
    SimulationOptions options = Options(ServingPolicy::kSomnus);
    options.engine.n = count;
    EXPECT_GE(Serve(options, 3.3 / count, 400).sharing_saved, 0.16) << count << " samples";
    options.engine.n = 1;
    options.engine.beams = count;
    EXPECT_GE(Serve(options, 3.0 / count, 400).sharing_saved, 0.44) << count << " beams";
  }
}

// At a mean of 0.2 s for an output token.
TEST(ServingSimulationTest, RatesAtEqualLatencyAreThoseOfThePaper) {
  const auto rate = [](ServingPolicy policy) {
    const auto found = SustainedRate(Options(policy), LoadTrace::kShareGpt, /*seconds=*/1000, 1, 0.2, 4);
    EXPECT_TRUE(found.ok()) << found.status();
    return found.value_or(0);
  };
  const double ours = rate(ServingPolicy::kSomnus);
  EXPECT_GE(ours, 2.7 * rate(ServingPolicy::kOrcaMax));
  EXPECT_GE(ours, 1.7 * rate(ServingPolicy::kOrcaOracle));
}

TEST(ServingSimulationTest, MoreEnginesServeMore) {
  SimulationOptions options = Options(ServingPolicy::kSomnus);
  const double one = Serve(options, 8, 400).normalized_latency_s.mean;
  options.num_engines = 8;
  for (const RouterKind router :
       {RouterKind::kRoundRobin, RouterKind::kLeastTokens, RouterKind::kPrefixAffinity}) {
    options.router = router;
    EXPECT_LT(Serve(options, 8, 400).normalized_latency_s.mean, one / 3);
  }
}

TEST(ServingSimulationTest, PrefixAffinityComputesAPrefixOnce) {
  SimulationOptions options = Options(ServingPolicy::kSomnus);
  options.num_engines = 4;
  const auto steps = [&](RouterKind router) {
    options.router = router;
    std::vector<LoadRequest> requests;
    for (int i = 0; i < 16; ++i) {
      requests.push_back(Request(i, 1024, 1));
      requests.back().prefix_group = i / 4;
      requests.back().prefix = 1008;
    }
    Given load(requests);
    const auto outcome = Simulate(options, &load);
    EXPECT_TRUE(outcome.ok());
    return outcome->ttft_s.mean;
  };
  EXPECT_LT(steps(RouterKind::kPrefixAffinity), steps(RouterKind::kRoundRobin));
}

TEST(ServingSimulationTest, WhatCanNeverFitIsCounted) {
  Given load({Request(0, 3000, 4), Request(0, 20, 4)});
  const auto outcome = Simulate(Options(ServingPolicy::kSomnus), &load);
  ASSERT_TRUE(outcome.ok());
  EXPECT_EQ(outcome->refused, 1);
  EXPECT_EQ(outcome->requests, 1);
}

TEST(ServingSimulationTest, WrongOptionsAreErrors) {
  SimulationOptions options = Options(ServingPolicy::kSomnus);
  options.router = RouterKind::kPrefixAffinity;
  options.num_engines = 65;
  Given load({});
  EXPECT_EQ(Simulate(options, &load).status().code(), absl::StatusCode::kInvalidArgument);
  options = Options(ServingPolicy::kSomnus);
  options.engine.kv_slots = 8;
  EXPECT_EQ(Simulate(options, &load).status().code(), absl::StatusCode::kInvalidArgument);
  options = Options(ServingPolicy::kSomnus);
  options.cost = {};
  EXPECT_EQ(Simulate(options, &load).status().code(), absl::StatusCode::kInvalidArgument);
}

HeadOfLineOutcome RunSharing(PrefillSharing sharing) {
  const auto engine = MakeSharingEngine(sharing, 512, 64);
  return RunHeadOfLine({}, {1, 0, 0, 0}, engine.get());
}

// 21,000 tokens in steps of 512, of which every sequence that decodes takes one.
TEST(HeadOfLineTest, WhoWaitsDependsOnTheRule) {
  const HeadOfLineOutcome fcfs = RunSharing(PrefillSharing::kFirstComeFirstServed);
  EXPECT_GE(fcfs.short_ttft_steps, 41);
  const HeadOfLineOutcome equal = RunSharing(PrefillSharing::kEqualParts);
  EXPECT_EQ(equal.short_ttft_steps, 2);
  const HeadOfLineOutcome shortest = RunSharing(PrefillSharing::kShortestRemaining);
  EXPECT_EQ(shortest.short_ttft_steps, 2);
  EXPECT_EQ(RunSharing(PrefillSharing::kShortestRemainingAging).short_ttft_steps, 2);
  // Equal parts let all long prompts wait for the last.
  EXPECT_GT(equal.first_long_s, 4 * shortest.first_long_s);
  EXPECT_LE(shortest.last_long_s, 1.1 * fcfs.last_long_s);
}

// The short prompt's first token comes soon, and the six long prompts end hardly later than when served
// first.
TEST(HeadOfLineTest, TheServedSchedulerLetsAShortPromptPass) {
  EngineOptions options;
  options.kv_slots = 65536;
  options.max_num_seqs = 128;
  options.max_num_batched_tokens = 512;
  options.max_model_len = 8192;
  const auto run = [&](int32_t threshold) {
    SchedulerOptions scheduler = ToSchedulerOptions(options);
    scheduler.long_prefill_token_threshold = threshold;
    const auto engine = MakePagedEngine(scheduler);
    return RunHeadOfLine({}, {1, 0, 0, 0}, engine.get());
  };
  const HeadOfLineOutcome served = run(0), first_come = run(4096);
  EXPECT_GE(first_come.short_ttft_steps, 41) << "no prompt is long, and each waits for those before it";
  EXPECT_LE(served.short_ttft_steps, 10);
  EXPECT_LE(10 * served.short_ttft_s, served.last_long_s);
  EXPECT_LE(served.last_long_s, 1.1 * first_come.last_long_s);
}

TEST(SvgChartTest, ChartsAreTextThatNamesWhatTheyShow) {
  const std::string svg = ToSvg(LineChart{.title = "a < b", .series = {{"ours", {{1, 0.5}, {2, 7}}}}});
  EXPECT_EQ(svg.substr(0, 4), "<svg");
  EXPECT_NE(svg.find("a &lt; b"), std::string::npos);
  EXPECT_NE(svg.find(">ours<"), std::string::npos);
  EXPECT_NE(svg.find("290.0,170.0 510.0,40.0"), std::string::npos);  // 7 is cut off at 1
  BarChart bars{.parts = {"live", "lost"}, .bars = {{"paged", {0.75, 0.25}}}};
  EXPECT_NE(ToSvg(bars).find(">75.0<"), std::string::npos);
  EXPECT_NE(ToSvg(bars).find(">paged<"), std::string::npos);
}

}  // namespace
}  // namespace somnus
