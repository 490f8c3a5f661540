// Requests that pool end with the prompt, and the vectors do not depend on chunks, on other requests, on the
// prefix cache, nor on preemptions and losses.

#include <gtest/gtest.h>

#include "coordinator/scheduler/request_check.h"
#include "tests/scheduler/scheduler_harness.h"

namespace somnus {
namespace {

constexpr Pooling kAll[] = {Pooling::kLast, Pooling::kCls, Pooling::kMean};

v1::StepPooling ToMessage(Pooling pooling) { return static_cast<v1::StepPooling>(pooling); }

EngineRequest PoolingRequest(const std::string& id, int32_t prompt_len, Pooling pooling, int32_t first = 1) {
  EngineRequest request = MakeRequest(id, prompt_len, /*max_tokens=*/0, first);
  request.pooling = pooling;
  return request;
}

void ExpectPooled(const Harness& harness, const EngineRequest& request) {
  const Answer& answer = harness.answers.at(request.id);
  EXPECT_EQ(answer.reason, FinishReason::kStop) << request.id << ": " << answer.error;
  EXPECT_TRUE(answer.tokens.empty());
  EXPECT_EQ(answer.pooled, FakeWorker::ReferencePooled(request.prompt, ToMessage(request.pooling)))
      << request.id;
}

// Runs steps until the request's prompt is partly computed.
void RunIntoPrompt(Harness* harness) {
  ASSERT_TRUE(harness->Step());
  ASSERT_TRUE(harness->Step());
  ASSERT_EQ(harness->scheduler.num_running(), 1);
}

TEST(PoolingTest, PromptsOfAnyLengthAreComputedInChunksAmongOthers) {
  for (const size_t depth : {0, 1}) {
    Harness harness(SmallOptions(), depth);
    std::vector<EngineRequest> requests;
    for (const int32_t length : {1, 4, 15, 16, 17, 33, kSmallModelLen}) {
      for (const Pooling pooling : kAll)
        requests.push_back(PoolingRequest(absl::StrCat("p", requests.size()), length, pooling, length * 7));
    }
    const EngineRequest text = MakeRequest("text", 20, 12, 500);
    for (const EngineRequest& request : requests) harness.Add(request);
    harness.Run(text);
    for (const EngineRequest& request : requests) ExpectPooled(harness, request);
    EXPECT_EQ(harness.answers["text"].tokens, Reference(text));
    EXPECT_EQ(harness.scheduler.stats().generation_tokens, 12);
    EXPECT_EQ(harness.scheduler.blocks().pool().num_used(), 0) << "a vector needs no cache";
  }
}

TEST(PoolingTest, APromptThatFillsTheContextIsTaken) {
  const SchedulerOptions options = SmallOptions();
  EXPECT_TRUE(CheckRequest(options, PoolingRequest("a", kSmallModelLen, Pooling::kLast)).ok());
  EXPECT_FALSE(CheckRequest(options, PoolingRequest("a", kSmallModelLen + 1, Pooling::kLast)).ok());
}

TEST(PoolingTest, OnlyTheLastTokensVectorTakesACachedPrefix) {
  for (const Pooling pooling : kAll) {
    Harness harness(SmallOptions());
    harness.Run(MakeRequest("text", 32, 1));
    const EngineRequest request = PoolingRequest("pool", 32, pooling);
    harness.Run(request);
    ExpectPooled(harness, request);
    EXPECT_EQ(harness.answers["pool"].num_cached, pooling == Pooling::kLast ? 28 : 0);
    // The computed blocks are cached for other sequences in either case.
    harness.Run(MakeRequest("again", 32, 1));
    EXPECT_EQ(harness.answers["again"].num_cached, 28);
  }
}

TEST(PoolingTest, APreemptionBeginsAgainWhereRowsWouldBeMissing) {
  for (const Pooling pooling : kAll) {
    SchedulerOptions options = SmallOptions();
    options.blocks.num_host_blocks = 64;
    Harness harness(options);
    const EngineRequest request = PoolingRequest("pool", 60, pooling);
    harness.Add(request);
    RunIntoPrompt(&harness);
    harness.SleepKeeping();
    EXPECT_EQ(harness.scheduler.sequences().num_suspended(), pooling == Pooling::kLast ? 1 : 0);
    harness.WakeKeeping();
    harness.RunToEnd();
    ExpectPooled(harness, request);
  }
}

TEST(PoolingTest, ASwapIsOnlyForVectorsOfTheLastToken) {
  for (const Pooling pooling : kAll) {
    SchedulerOptions options = SmallOptions(/*num_blocks=*/26);
    options.preemption = PreemptionMode::kSwap;
    options.blocks.num_host_blocks = 64;
    options.policy = SchedulingPolicy::kPriority;
    Harness harness(options);
    EngineRequest request = PoolingRequest("pool", 90, pooling);
    request.priority = 5;
    harness.Add(request);
    RunIntoPrompt(&harness);
    EngineRequest urgent = MakeRequest("urgent", 40, 8, 300);
    harness.Run(urgent);
    ExpectPooled(harness, request);
    EXPECT_EQ(harness.answers["urgent"].tokens, Reference(urgent));
    EXPECT_EQ(harness.worker.num_swapped_out() > 0, pooling == Pooling::kLast);
  }
}

TEST(PoolingTest, ALossOfTheWorkersBeginsAgain) {
  for (const Pooling pooling : kAll) {
    for (const size_t depth : {0, 1}) {
      Harness harness(SmallOptions(), depth);
      const EngineRequest request = PoolingRequest("pool", 60, pooling);
      harness.Add(request);
      RunIntoPrompt(&harness);
      harness.Lose();
      harness.RunToEnd();
      ExpectPooled(harness, request);
    }
  }
}

TEST(PoolingTest, AReplyHasSoManyVectors) {
  SchedulerOptions options = SmallOptions();
  options.step_bytes = 1000;
  options.pooled_bytes = 400;
  Harness harness(options);
  std::vector<EngineRequest> requests;
  for (int i = 0; i < 7; ++i)
    requests.push_back(PoolingRequest(absl::StrCat("p", i), 1, Pooling::kLast, 10 * i + 1));
  for (const EngineRequest& request : requests) harness.Add(request);
  harness.RunToEnd();
  for (const EngineRequest& request : requests) ExpectPooled(harness, request);
  for (const v1::StepRequest& step : harness.steps) EXPECT_LE(step.sequences_size(), 2);
}

TEST(PoolingTest, OneVectorAlwaysFits) {
  SchedulerOptions options = SmallOptions();
  options.pooled_bytes = options.step_bytes * 2;
  Harness harness(options);
  const EngineRequest a = PoolingRequest("a", 5, Pooling::kMean),
                      b = PoolingRequest("b", 17, Pooling::kMean, 50);
  harness.Run(a, b);
  ExpectPooled(harness, a);
  ExpectPooled(harness, b);
}

TEST(PoolingTest, StatesThatAreNoNumbersEndTheRequestAlone) {
  Harness harness(SmallOptions(), /*depth=*/0, /*nan_token=*/7);
  const EngineRequest good = PoolingRequest("good", 20, Pooling::kMean, 100);
  harness.Run(PoolingRequest("bad", 20, Pooling::kMean, 1), good);
  EXPECT_EQ(harness.answers["bad"].reason, FinishReason::kError);
  EXPECT_TRUE(absl::IsInternal(harness.answers["bad"].error));
  ExpectPooled(harness, good);
}

TEST(PoolingTest, AReplyWithoutTheVectorEndsTheRequest) {
  Scheduler scheduler(SmallOptions());
  scheduler.Add(PoolingRequest("a", 5, Pooling::kLast));
  const StepPlan plan = scheduler.Schedule();
  ASSERT_EQ(plan.request.new_sequences(0).pooling(), v1::STEP_POOLING_LAST);
  v1::StepReply reply;
  reply.set_step_id(plan.request.step_id());
  const auto outputs = scheduler.Update(reply);
  ASSERT_TRUE(outputs.ok());
  ASSERT_EQ(outputs->size(), 1u);
  EXPECT_EQ((*outputs)[0].output.finish_reason, FinishReason::kError);
}

}  // namespace
}  // namespace somnus
