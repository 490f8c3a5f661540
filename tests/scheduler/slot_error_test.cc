// Replies in which something is wrong with one sequence: that sequence ends, and the rest get outputs.

#include <gtest/gtest.h>

#include "tests/scheduler/scheduler_harness.h"

namespace somnus {
namespace {

constexpr int32_t kNanToken = 999;

std::vector<int32_t> Reference(const EngineRequest& request, int32_t count) {
  return FakeWorker::ReferenceTokens(request.prompt, count);
}

class SlotErrorTest : public ::testing::TestWithParam<int> {
 protected:
  size_t depth() const { return static_cast<size_t>(GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(Overlap, SlotErrorTest, ::testing::Values(0, 1));

// The reply has no token for the second of three; the first ends by the same reply.
TEST(SchedulerUpdateTest, AnEntryThatTheReplyDoesNotFitKeepsNobodyFromTheirOutput) {
  Scheduler scheduler(SmallOptions());
  scheduler.Add(MakeRequest("ends", 4, 1));
  scheduler.Add(MakeRequest("broken", 4, 4, 20));
  scheduler.Add(MakeRequest("goes on", 4, 4, 40));
  const StepPlan plan = scheduler.Schedule();
  ASSERT_EQ(plan.request.sequences_size(), 3);
  v1::StepReply reply;
  reply.set_step_id(1);
  for (int index : {0, 2}) {
    v1::SampledToken* token = reply.add_tokens();
    token->set_slot(plan.request.sequences(index).slot());
    token->set_token_id(7);
  }
  const auto outputs = scheduler.Update(reply);
  ASSERT_TRUE(outputs.ok()) << outputs.status();
  ASSERT_EQ(outputs->size(), 3u);
  EXPECT_EQ((*outputs)[0].sequence->request.id, "ends");
  EXPECT_EQ((*outputs)[0].output.finish_reason, FinishReason::kLength);
  EXPECT_EQ((*outputs)[1].output.finish_reason, FinishReason::kError);
  EXPECT_TRUE(absl::IsInternal((*outputs)[1].output.error));
  EXPECT_EQ((*outputs)[2].output.token_ids, std::vector<int32_t>{7});
  EXPECT_EQ((*outputs)[2].output.finish_reason, FinishReason::kNone);
  EXPECT_EQ(scheduler.num_running(), 1);
  EXPECT_TRUE(scheduler.CheckIntegrity().ok());
}

TEST_P(SlotErrorTest, EndsOneSequenceAndFreesItsBlocks) {
  Harness harness(SmallOptions(), depth(), kNanToken);
  EngineRequest bad = MakeRequest("bad", 6, 8, 300);
  SetPromptToken(2, kNanToken, &bad);
  const EngineRequest first = MakeRequest("first", 6, 8), last = MakeRequest("last", 6, 8, 600);
  harness.Run(first, bad, last);
  EXPECT_EQ(harness.answers["bad"].reason, FinishReason::kError);
  EXPECT_TRUE(absl::IsInternal(harness.answers["bad"].error));
  EXPECT_EQ(harness.answers["bad"].error.message(), "the logits are not finite numbers");
  EXPECT_TRUE(harness.answers["bad"].tokens.empty());
  EXPECT_EQ(harness.scheduler.stats().corrupted_requests, 1);
  EXPECT_EQ(harness.answers["first"].tokens, Reference(first, 8));
  EXPECT_EQ(harness.answers["last"].tokens, Reference(last, 8));
  EXPECT_EQ(harness.scheduler.blocks().pool().num_used(), 0);
  EXPECT_FALSE(harness.scheduler.has_sequences());
}

// Step 3 is a decode of the only sequence; later steps may be in flight.
TEST_P(SlotErrorTest, WhatWasWrittenLeavesThePrefixCache) {
  Harness harness(SmallOptions(), depth());
  EngineRequest request = MakeRequest("bad", 12, 8);
  harness.worker.MakeNan(3, 0);
  harness.Run(request);
  EXPECT_EQ(harness.answers["bad"].reason, FinishReason::kError);
  EXPECT_EQ(harness.answers["bad"].tokens, Reference(request, 2));
  EXPECT_EQ(harness.scheduler.blocks().pool().num_cached(), 0);
  request.id = "again";
  harness.Run(request);
  EXPECT_EQ(harness.answers["again"].num_cached, 0);
  EXPECT_EQ(harness.answers["again"].tokens, Reference(request, 8));
}

// The prompts take three steps. The blocks of step 1 hold not-a-numbers, which the reply to step 3 reports.
// The sequence that adopted the blocks is computed again, without the prefix cache.
TEST_P(SlotErrorTest, WhoAdoptedBadBlocksIsComputedAgain) {
  Harness harness(SmallOptions(), depth());
  EngineRequest adopts = MakeRequest("adopts", 10, 6);
  harness.worker.MakeNan(1, 0);
  harness.Add(MakeRequest("bad", 40, 6));
  harness.Step();
  harness.Step();
  harness.Run(adopts);
  EXPECT_EQ(harness.answers["bad"].reason, FinishReason::kError);
  EXPECT_EQ(harness.answers["adopts"].num_cached, 8);
  EXPECT_EQ(harness.answers["adopts"].reason, FinishReason::kLength);
  EXPECT_EQ(harness.answers["adopts"].tokens, Reference(adopts, 6));
}

// The same, but the sequence that wrote the blocks was aborted, so that the adopting sequence is the first to
// sample from the blocks.
TEST_P(SlotErrorTest, BadBlocksOfAnAbortedSequenceHarmNobody) {
  Harness harness(SmallOptions(), depth());
  const EngineRequest adopts = MakeRequest("adopts", 10, 6);
  harness.worker.MakeNan(1, 0);
  harness.Add(MakeRequest("bad", 40, 6));
  harness.Step();
  ASSERT_NE(harness.scheduler.Abort("bad"), nullptr);
  harness.Run(adopts);
  EXPECT_EQ(harness.answers["adopts"].num_cached, 8);
  EXPECT_EQ(harness.answers["adopts"].tokens, Reference(adopts, 6));
}

// The sequence is computed again without the prefix cache, is still bad, and ends now.
TEST_P(SlotErrorTest, ASequenceIsComputedAgainOnce) {
  Harness harness(SmallOptions(), depth(), kNanToken);
  harness.Run(MakeRequest("good", 8, 1));
  EngineRequest bad = MakeRequest("bad", 12, 6);
  SetPromptToken(9, kNanToken, &bad);
  harness.Run(bad);
  EXPECT_EQ(harness.answers["bad"].num_cached, 8);
  EXPECT_EQ(harness.answers["bad"].reason, FinishReason::kError);
  EXPECT_EQ(harness.scheduler.stats().num_preemptions(), 1);
  EXPECT_EQ(harness.scheduler.blocks().pool().num_cached(), 0);
}

// A refused sequence writes nothing, but the blocks were in the prefix cache as soon as the step was sent: a
// sequence that adopted the blocks in the meantime must not keep them.
TEST_P(SlotErrorTest, BlocksThatARefusedSequenceNeverWroteAreNotAdopted) {
  Harness harness(SmallOptions(), depth());
  EngineRequest refused = MakeRequest("refused", 12, 6);
  OwnSampling(&refused)->temperature = -1;
  const EngineRequest same = MakeRequest("same", 12, 6), other = MakeRequest("other", 12, 6, 300);
  harness.Add(refused);
  harness.Step();
  harness.Run(same, other);
  EXPECT_EQ(harness.answers["refused"].reason, FinishReason::kError);
  EXPECT_TRUE(absl::IsInvalidArgument(harness.answers["refused"].error));
  EXPECT_EQ(harness.answers["same"].tokens, Reference(same, 6));
  EXPECT_EQ(harness.answers["other"].tokens, Reference(other, 6));
  EXPECT_EQ(harness.scheduler.stats().num_preemptions(), depth() == 1 ? 1 : 0);
}

// The sequence is preempted while the bad step is still in flight.
TEST(SchedulerUpdateTest, ASlotErrorOfAWaitingSequenceEndsIt) {
  Scheduler scheduler(SmallOptions(/*num_blocks=*/6));
  scheduler.Add(MakeRequest("older", 8, 12));
  scheduler.Add(MakeRequest("bad", 8, 12, 100));
  v1::StepReply reply;
  int32_t bad_slot = -1;
  for (int64_t step = 1; scheduler.stats().num_preemptions() == 0; ++step) {
    ASSERT_LT(step, 20);
    const StepPlan plan = scheduler.Schedule();
    if (step == 1) bad_slot = plan.request.sequences(1).slot();
    if (step == 1) continue;  // one step stays in flight
    reply.Clear();
    reply.set_step_id(step - 1);
    if (scheduler.stats().num_preemptions() > 0) break;
    for (int32_t slot : {0, 1}) {
      reply.add_tokens()->set_slot(slot);
      reply.mutable_tokens(slot)->set_token_id(5);
    }
    ASSERT_TRUE(scheduler.Update(reply).ok());
  }
  ASSERT_EQ(scheduler.num_waiting(), 1);
  reply.add_tokens()->set_slot(1 - bad_slot);
  v1::SlotError* error = reply.add_slot_errors();
  error->set_slot(bad_slot);
  error->set_message("no code");
  const auto outputs = scheduler.Update(reply);
  ASSERT_TRUE(outputs.ok()) << outputs.status();
  ASSERT_EQ(outputs->size(), 2u);
  EXPECT_EQ((*outputs)[0].output.finish_reason, FinishReason::kNone);
  EXPECT_EQ((*outputs)[1].sequence->request.id, "bad");
  EXPECT_EQ((*outputs)[1].output.finish_reason, FinishReason::kError);
  EXPECT_TRUE(absl::IsInternal((*outputs)[1].output.error)) << "an error without a code is one all the same";
  EXPECT_EQ(scheduler.num_waiting(), 0);
  EXPECT_TRUE(scheduler.CheckIntegrity().ok());
}

}  // namespace
}  // namespace somnus
