// Sequences whose time is over end in every state, and nobody else notices. And how much work is ahead of a
// waiting sequence.

#include <gtest/gtest.h>

#include "tests/scheduler/reference_beams.h"

namespace somnus {
namespace {

constexpr MonotonicTime At(int64_t seconds) { return absl::Seconds(seconds); }

EngineRequest WithDeadline(EngineRequest request, MonotonicTime deadline) {
  request.deadline = deadline;
  return request;
}

EngineRequest WithFirstTokenBy(EngineRequest request, MonotonicTime time) {
  request.first_token_by = time;
  return request;
}

// Ids and causes, in order.
std::vector<std::pair<std::string, ExpiryCause>> Expire(MonotonicTime now, Harness* harness) {
  std::vector<std::pair<std::string, ExpiryCause>> ended;
  for (const ExpiredSequence& expired : harness->scheduler.Expire(now))
    ended.emplace_back(expired.sequence->request.id, expired.cause);
  harness->Check();
  return ended;
}
using Ended = std::vector<std::pair<std::string, ExpiryCause>>;

class ExpiryTest : public ::testing::TestWithParam<size_t> {};
INSTANTIATE_TEST_SUITE_P(Overlap, ExpiryTest, ::testing::Values(0, 1));

TEST_P(ExpiryTest, DeadlinesEndWhatWaitsAndWhatRuns) {
  SchedulerOptions options = SmallOptions();
  options.max_num_seqs = 2;
  Harness harness(options, GetParam());
  const EngineRequest patient = MakeRequest("patient", 6, 30, 300);
  harness.Add(WithDeadline(MakeRequest("runs", 6, 50), At(10)));
  harness.Add(patient, WithDeadline(MakeRequest("waits", 6, 50, 100), At(8)));
  for (int i = 0; i < 5; ++i) harness.Step();
  EXPECT_EQ(harness.scheduler.NextExpiry(), At(8));
  EXPECT_EQ(Expire(At(7), &harness), Ended());
  EXPECT_EQ(Expire(At(8), &harness), (Ended{{"waits", ExpiryCause::kDeadlineWaiting}}));
  EXPECT_EQ(harness.scheduler.NextExpiry(), At(10));
  const int32_t used = harness.scheduler.blocks().pool().num_used();
  EXPECT_EQ(Expire(At(11), &harness), (Ended{{"runs", ExpiryCause::kDeadlineRunning}}));
  EXPECT_LT(harness.scheduler.blocks().pool().num_used(), used) << "its blocks are free at once";
  EXPECT_EQ(harness.scheduler.NextExpiry(), absl::InfiniteDuration());
  harness.RunToEnd();
  EXPECT_EQ(harness.answers["patient"].tokens, Reference(patient));
  EXPECT_EQ(harness.scheduler.blocks().pool().num_used(), 0);
  EXPECT_LT(harness.answers["runs"].tokens.size(), 50u);
  EXPECT_EQ(harness.answers["runs"].reason, FinishReason::kNone) << "the step in flight adds nothing";
}

TEST_P(ExpiryTest, ATimeForTheFirstTokenIsKeptBySchedulingInTime) {
  SchedulerOptions options = SmallOptions();
  options.max_num_seqs = 1;
  Harness harness(options, GetParam());
  const EngineRequest runs = WithFirstTokenBy(MakeRequest("runs", 6, 10), At(5));
  harness.Add(runs);
  harness.Add(WithFirstTokenBy(MakeRequest("waits", 6, 10, 100), At(5)));
  harness.Add(WithDeadline(WithFirstTokenBy(MakeRequest("both", 6, 10, 200), At(9)), At(5)));
  harness.Step();
  EXPECT_EQ(Expire(At(5), &harness),
            (Ended{{"waits", ExpiryCause::kTtftPassed}, {"both", ExpiryCause::kDeadlineWaiting}}));
  harness.RunToEnd();
  EXPECT_EQ(harness.answers["runs"].tokens, Reference(runs));
}

// No choice of three, and no beam of a search, ends while its prompt is being computed.
TEST_P(ExpiryTest, ChoicesExpireTogetherOrNotAtAll) {
  for (const bool begins : {false, true}) {
    Harness harness(SmallOptions(), GetParam());
    std::vector<EngineRequest> choices(3, WithFirstTokenBy(MakeRequest("c0", 40, 5), At(5)));
    for (size_t i = 1; i < 3; ++i) {
      choices[i].id = "c" + std::to_string(i);
      choices[i].fork_of = "c0";
    }
    for (const EngineRequest& choice : choices) harness.Add(choice);
    if (begins) harness.Step();
    EXPECT_EQ(Expire(At(6), &harness).size(), begins ? 0u : 3u);
    harness.RunToEnd();
    for (const EngineRequest& choice : choices) {
      const std::vector<int32_t> tokens = harness.answers[choice.id].tokens;
      EXPECT_EQ(tokens, begins ? Reference(choice) : std::vector<int32_t>());
    }
  }
}

TEST_P(ExpiryTest, AGroupOfBeamsEndsAsAWhole) {
  Harness harness(SmallOptions(200), GetParam());
  const EngineRequest other = MakeRequest("other", 6, 20, 300);
  harness.Add(WithDeadline(BeamRequest("beams", 4, 10, 40), At(5)), other);
  for (int i = 0; i < 6; ++i) harness.Step();
  EXPECT_EQ(Expire(At(5), &harness), (Ended{{"beams", ExpiryCause::kDeadlineRunning}}));
  harness.RunToEnd();
  EXPECT_EQ(harness.answers["other"].tokens, Reference(other));
  EXPECT_EQ(harness.scheduler.blocks().pool().num_used(), 0);
}

TEST_P(ExpiryTest, WhatWaitsWithItsBlocksEndsToo) {
  SchedulerOptions options = SmallOptions();
  options.preemption = PreemptionMode::kSwap;
  options.blocks.num_host_blocks = 64;
  Harness harness(options, GetParam());
  harness.Add(WithDeadline(MakeRequest("kept", 10, 20), At(5)));
  const EngineRequest other = MakeRequest("other", 10, 20, 100);
  harness.Add(other);
  for (int i = 0; i < 4; ++i) harness.Step();
  harness.SleepKeeping();
  EXPECT_EQ(Expire(At(5), &harness), (Ended{{"kept", ExpiryCause::kDeadlineRunning}}));
  harness.WakeKeeping();
  harness.RunToEnd();
  EXPECT_EQ(harness.answers["other"].tokens, Reference(other));
  EXPECT_EQ(harness.scheduler.blocks().pool().num_used(), 0);
  EXPECT_EQ(harness.scheduler.blocks().host().pool().num_used(), 0);
}

TEST(ExpiryOrderTest, ADeadlineGoesAlongToAnotherScheduler) {
  Scheduler first(SmallOptions()), second(SmallOptions());
  first.Add(WithDeadline(WithFirstTokenBy(MakeRequest("ran", 4, 5), At(50)), At(100)));
  first.Schedule();
  first.Add(WithDeadline(WithFirstTokenBy(MakeRequest("waits", 4, 5), At(60)), At(100)));
  first.Recover();
  for (EngineRequest& request : first.ReleaseAll()) second.Add(std::move(request));
  EXPECT_EQ(first.NextExpiry(), absl::InfiniteDuration());
  EXPECT_EQ(second.NextExpiry(), At(60));
  ASSERT_EQ(second.Expire(At(60)).size(), 1u);
  const std::vector<ExpiredSequence> expired = second.Expire(At(100));
  ASSERT_EQ(expired.size(), 1u);
  EXPECT_EQ(expired[0].sequence->request.id, "ran");
  EXPECT_EQ(expired[0].cause, ExpiryCause::kDeadlineRunning);
}

// The budget is 16, and a prompt of more than 8 tokens is long.
class BacklogTest : public ::testing::Test {
 protected:
  static SchedulerOptions Options() {
    SchedulerOptions options = SmallOptions(/*num_blocks=*/400);
    options.max_model_len = 400;
    return options;
  }
  int64_t BacklogOf(EngineRequest request) {
    const SequencePtr sequence = scheduler_.Add(std::move(request));
    const int64_t backlog = scheduler_.BacklogOf(*sequence);
    scheduler_.Abort(sequence->request.id);
    return backlog;
  }
  Scheduler scheduler_{Options()};
};

TEST_F(BacklogTest, WhatIsAheadCountsAndWhatIsBehindDoesNot) {
  EXPECT_EQ(BacklogOf(MakeRequest("own", 7, 1)), 7);
  scheduler_.Add(MakeRequest("a", 5, 1, 100));
  scheduler_.Add(MakeRequest("b", 8, 1, 200));
  EXPECT_EQ(BacklogOf(MakeRequest("own", 7, 1)), 20);
  const SequencePtr own = scheduler_.Add(MakeRequest("own", 7, 1));
  scheduler_.Add(MakeRequest("behind", 8, 1, 300));
  EXPECT_EQ(scheduler_.BacklogOf(*own), 20);
}

TEST_F(BacklogTest, APromptHoldsUpOnlyLongerOnes) {
  scheduler_.Add(MakeRequest("long", 300, 1));
  ASSERT_EQ(scheduler_.Schedule().num_tokens, 16);
  EXPECT_EQ(BacklogOf(MakeRequest("longer", 290, 1, 50)), 284 + 290);
  EXPECT_EQ(BacklogOf(MakeRequest("long too", 100, 1, 50)), 100 + 100) << "half of each step";
  EXPECT_EQ(BacklogOf(MakeRequest("short", 6, 1, 50)), 6 + 6) << "half of each step";
  EXPECT_EQ(BacklogOf(MakeRequest("shorter", 1, 1, 50)), 1 + 1);
}

TEST_F(BacklogTest, WhatDecodesDoesNotCountNorDoesWhatIsCached) {
  scheduler_.Add(MakeRequest("decodes", 12, 50));
  ASSERT_EQ(scheduler_.Schedule().num_tokens, 12);
  EXPECT_EQ(BacklogOf(MakeRequest("other", 7, 1, 50)), 7);
  EXPECT_EQ(BacklogOf(MakeRequest("same beginning", 20, 1)), 20 - 12);
  EngineRequest salted = MakeRequest("salted", 20, 1);
  salted.cache_salt = "mine";
  EXPECT_EQ(BacklogOf(salted), 20);
}

TEST(BacklogOrderTest, UnderPriorityTheUrgentAreAhead) {
  SchedulerOptions options = SmallOptions();
  options.policy = SchedulingPolicy::kPriority;
  Scheduler scheduler(options);
  for (const int32_t priority : {0, 5}) {
    EngineRequest request = MakeRequest(std::to_string(priority), 8, 1, 100 * priority);
    request.priority = priority;
    scheduler.Add(request);
  }
  EngineRequest own = MakeRequest("own", 4, 1, 50);
  own.priority = 3;
  EXPECT_EQ(scheduler.BacklogOf(*scheduler.Add(own)), 8 + 4);
}

TEST(BacklogOrderTest, ChoicesOfAPromptCountOnce) {
  Scheduler scheduler(SmallOptions());
  EngineRequest choice = MakeRequest("c0", 8, 1, 100);
  scheduler.Add(choice);
  choice.fork_of = "c0";
  for (const char* id : {"c1", "c2"}) {
    choice.id = id;
    scheduler.Add(choice);
  }
  EXPECT_EQ(scheduler.BacklogOf(*scheduler.Add(MakeRequest("own", 4, 1))), 8 + 4);
}

}  // namespace
}  // namespace somnus
