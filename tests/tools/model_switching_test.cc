// The promises of the residency policy, for random models, requests and failures, in virtual time.
#include "tools/simulator/model_switching.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace somnus {
namespace {

int Draw(std::mt19937_64* random, int low, int high) {
  return std::uniform_int_distribution<int>(low, high)(*random);
}

struct Load {
  std::vector<SimulatedModel> models;
  std::vector<SimulatedRequest> requests;
  ResidencyOptions options;
  absl::Duration longest_request;  // of what one request computes, alone
};

Load MakeLoad(uint64_t seed) {
  std::mt19937_64 random(seed);
  Load load;
  const int num_models = Draw(&random, 2, 8);
  int64_t largest = 0, all = 0;
  for (int i = 0; i < num_models; ++i) {
    SimulatedModel& model = load.models.emplace_back();
    model.device_bytes = Draw(&random, 1, 6);
    model.backup_bytes = Draw(&random, 0, 4);
    model.priority = Draw(&random, 0, 2);
    model.wake_up = absl::Milliseconds(Draw(&random, 1, 400));
    model.wake_up_discarded = 3 * model.wake_up;
    model.sleep = absl::Milliseconds(Draw(&random, 1, 50));
    model.step = absl::Milliseconds(Draw(&random, 2, 40));
    largest = std::max(largest, model.device_bytes);
    all += model.device_bytes;
  }
  load.options.device_memory_budget = Draw(&random, static_cast<int>(largest), static_cast<int>(all));
  load.options.host_memory_budget = Draw(&random, 0, 12);
  load.options.policy = seed % 2 == 0 ? ResidencyPolicy::kFifo : ResidencyPolicy::kSlo;
  load.options.max_wait = absl::Seconds(Draw(&random, 1, 10));
  absl::Duration at;
  for (int i = 0; i < 300; ++i) {
    at += absl::Milliseconds(Draw(&random, 0, 300));
    // The first models are called most.
    const int model = std::min(Draw(&random, 0, num_models - 1), Draw(&random, 0, num_models - 1));
    load.requests.push_back({model, at, Draw(&random, 1, 60)});
    load.longest_request = std::max(load.longest_request, 60 * load.models[model].step);
  }
  return load;
}

SwitchingPolicy Planned(const ResidencyOptions& options) {
  return [options](MonotonicTime now, const std::vector<ModelView>& models) {
    return PlanResidency(options, now, models);
  };
}

// Every model is awake for a turn, and is switched, before the first in the row comes again.
absl::Duration LongestWait(const Load& load) {
  absl::Duration round;
  for (const SimulatedModel& model : load.models)
    round += 4 * (model.wake_up_discarded + model.sleep) + load.options.turn + 8 * model.step;
  return load.options.max_wait + 2 * round;
}

TEST(ModelSwitchingTest, BudgetsHoldAndEveryRequestEnds) {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE(seed);
    const Load load = MakeLoad(seed);
    const SwitchingOutcome outcome = SimulateSwitching(load.models, load.requests, Planned(load.options));
    EXPECT_FALSE(outcome.stuck);
    EXPECT_LE(outcome.most_device_bytes, load.options.device_memory_budget);
    EXPECT_LE(outcome.most_host_bytes, load.options.host_memory_budget);
    EXPECT_GE(outcome.shortest_stay, load.options.minimum_stay);
    for (size_t i = 0; i < load.requests.size(); ++i) {
      EXPECT_LT(outcome.requests[i].latency, absl::InfiniteDuration()) << i;
      EXPECT_LT(outcome.requests[i].ttft, LongestWait(load)) << i;
    }
  }
}

TEST(ModelSwitchingTest, WakeUpsThatFailDelayOnly) {
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    SCOPED_TRACE(seed);
    const Load load = MakeLoad(seed);
    std::mt19937_64 random(seed);
    SwitchingOptions options{.wake_up_fails = [&](int) { return Draw(&random, 0, 2) == 0; }};
    const SwitchingOutcome outcome =
        SimulateSwitching(load.models, load.requests, Planned(load.options), options);
    EXPECT_FALSE(outcome.stuck);
    EXPECT_LE(outcome.most_device_bytes, load.options.device_memory_budget);
    EXPECT_LE(outcome.most_host_bytes, load.options.host_memory_budget);
  }
}

TEST(ModelSwitchingTest, APrefetchShortensTheWakeUpOfTheNextModel) {
  SimulatedModel model;
  model.wake_up_discarded = absl::Seconds(3);
  model.wake_up_prefetched = absl::Seconds(1);
  model.prefetch = absl::Seconds(4);
  model.sleep = absl::Milliseconds(50);
  model.step = absl::Milliseconds(10);
  ResidencyOptions options{.device_memory_budget = 1, .host_memory_budget = 0};
  std::vector<SimulatedModel> models(2, model);
  for (SimulatedModel& one : models) one.backup_bytes = 1;
  // The second model is called while the first one has ten seconds to compute.
  const std::vector<SimulatedRequest> requests = {{0, {}, 1000}, {1, absl::Seconds(4), 1}};
  const auto ttft = [&] { return SimulateSwitching(models, requests, Planned(options)).requests[1].ttft; };
  const absl::Duration with = ttft();
  models[1].wake_up_prefetched = absl::InfiniteDuration();
  EXPECT_EQ(ttft() - with, absl::Seconds(2));
  models[1].wake_up_prefetched = absl::Seconds(1);
  models[1].prefetch = absl::Minutes(1);
  EXPECT_EQ(ttft() - with, absl::Seconds(2)) << "it has not ended in time";
  EXPECT_EQ(SimulateSwitching(models, requests, Planned(options)).num_prefetches, 1)
      << "the first one wakes at once";
}

// Two models that do not fit together and are called in turns: the worst for who switches at every call.
TEST(ModelSwitchingTest, AlternatingRequestsDoNotThrash) {
  SimulatedModel model;
  model.wake_up = model.wake_up_discarded = absl::Milliseconds(200);
  model.sleep = absl::Milliseconds(50);
  model.step = absl::Milliseconds(10);
  const std::vector<SimulatedModel> models(2, model);
  std::vector<SimulatedRequest> requests;
  for (int i = 0; i < 600; ++i) requests.push_back({i % 2, i * absl::Milliseconds(100), 5});
  ResidencyOptions options{.device_memory_budget = 1};
  const SwitchingOutcome naive = SimulateSwitching(
      models, requests,
      [](MonotonicTime, const std::vector<ModelView>& views) { return PlanNaiveLru(1, views); });
  for (const ResidencyPolicy policy : {ResidencyPolicy::kFifo, ResidencyPolicy::kSlo}) {
    options.policy = policy;
    const SwitchingOutcome outcome = SimulateSwitching(models, requests, Planned(options));
    // A model that wakes stays for twice a switch.
    EXPECT_LE(outcome.switching, (outcome.end + absl::Seconds(1)) / 3);
    EXPECT_GE(outcome.shortest_stay, absl::Milliseconds(500));
    EXPECT_LE(2 * outcome.num_wake_ups, naive.num_wake_ups);
  }
}

// A model that is called without a pause does not keep another from its turn.
TEST(ModelSwitchingTest, NobodyStarvesBesideOneThatIsAlwaysBusy) {
  SimulatedModel model;
  model.wake_up = model.wake_up_discarded = absl::Milliseconds(200);
  model.sleep = absl::Milliseconds(50);
  model.step = absl::Milliseconds(10);
  std::vector<SimulatedModel> models(2, model);
  models[0].priority = 1;
  std::vector<SimulatedRequest> requests;
  for (int i = 0; i < 2000; ++i) requests.push_back({0, i * absl::Milliseconds(50), 200});
  requests.push_back({1, absl::Seconds(10), 5});
  std::stable_sort(requests.begin(), requests.end(),
                   [](const auto& a, const auto& b) { return a.arrival < b.arrival; });
  ResidencyOptions options{.device_memory_budget = 1};
  const SwitchingOutcome outcome = SimulateSwitching(models, requests, Planned(options));
  for (size_t i = 0; i < requests.size(); ++i) {
    if (requests[i].model != 1) continue;
    EXPECT_LT(outcome.requests[i].ttft, options.max_wait + absl::Seconds(1));
    EXPECT_GT(outcome.requests[i].ttft, options.max_wait) << "the busy one has the higher priority";
  }
  EXPECT_EQ(outcome.num_preemptions, 1);
}

// Switching at any token lets models run in turns where switching after whole requests makes them wait.
TEST(ModelSwitchingTest, TokensInTimeByTokenAndByRequest) {
  SimulatedModel model;
  model.wake_up = model.wake_up_discarded = absl::Milliseconds(300);
  model.sleep = absl::Milliseconds(50);
  model.step = absl::Milliseconds(25);
  const std::vector<SimulatedModel> models(2, model);
  const std::vector<SimulatedRequest> requests = {{0, absl::ZeroDuration(), 1000},
                                                  {1, absl::Seconds(1), 1000}};
  ResidencyOptions options{.device_memory_budget = 1, .max_wait = absl::InfiniteDuration()};
  const auto in_time = [&](ResidencyPolicy policy) {
    options.policy = policy;
    const SwitchingOutcome outcome = SimulateSwitching(models, requests, Planned(options));
    return outcome.requests[0].num_tokens_in_time + outcome.requests[1].num_tokens_in_time;
  };
  EXPECT_EQ(in_time(ResidencyPolicy::kSlo), 2000);
  EXPECT_LT(in_time(ResidencyPolicy::kFifo), 1900);
}

}  // namespace
}  // namespace somnus
