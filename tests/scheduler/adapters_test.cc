// How many different adapters a step has, and who waits for an adapter.

#include <gtest/gtest.h>

#include <set>

#include "tests/scheduler/reference_beams.h"
#include "tests/scheduler/scheduler_harness.h"

namespace somnus {
namespace {

EngineRequest WithAdapter(EngineRequest request, int32_t slot) {
  auto adapter = std::make_shared<RequestAdapter>();
  adapter->slot = slot;
  adapter->id = static_cast<uint64_t>(slot) + 100;
  request.adapter = adapter;
  request.cache_salt = "lora " + std::to_string(slot);
  return request;
}

// The slots of adapters that each step computes.
std::vector<std::set<int32_t>> AdaptersOfSteps(const Harness& harness) {
  std::vector<std::set<int32_t>> adapters;
  std::map<int32_t, int32_t> adapter_of;  // by slot of the sequence
  for (const v1::StepRequest& step : harness.steps) {
    for (const v1::NewSequence& sequence : step.new_sequences())
      adapter_of[sequence.slot()] = sequence.adapter_slot();
    std::set<int32_t>& now = adapters.emplace_back();
    for (const v1::ScheduledSequence& sequence : step.sequences()) {
      if (adapter_of[sequence.slot()] > 0) now.insert(adapter_of[sequence.slot()]);
    }
  }
  return adapters;
}

class AdaptersTest : public ::testing::TestWithParam<int> {
 protected:
  size_t depth() const { return static_cast<size_t>(GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(Overlap, AdaptersTest, ::testing::Values(0, 1));

TEST_P(AdaptersTest, StepsHaveAtMostMaxLoras) {
  for (const int32_t max_loras : {1, 2}) {
    SchedulerOptions options = SmallOptions();
    options.max_loras = max_loras;
    Harness harness(options, depth());
    std::vector<EngineRequest> requests;
    for (int i = 0; i < 9; ++i) {
      EngineRequest request = MakeRequest(std::to_string(i), 3 + i % 4, 5, 10 * i);
      if (i % 3 > 0) request = WithAdapter(std::move(request), i % 3);
      if (i == 8) request = WithAdapter(std::move(request), 3);
      requests.push_back(request);
      harness.Add(request);
    }
    harness.RunToEnd();
    size_t most = 0;
    for (const std::set<int32_t>& adapters : AdaptersOfSteps(harness)) most = std::max(most, adapters.size());
    EXPECT_EQ(most, static_cast<size_t>(max_loras));
    for (const EngineRequest& request : requests)
      EXPECT_EQ(harness.answers[request.id].tokens, Reference(request)) << request.id;
  }
}

// A stream of requests for one adapter does not hold back a request for a second adapter; and requests for
// the model itself wait for nobody.
TEST_P(AdaptersTest, NobodyWaitsForEver) {
  SchedulerOptions options = SmallOptions();
  options.max_loras = 1;
  Harness harness(options, depth());
  harness.Add(WithAdapter(MakeRequest("first", 4, 6), 1));
  harness.Step();
  harness.Add(WithAdapter(MakeRequest("other", 4, 2, 50), 2));
  for (int i = 0; i < 4; ++i) {
    harness.Add(WithAdapter(MakeRequest("late " + std::to_string(i), 4, 6, 100 * i), 1));
    harness.Step();
  }
  harness.Run(MakeRequest("base", 4, 2, 70));
  EXPECT_LT(harness.answers["base"].first_token_step, harness.answers["other"].first_token_step);
  for (int i = 0; i < 4; ++i) {
    EXPECT_LT(harness.answers["other"].first_token_step,
              harness.answers["late " + std::to_string(i)].first_token_step);
  }
}

TEST_P(AdaptersTest, PreemptedSequencesComeBackWithTheirAdapters) {
  SchedulerOptions options = SmallOptions(/*num_blocks=*/17);
  options.max_loras = 2;
  Harness harness(options, depth());
  std::vector<EngineRequest> requests;
  for (int i = 0; i < 4; ++i) {
    requests.push_back(WithAdapter(MakeRequest(std::to_string(i), 8, 20, 100 * i), 1 + i % 2));
    harness.Add(requests.back());
  }
  harness.RunToEnd();
  int num_sent = 0;
  for (const v1::StepRequest& step : harness.steps) {
    for (const v1::NewSequence& sequence : step.new_sequences()) {
      ++num_sent;
      const int32_t first = sequence.token_ids(0);  // which tells the request
      EXPECT_EQ(sequence.adapter_slot(), 1 + (first / 100) % 2);
    }
  }
  EXPECT_GT(num_sent, 4) << "some were preempted";
  for (const EngineRequest& request : requests)
    EXPECT_EQ(harness.answers[request.id].tokens, Reference(request)) << request.id;
}

// New workers get every beam whole, not as a branch of a beam that has the adapter.
TEST_P(AdaptersTest, BeamsComeBackWithTheirAdapter) {
  Harness harness(SmallOptions(/*num_blocks=*/200), depth());
  EngineRequest request = WithAdapter(BeamRequest("b", 3, 8, 12), 1);
  ParamsOf(&request)->ignore_eos = true;
  harness.Add(request);
  for (int i = 0; i < 6; ++i) harness.Step();
  harness.Lose();
  harness.RunToEnd();
  int num_sent = 0;
  for (const v1::StepRequest& step : harness.steps) {
    for (const v1::NewSequence& sequence : step.new_sequences()) {
      ++num_sent;
      EXPECT_EQ(sequence.adapter_slot(), 1);
    }
  }
  EXPECT_EQ(num_sent, 1 + 3);
  ExpectExactAnswer(request, harness);
}

}  // namespace
}  // namespace somnus
