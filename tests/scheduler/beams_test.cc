// Beam search through the scheduler: exact answers, one prefill, few copies, and a group that is all or
// nothing.

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "coordinator/scheduler/request_check.h"
#include "tests/scheduler/reference_beams.h"

namespace somnus {
namespace {

void RunExact(const std::vector<EngineRequest>& requests, Harness* harness) {
  for (const EngineRequest& request : requests) harness->Add(request);
  harness->RunToEnd();
  for (const EngineRequest& request : requests) ExpectExactAnswer(request, *harness);
  EXPECT_EQ(harness->scheduler.blocks().pool().num_used(), 0);
}

TEST(BeamsTest, AnswersAreThoseOfTheSearch) {
  for (const size_t depth : {0, 1}) {
    for (const int32_t prompt_len : {1, 7, 8, 30}) {
      for (const int32_t width : {1, 2, 5, 8}) {
        Harness harness(SmallOptions(/*num_blocks=*/200), depth);
        RunExact({BeamRequest("b", width, prompt_len, 15)}, &harness);
      }
    }
  }
}

TEST(BeamsTest, ThePromptIsComputedOnceAndEachBeamOneTokenAStep) {
  Harness harness(SmallOptions(200));
  EngineRequest request = BeamRequest("b", 4, 10, 6);
  ParamsOf(&request)->ignore_eos = true;
  RunExact({request}, &harness);
  EXPECT_EQ(harness.worker.num_computed_tokens(), 10 + 4 * 5);
  EXPECT_EQ(harness.steps[0].new_sequences_size(), 1);
  for (size_t i = 1; i < harness.steps.size(); ++i) {
    EXPECT_EQ(harness.steps[i].new_sequences_size(), 0);
    EXPECT_EQ(harness.steps[i].sequences_size(), i <= 5 ? 4 : 0) << i;
  }
  EXPECT_EQ(harness.steps[1].branches_size(), 3);
}

// A beam that branches copies the last block if partly filled, and nothing else is ever copied.
TEST(BeamsTest, OnlyPartlyFilledBlocksOfBranchesAreCopied) {
  Harness harness(SmallOptions(200));
  EngineRequest request = BeamRequest("b", 4, 6, 20);
  ParamsOf(&request)->ignore_eos = true;
  RunExact({request}, &harness);
  int num_branches = 0;
  for (size_t i = 1; i < harness.steps.size(); ++i) {
    const v1::StepRequest& step = harness.steps[i];
    const bool has_partial = (6 + i - 1) % 4 != 0;
    EXPECT_EQ(step.copies_size(), has_partial ? step.branches_size() : 0) << "step " << i;
    num_branches += step.branches_size();
  }
  EXPECT_GT(num_branches, 10);
}

TEST(BeamsTest, BeamsShareTheBlocksOfTheirPrompt) {
  Harness harness(SmallOptions(200));
  EngineRequest request = BeamRequest("b", 5, 41, 3);
  ParamsOf(&request)->ignore_eos = true;
  harness.Add(request);
  while (harness.steps.empty() || harness.steps.back().branches_size() == 0) ASSERT_TRUE(harness.Step());
  EXPECT_EQ(harness.scheduler.blocks().pool().num_used(), 10 + 5);
  harness.RunToEnd();
}

TEST(BeamsTest, BesideOthers) {
  for (const size_t depth : {0, 1}) {
    SchedulerOptions options = SmallOptions(200);
    options.max_num_seqs = 12;
    Harness harness(options, depth);
    std::vector<EngineRequest> requests;
    for (int i = 0; i < 4; ++i) {
      requests.push_back(BeamRequest("b" + std::to_string(i), 2 + i, 5 + 7 * i, 12, 30 * i));
      requests.push_back(MakeRequest("g" + std::to_string(i), 3 + 5 * i, 18, 400 + 30 * i));
    }
    RunExact(requests, &harness);
  }
}

// Logprobs of the answers, an EOS token within, other penalties: as from the search alone.
TEST(BeamsTest, ParametersReachTheSearch) {
  Harness harness(SmallOptions(200), 1);
  std::vector<EngineRequest> requests;
  for (int i = 0; i < 6; ++i) {
    requests.push_back(BeamRequest("b" + std::to_string(i), 3, 9, 14, 50 * i));
    BeamSearchParams* params = ParamsOf(&requests.back());
    params->length_penalty = i - 2;
    params->includes_eos = i % 2 == 0;
    params->num_logprobs = 2;
    params->early_stopping = static_cast<EarlyStopping>(i % 3);
  }
  RunExact(requests, &harness);
  for (const EngineRequest& request : requests) {
    for (const Beam& beam : harness.answers.at(request.id).beams)
      EXPECT_EQ(beam.logprobs.size(), beam.outputs.size());
  }
}

// For readers who count the tokens of a request.
TEST(BeamsTest, ASearchCountsAsItsBestAnswer) {
  Harness harness(SmallOptions(200));
  const EngineRequest request = BeamRequest("b", 3, 9, 14);
  const SequencePtr sequence = harness.scheduler.Add(request);
  harness.RunToEnd();
  EXPECT_EQ(sequence->num_outputs(), static_cast<int64_t>(ReferenceBeams(request)[0].outputs.size()));
}

TEST(BeamsTest, TheContextEndsASearch) {
  Harness harness(SmallOptions(400), 1);
  EngineRequest request = BeamRequest("b", 3, 90, 500);
  ParamsOf(&request)->ignore_eos = true;
  RunExact({request}, &harness);
  for (const Beam& beam : harness.answers.at("b").beams) EXPECT_EQ(beam.outputs.size(), 10u);
}

TEST(BeamsTest, AGroupIsPreemptedWhole) {
  for (const bool cached : {true, false}) {
    for (const size_t depth : {0, 1}) {
      SchedulerOptions options = SmallOptions(/*num_blocks=*/26);
      options.blocks.enable_prefix_caching = cached;
      Harness harness(options, depth);
      std::vector<EngineRequest> requests = {MakeRequest("first", 8, 40, 500), BeamRequest("b", 4, 13, 20)};
      ParamsOf(&requests[1])->ignore_eos = true;
      requests.push_back(BeamRequest("last", 3, 17, 20, 700));
      ParamsOf(&requests[2])->ignore_eos = true;
      RunExact(requests, &harness);
      EXPECT_GT(harness.scheduler.stats().num_preemptions(), 0);
      // All beams of a group that is in the step are in the step.
      for (const v1::StepRequest& step : harness.steps) {
        std::set<int32_t> freed(step.freed_slots().begin(), step.freed_slots().end());
        for (const v1::ScheduledSequence& sequence : step.sequences())
          EXPECT_TRUE(!freed.contains(sequence.slot()) || step.new_sequences_size() > 0);
      }
    }
  }
}

TEST(BeamsTest, AGroupIsSwappedWhole) {
  for (const size_t depth : {0, 1}) {
    SchedulerOptions options = SmallOptions(/*num_blocks=*/26);
    options.preemption = PreemptionMode::kSwap;
    options.blocks.num_host_blocks = 100;
    Harness harness(options, depth);
    std::vector<EngineRequest> requests = {MakeRequest("first", 8, 40, 500), BeamRequest("b", 4, 13, 20)};
    ParamsOf(&requests[1])->ignore_eos = true;
    requests.push_back(BeamRequest("last", 3, 17, 20, 700));
    ParamsOf(&requests[2])->ignore_eos = true;
    RunExact(requests, &harness);
    const SchedulerStats& stats = harness.scheduler.stats();
    EXPECT_GT(stats.preemptions.by_swap[0], 0);
    EXPECT_EQ(stats.num_preemptions(), stats.preemptions.by_swap[0]);
    EXPECT_EQ(stats.swaps.in_blocks, stats.swaps.out_blocks) << "they share the same blocks again";
    EXPECT_EQ(harness.scheduler.blocks().host().pool().num_used(), 0);
    for (const v1::StepRequest& step : harness.steps) {
      std::set<int32_t> sources;
      for (const v1::BlockCopy& copy : step.swap_outs()) EXPECT_TRUE(sources.insert(copy.src()).second);
    }
  }
}

// The group needs slots for all beams, and nobody overtakes the group.
TEST(BeamsTest, AGroupWaitsForAllItsSlots) {
  SchedulerOptions options = SmallOptions(200);
  options.max_num_seqs = 4;
  Harness harness(options, 1);
  RunExact({MakeRequest("a", 3, 10, 300), BeamRequest("b", 4, 5, 8), MakeRequest("c", 3, 4, 600)}, &harness);
  const Answer &a = harness.answers.at("a"), &c = harness.answers.at("c");
  EXPECT_LT(a.first_token_step, c.first_token_step);
}

TEST(BeamsTest, AnUrgentRequestDisplacesAGroup) {
  SchedulerOptions options = SmallOptions(200);
  options.policy = SchedulingPolicy::kPriority;
  options.max_num_seqs = 4;
  Harness harness(options, 1);
  EngineRequest beams = BeamRequest("b", 4, 9, 12), urgent = MakeRequest("u", 5, 6, 500);
  ParamsOf(&beams)->ignore_eos = true;
  beams.priority = 5;
  harness.Add(beams);
  for (int i = 0; i < 6; ++i) ASSERT_TRUE(harness.Step());
  urgent.priority = -5;
  harness.Run(urgent);
  EXPECT_EQ(harness.scheduler.stats().num_preemptions(), 1);
  ExpectExactAnswer(beams, harness);
  ExpectExactAnswer(urgent, harness);

  // And an urgent group displaces as many sequences as the group needs.
  beams.priority = -9;
  beams.id = "b2";
  for (int i = 0; i < 3; ++i) harness.Add(MakeRequest("l" + std::to_string(i), 4, 15, 700 + 20 * i));
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(harness.Step());
  harness.Run(beams);
  EXPECT_EQ(harness.scheduler.stats().num_preemptions(), 1 + 3);
  ExpectExactAnswer(beams, harness);
}

TEST(BeamsTest, AbortedInAnyStep) {
  for (const size_t depth : {0, 1}) {
    for (int after = 0; after < 8; ++after) {
      Harness harness(SmallOptions(200), depth);
      EngineRequest beams = BeamRequest("b", 4, 9, 12), other = MakeRequest("o", 5, 20, 500);
      ParamsOf(&beams)->ignore_eos = true;
      harness.Add(beams, other);
      for (int i = 0; i < after; ++i) ASSERT_TRUE(harness.Step());
      ASSERT_NE(harness.scheduler.Abort("b"), nullptr);
      harness.Check();
      harness.RunToEnd();
      ExpectExactAnswer(other, harness);
      EXPECT_EQ(harness.scheduler.blocks().pool().num_used(), 0);
    }
  }
}

TEST(BeamsTest, GoesOnAfterALossOfTheWorkersInAnyStep) {
  for (const size_t depth : {0, 1}) {
    for (int after = 1; after < 14; ++after) {
      Harness harness(SmallOptions(200), depth);
      const EngineRequest beams = BeamRequest("b", 4, 21, 12), other = MakeRequest("o", 5, 20, 500);
      harness.Add(beams, other);
      for (int i = 0; i < after; ++i) harness.Step();
      const std::vector<SequencePtr> suspects = harness.Lose();
      for (const SequencePtr& suspect : suspects)
        EXPECT_TRUE(suspect->request.id == "b" || suspect->request.id == "o");
      harness.RunToEnd();
      ExpectExactAnswer(beams, harness);
      ExpectExactAnswer(other, harness);
    }
  }
}

TEST(BeamsTest, GoesOnInAnotherScheduler) {
  for (int after = 0; after < 12; ++after) {
    Harness first(SmallOptions(200), 1), second(SmallOptions(200), 1);
    const EngineRequest beams = BeamRequest("b", 4, 9, 12), other = MakeRequest("o", 5, 20, 500);
    first.Add(beams);
    first.Add(other);
    for (int i = 0; i < after; ++i) ASSERT_TRUE(first.Step());
    first.Lose();
    for (EngineRequest& request : first.scheduler.ReleaseAll()) second.Add(std::move(request));
    second.Check();
    second.RunToEnd();
    ExpectExactAnswer(beams, second);
  }
}

// Blocks that are kept are not computed again, at any step of the search at which the cache sleeps.
TEST(BeamsTest, OutlivesASleepThatKeepsItsBlocks) {
  for (int after = 1; after < 12; ++after) {
    SchedulerOptions options = SmallOptions(200);
    options.blocks.num_host_blocks = 150;
    options.blocks.enable_prefix_caching = false;
    Harness harness(options, 1);
    EngineRequest beams = BeamRequest("b", 4, 9, 8);
    ParamsOf(&beams)->ignore_eos = true;
    harness.Add(beams);
    for (int i = 0; i < after; ++i) harness.Step();
    harness.SleepKeeping();
    harness.WakeKeeping();
    harness.RunToEnd();
    ExpectExactAnswer(beams, harness);
    EXPECT_EQ(harness.worker.num_computed_tokens(), 9 + 4 * 7) << "after step " << after;
    EXPECT_EQ(harness.scheduler.sequences().num_suspended(), 0);
  }
}

// With a host tier that has room for some beams only, all beams are computed again.
TEST(BeamsTest, IsKeptWholeOrNotAtAll) {
  for (const int32_t num_host_blocks : {1, 3, 5, 7}) {
    SchedulerOptions options = SmallOptions(200);
    options.blocks.num_host_blocks = num_host_blocks;
    Harness harness(options, 1);
    const EngineRequest beams = BeamRequest("b", 4, 9, 8), other = MakeRequest("o", 5, 20, 500);
    harness.Add(beams, other);
    for (int i = 0; i < 6; ++i) harness.Step();
    harness.SleepKeeping();
    harness.WakeKeeping();
    harness.RunToEnd();
    ExpectExactAnswer(beams, harness);
    ExpectExactAnswer(other, harness);
  }
}

TEST(BeamsTest, BadLogitsOfOneBeamEndTheGroupAndNothingElse) {
  for (int64_t step = 1; step < 9; ++step) {
    Harness harness(SmallOptions(200), 1);
    EngineRequest beams = BeamRequest("b", 4, 9, 8), other = MakeRequest("o", 5, 20, 500);
    ParamsOf(&beams)->ignore_eos = true;
    harness.Add(beams, other);
    harness.worker.MakeNan(step, /*slot=*/static_cast<int32_t>(step % 4));
    harness.RunToEnd();
    ASSERT_TRUE(harness.answers.contains("b") && harness.answers.contains("o"));
    const bool beams_ended = harness.answers.at("b").reason == FinishReason::kError;
    const bool other_ended = harness.answers.at("o").reason == FinishReason::kError;
    EXPECT_FALSE(beams_ended && other_ended);
    if (!beams_ended) ExpectExactAnswer(beams, harness);
    if (!other_ended) ExpectExactAnswer(other, harness);
    EXPECT_EQ(harness.scheduler.blocks().pool().num_used(), 0);
  }
}

TEST(BeamsTest, RefusesWhatCanNeverBeServed) {
  SchedulerOptions options = SmallOptions(/*num_blocks=*/1 + 30);
  const auto check = [&](const EngineRequest& request) { return CheckRequest(options, request); };
  EXPECT_EQ(check(BeamRequest("b", 8, 8, 8)), absl::OkStatus());
  const absl::Status too_wide = check(BeamRequest("b", 9, 8, 8));
  EXPECT_EQ(too_wide.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(too_wide.message(), "n: a beam search must have 1 to 8 beams");
  // 2 blocks are shared, and each beam has 7 more.
  EXPECT_EQ(check(BeamRequest("b", 4, 8, 28)), absl::OkStatus());
  const absl::Status too_long = check(BeamRequest("b", 4, 8, 29));
  EXPECT_EQ(too_long.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(too_long.message(), "n: 4 beams of 37 tokens can never fit in the KV cache of 120 tokens");
  options.max_num_seqs = 1000;
  options.max_num_batched_tokens = 1000;
  EXPECT_EQ(check(BeamRequest("b", 33, 8, 1)).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(check(BeamRequest("b", 0, 8, 1)).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(check(BeamRequest("b", 2, 8, 0)).code(), absl::StatusCode::kInvalidArgument);
  options.step_bytes = 500;
  EXPECT_EQ(check(BeamRequest("b", 4, 8, 8)).code(), absl::StatusCode::kInvalidArgument);
}

// The largest group that Check lets in is served, in a cache that is just large enough.
TEST(BeamsTest, TheLargestGroupIsServed) {
  SchedulerOptions options = SmallOptions(/*num_blocks=*/1 + 30);
  options.blocks.watermark = 0.2;
  Harness harness(options, 1);
  EngineRequest beams = BeamRequest("b", 4, 8, 28);
  ParamsOf(&beams)->ignore_eos = true;
  std::vector<EngineRequest> requests = {MakeRequest("o", 5, 60, 500), beams, MakeRequest("p", 5, 60, 700)};
  RunExact(requests, &harness);
}

}  // namespace
}  // namespace somnus
