// Fair sharing among users: who goes first, in which order exactly, and that nothing else changes.

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/scheduler/reference_beams.h"

namespace somnus {
namespace {

// The budget is 16 and there are 8 slots.
SchedulerOptions FairOptions(int32_t num_blocks = 400) {
  SchedulerOptions options = SmallOptions(num_blocks);
  options.max_model_len = 400;
  options.accounts = UserAccounts::Create(100);
  return options;
}

EngineRequest Of(const std::string& user, EngineRequest request) {
  request.user = user;
  return request;
}

// Ids in the order of the first tokens' steps, then of names.
std::vector<std::string> OrderOfService(const Harness& harness) {
  std::vector<std::pair<int64_t, std::string>> order;
  for (const auto& [id, answer] : harness.answers) order.emplace_back(answer.first_token_step, id);
  std::sort(order.begin(), order.end());
  std::vector<std::string> ids;
  for (const auto& [step, id] : order) ids.push_back(id);
  return ids;
}

class FairSharingTest : public ::testing::TestWithParam<size_t> {
 protected:
  void ExpectExact(const std::vector<EngineRequest>& requests, const Harness& harness) {
    for (const EngineRequest& request : requests)
      EXPECT_EQ(harness.answers.at(request.id).tokens, Reference(request)) << request.id;
    EXPECT_EQ(harness.scheduler.blocks().pool().num_used(), 0);
  }
};
INSTANTIATE_TEST_SUITE_P(Overlap, FairSharingTest, ::testing::Values(0, 1));

// Each request fills a step. A new user is served beside the flood, although the flood's next request came
// before.
TEST_P(FairSharingTest, AFloodDelaysAnotherUserByOneStep) {
  for (const bool fair : {false, true}) {
    SCOPED_TRACE(fair);
    SchedulerOptions options = FairOptions();
    if (!fair) options.accounts = nullptr;
    Harness harness(options, GetParam());
    std::vector<EngineRequest> requests;
    for (int i = 0; i < 9; ++i)
      requests.push_back(Of("flood", MakeRequest("f" + std::to_string(i), 16, 1, 30 * i + 1)));
    for (const EngineRequest& request : requests) harness.Add(request);
    harness.Step();
    const EngineRequest light = Of("light", MakeRequest("light", 16, 1, 500));
    requests.push_back(light);
    harness.Run(light);
    EXPECT_EQ(harness.answers["light"].first_token_step, fair ? 3 : 10);
    ExpectExact(requests, harness);
  }
}

TEST_P(FairSharingTest, UsersTakeTurnsByTheTokensThatTheyHaveHad) {
  Harness harness(FairOptions(), GetParam());
  std::vector<EngineRequest> requests;
  for (int i = 0; i < 4; ++i)
    requests.push_back(Of("a", MakeRequest("a" + std::to_string(i), 16, 0, 30 * i + 1)));
  for (int i = 0; i < 4; ++i)
    requests.push_back(Of("b", MakeRequest("b" + std::to_string(i), 16, 0, 30 * i + 300)));
  for (const EngineRequest& request : requests) harness.Add(request);
  harness.RunToEnd();
  std::vector<std::vector<int32_t>> prompts;
  for (const v1::StepRequest& step : harness.steps) {
    for (const v1::NewSequence& sequence : step.new_sequences())
      prompts.push_back({sequence.token_ids().begin(), sequence.token_ids().end()});
  }
  // With overlap an output is charged a step later.
  const std::vector<int> order =
      GetParam() == 0 ? std::vector<int>{0, 4, 1, 5, 2, 6, 3, 7} : std::vector<int>{0, 4, 5, 1, 2, 6, 7, 3};
  ASSERT_EQ(prompts.size(), order.size());
  for (size_t i = 0; i < order.size(); ++i) EXPECT_EQ(prompts[i], requests[order[i]].prompt) << i;
}

// A prompt of 48 tokens is worth three prompts of 16.
TEST_P(FairSharingTest, LongPromptsCostMore) {
  SchedulerOptions options = FairOptions();
  options.max_num_seqs = 1;
  Harness harness(options, GetParam());
  for (int i = 0; i < 2; ++i)
    harness.Add(Of("long", MakeRequest("l" + std::to_string(i), 48, 0, 60 * i + 1)));
  for (int i = 0; i < 4; ++i)
    harness.Add(Of("short", MakeRequest("s" + std::to_string(i), 16, 0, 30 * i + 300)));
  std::vector<size_t> prompts;
  harness.RunToEnd();
  for (const v1::StepRequest& step : harness.steps) {
    for (const v1::NewSequence& sequence : step.new_sequences()) prompts.push_back(sequence.token_ids_size());
  }
  // With one slot an output counts, too, before the next choice: 48 + 2 against 16 + 2 each.
  EXPECT_EQ(prompts, (std::vector<size_t>{48, 16, 16, 16, 48, 16}));
}

TEST_P(FairSharingTest, PriorityComesBeforeFairness) {
  SchedulerOptions options = FairOptions();
  options.policy = SchedulingPolicy::kPriority;
  Harness harness(options, GetParam());
  EngineRequest urgent = Of("a", MakeRequest("urgent", 16, 1, 100)),
                other = Of("b", MakeRequest("other", 16, 1, 200));
  other.priority = 5;
  harness.Run(Of("a", MakeRequest("first", 16, 1)), other, urgent);
  EXPECT_EQ(OrderOfService(harness), (std::vector<std::string>{"first", "urgent", "other"}));
}

// A long prompt of the flood is being computed; a longer prompt of a light user need not wait for the end.
TEST_P(FairSharingTest, ALongPromptDoesNotWaitForOneOfAUserWhoHadMore) {
  for (const char* user : {"flood", "light"}) {
    SCOPED_TRACE(user);
    Harness harness(FairOptions(), GetParam());
    const EngineRequest first = Of("flood", MakeRequest("first", 160, 1)),
                        second = Of(user, MakeRequest("second", 200, 1, 500));
    harness.Add(first);
    harness.Step();
    harness.Run(second);
    const bool shares = std::string(user) == "light";
    EXPECT_EQ(harness.steps[2].new_sequences_size(), shares ? 1 : 0);
    EXPECT_EQ(harness.answers["first"].first_token_step, shares ? 18 : 10) << "half of each step from 3 on";
    ExpectExact({first, second}, harness);
  }
}

TEST_P(FairSharingTest, AFreedSlotGoesToTheUserWhoHadLess) {
  SchedulerOptions options = FairOptions();
  options.max_num_seqs = 2;
  Harness harness(options, GetParam());
  std::vector<EngineRequest> requests;
  for (int i = 0; i < 6; ++i)
    requests.push_back(Of("flood", MakeRequest("f" + std::to_string(i), 4, 10 + 5 * i, 30 * i + 1)));
  for (const EngineRequest& request : requests) harness.Add(request);
  harness.Step();
  requests.push_back(Of("light", MakeRequest("light", 4, 3, 500)));
  harness.Run(requests.back());
  const std::vector<std::string> order = OrderOfService(harness);
  EXPECT_EQ(std::find(order.begin(), order.end(), "light") - order.begin(), 2) << "after the two that ran";
  ExpectExact(requests, harness);
}

// The blocks suffice for one of the two requests. The user who had more gives way.
TEST_P(FairSharingTest, TheOneWhoHadMoreIsPreempted) {
  SchedulerOptions options = FairOptions(/*num_blocks=*/13);  // 48 tokens
  options.blocks.enable_prefix_caching = false;
  const auto is_there = options.accounts->Enter("light");  // from the beginning
  Harness harness(options, GetParam());
  const EngineRequest heavy = Of("heavy", MakeRequest("heavy", 16, 20)),
                      light = Of("light", MakeRequest("light", 8, 20, 300));
  harness.Add(heavy);
  harness.Step();
  harness.Run(light);
  EXPECT_GT(harness.scheduler.stats().num_preemptions(), 0);
  int num_admissions = 0;
  for (const v1::StepRequest& step : harness.steps) {
    for (const v1::NewSequence& sequence : step.new_sequences())
      num_admissions += sequence.token_ids(0) == light.prompt[0] ? 1 : 0;
  }
  EXPECT_EQ(num_admissions, 1);
  ExpectExact({heavy, light}, harness);
}

// The charges for choices and beams go to their user; cached tokens cost nothing.
TEST_P(FairSharingTest, WhatIsChargedIsWhatWasComputedOnce) {
  SchedulerOptions options = FairOptions();
  Harness harness(options, GetParam());
  const auto account = [&](const char* user) { return options.accounts->Enter(user); };
  const auto plain = account("plain"), choices = account("choices"), cached = account("cached"),
             beams = account("beams");
  harness.Run(Of("plain", MakeRequest("p", 16, 5)));
  EXPECT_EQ(plain->service(), 16 + 2 * 5);
  harness.Run(Of("cached", MakeRequest("again", 17, 5)));
  EXPECT_EQ(cached->service(), 1 + 2 * 5);
  EngineRequest choice = Of("choices", MakeRequest("c0", 16, 5, 100));
  harness.Add(choice);
  choice.id = "c1";
  choice.fork_of = "c0";
  harness.Run(choice);
  EXPECT_EQ(choices->service(), 16 + 2 * 2 * 5);
  EngineRequest search = Of("beams", BeamRequest("b", 3, 16, 5));
  ParamsOf(&search)->ignore_eos = true;
  SetPromptToken(0, 900, &search);
  harness.Run(search);
  EXPECT_EQ(beams->service(), 16 + 2 * (1 + 4 * 3));
}

TEST_P(FairSharingTest, WhatIsComputedAgainIsNotChargedAgain) {
  SchedulerOptions options = FairOptions();
  const auto account = options.accounts->Enter("u");
  Harness harness(options, GetParam());
  harness.Add(Of("u", MakeRequest("a", 16, 10)));
  for (int i = 0; i < 4; ++i) harness.Step();
  harness.Lose();
  std::vector<EngineRequest> requests = harness.scheduler.ReleaseAll();
  Harness next(options, GetParam());
  for (EngineRequest& request : requests) next.Add(std::move(request));
  next.RunToEnd();
  EXPECT_EQ(account->service(), 16 + 2 * 10);
}

// A user with 1,000 waiting requests costs a step as much as a user with ten: the requests do not even move.
TEST_P(FairSharingTest, WhatWaitsIsNotTouched) {
  SchedulerOptions options = FairOptions();
  options.max_num_seqs = 1;
  Scheduler scheduler(options);
  std::vector<SequencePtr> waiting;
  for (int i = 0; i < 1000; ++i)
    waiting.push_back(scheduler.Add(Of("u" + std::to_string(i % 2), MakeRequest(std::to_string(i), 4, 50))));
  std::vector<int64_t> before;
  ASSERT_FALSE(scheduler.Schedule().empty());
  for (const SequencePtr& sequence : waiting) before.push_back(sequence->service);
  const auto account = options.accounts->Enter("u0");
  account->Charge(10);
  scheduler.Schedule();
  int num_moved = 0;
  for (size_t i = 0; i < waiting.size(); ++i) num_moved += waiting[i]->service != before[i] ? 1 : 0;
  EXPECT_LE(num_moved, 3) << "what runs, and the first of each user";
  EXPECT_TRUE(scheduler.CheckIntegrity().ok());
}

TEST_P(FairSharingTest, RandomUsersHaveExactAnswers) {
  for (uint32_t seed = 1; seed <= 20; ++seed) {
    std::mt19937 random(seed);
    SchedulerOptions options = FairOptions(/*num_blocks=*/24);
    options.max_model_len = 60;
    options.policy = seed % 2 == 0 ? SchedulingPolicy::kPriority : SchedulingPolicy::kFcfs;
    options.priority_aging_steps = 7;
    options.preemption = seed % 3 == 0 ? PreemptionMode::kSwap : PreemptionMode::kRecompute;
    options.blocks.num_host_blocks = 16;
    Harness harness(options, GetParam());
    std::vector<EngineRequest> requests;
    for (int i = 0; i < 60; ++i) {
      requests.push_back(Of(std::to_string(random() % 4), RandomRequest(std::to_string(i), &random)));
      harness.Add(requests.back());
      if (random() % 8 == 0 && i > 5) {
        harness.scheduler.Abort(std::to_string(i - 3));
        requests.erase(std::find_if(requests.begin(), requests.end(), [&](const EngineRequest& request) {
          return request.id == std::to_string(i - 3);
        }));
      }
      for (uint32_t steps = random() % 4; steps > 0; --steps) harness.Step();
    }
    harness.RunToEnd();
    for (const EngineRequest& request : requests)
      ASSERT_EQ(harness.answers[request.id].tokens, Reference(request)) << seed << " " << request.id;
  }
}

}  // namespace
}  // namespace somnus
