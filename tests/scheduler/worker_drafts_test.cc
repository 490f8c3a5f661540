// Drafts that the workers' draft model proposes: the tokens are the same as without, in fewer steps.

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "tests/scheduler/fake_drafter.h"
#include "tests/scheduler/scheduler_harness.h"

namespace somnus {
namespace {

using Tokens = std::vector<int32_t>;

SchedulerOptions WithDraftModel(int32_t most, int32_t num_blocks = 64) {
  return WithDrafts(WorkersDrafts(most), num_blocks);
}

int32_t NumProposals(const v1::StepRequest& step) {
  int32_t count = 0;
  for (const v1::ScheduledSequence& sequence : step.sequences()) count += sequence.num_proposals();
  return count;
}

Tokens Proposed(WorkerDrafts* drafts, const Tokens& tokens, int32_t most) {
  Tokens draft = {-7};
  drafts->Propose(tokens, most, &draft);
  return draft;
}

TEST(WorkerDraftsTest, ProposalsHoldAsLongAsTokensFollowThem) {
  WorkerDrafts drafts;
  EXPECT_EQ(Proposed(&drafts, {1, 2}, 4), Tokens());
  drafts.TakeProposals(2, Tokens{3, 4, 5});
  EXPECT_EQ(Proposed(&drafts, {1, 2}, 2), (Tokens{3, 4}));
  EXPECT_EQ(Proposed(&drafts, {1, 2, 3}, 9), (Tokens{4, 5}));
  EXPECT_EQ(Proposed(&drafts, {1, 2, 4}, 9), Tokens());
  EXPECT_EQ(Proposed(&drafts, {1, 2, 3, 4, 5}, 9), Tokens());
  EXPECT_EQ(Proposed(&drafts, {1, 2, 3, 4, 5, 6}, 9), Tokens());
  drafts.TakeProposals(3, {});
  EXPECT_EQ(Proposed(&drafts, {1, 2, 3}, 9), Tokens());
}

TEST(WorkerDraftsTest, RightProposalsGiveTheSameTokensInFewerSteps) {
  for (size_t depth : {0u, 1u}) {
    Harness harness(WithDraftModel(8), depth);
    const EngineRequest request = MakeRequest("a", 5, 60);
    harness.Run(request);
    EXPECT_EQ(harness.answers["a"].tokens, Reference(request));
    const SpeculationCounts& counts = harness.scheduler.speculation();
    EXPECT_GT(counts.num_drafts, 3);
    EXPECT_GT(counts.num_accepted_tokens, 25);
    EXPECT_EQ(counts.num_draft_tokens, counts.num_accepted_tokens);
    EXPECT_EQ(harness.worker.num_draft_tokens(), counts.num_draft_tokens);
    EXPECT_GE(harness.worker.num_proposals(), counts.num_draft_tokens);
    EXPECT_LT(harness.steps.size(), 35u) << depth;
    EXPECT_EQ(harness.scheduler.stats().generation_tokens, 60);
    EXPECT_EQ(harness.scheduler.blocks().pool().num_used(), 0);
  }
}

TEST(WorkerDraftsTest, WrongProposalsChangeNothing) {
  for (size_t depth : {0u, 1u}) {
    for (const int32_t period : {3, 5, 7, 11}) {
      Harness harness(WithDraftModel(6), depth, /*nan_token=*/-1, period);
      std::vector<EngineRequest> requests;
      for (int i = 0; i < 3; ++i) {
        requests.push_back(MakeRequest(std::to_string(i), 5 + 3 * i, 60, 100 * i));
        harness.Add(requests.back());
      }
      harness.RunToEnd();
      for (const EngineRequest& request : requests)
        EXPECT_EQ(harness.answers[request.id].tokens, Reference(request)) << period;
      const SpeculationCounts& counts = harness.scheduler.speculation();
      if (period > 3) {
        EXPECT_GT(counts.num_accepted_tokens, 0) << period;
        EXPECT_LT(counts.num_accepted_tokens, counts.num_draft_tokens) << period;
      }
      EXPECT_EQ(harness.scheduler.blocks().pool().num_used(), 0);
    }
  }
}

// A sequence without drafts is asked for one guess, and a sequence with drafts for as many as the next draft
// may have.
TEST(WorkerDraftsTest, AsksForWhatMayBecomeADraft) {
  Harness harness(WithDraftModel(4));
  harness.Run(MakeRequest("a", 9, 30));
  bool had_draft = false;
  for (const v1::StepRequest& step : harness.steps) {
    if (step.sequences_size() == 0) continue;
    EXPECT_LE(NumProposals(step), 4);
    if (!had_draft && DraftTokens(step) == 0) {
      EXPECT_LE(NumProposals(step), 2);
    }
    had_draft |= DraftTokens(step) > 0;
  }
  EXPECT_TRUE(had_draft);
}

// A guess costs a pass of the draft model: where guesses are wrong, few are asked for.
TEST(WorkerDraftsTest, AreAskedForRarelyWhereTheyAreWrong) {
  for (size_t depth : {0u, 1u}) {
    Harness harness(WithDraftModel(4), depth, /*nan_token=*/-1, /*wrong_period=*/1);
    const EngineRequest request = MakeRequest("a", 9, 80);
    harness.Run(request);
    EXPECT_EQ(harness.answers["a"].tokens, Reference(request));
    EXPECT_EQ(harness.scheduler.speculation().num_drafts, 0);
    EXPECT_GE(harness.worker.num_proposals(), 4);
    EXPECT_LE(harness.worker.num_proposals(), 16) << depth;
  }
}

int64_t NumAsked(Harness* harness, const EngineRequest& request) {
  const int64_t before = harness->worker.num_proposals();
  harness->Run(request);
  EXPECT_EQ(harness->answers[request.id].tokens, Reference(request));
  return harness->worker.num_proposals() - before;
}

TEST(WorkerDraftsTest, WhereOneSequenceAfterTheOtherFindsThemWrongFewAsk) {
  Harness harness(WithDraftModel(4), 0, /*nan_token=*/-1, /*wrong_period=*/1);
  std::vector<int> asking;
  for (int i = 0; i < DraftTrials::kFailures + 2 * DraftTrials::kOneOf; ++i) {
    if (NumAsked(&harness, MakeRequest(std::to_string(i), 9, 60, 10 * i)) > 0) asking.push_back(i);
  }
  EXPECT_EQ(asking, (std::vector<int>{0, 1, 2, 3, 3 + DraftTrials::kOneOf, 3 + 2 * DraftTrials::kOneOf}));
}

TEST(WorkerDraftsTest, ARightDraftMakesAllAskAgain) {
  DraftTrials trials;
  for (int i = 0; i < DraftTrials::kFailures; ++i) {
    EXPECT_EQ(trials.FirstPause(), 0);
    trials.NoteFailure();
  }
  EXPECT_EQ(trials.FirstPause(), DraftTrials::kLater);
  trials.NoteSuccess();
  EXPECT_EQ(trials.FirstPause(), 0);
  for (int i = 0; i < DraftTrials::kFailures - 1; ++i) trials.NoteFailure();
  EXPECT_EQ(trials.FirstPause(), 0);

  Harness harness(WithDraftModel(4));
  for (int i = 0; i < 6; ++i) EXPECT_GT(NumAsked(&harness, MakeRequest(std::to_string(i), 9, 60, 10 * i)), 0);
}

// A sequence that was left out asks when the answer has become long.
TEST(WorkerDraftsTest, ALongAnswerAsksInAnyCase) {
  SchedulerOptions options = WithDraftModel(4, /*num_blocks=*/512);
  options.max_model_len = 400;
  Harness harness(options, 0, /*nan_token=*/-1, /*wrong_period=*/1);
  for (int i = 0; i < DraftTrials::kFailures; ++i)
    NumAsked(&harness, MakeRequest(std::to_string(i), 9, 60, 10 * i));
  EXPECT_EQ(NumAsked(&harness, MakeRequest("short", 9, DraftTrials::kLater)), 0);
  EXPECT_GT(NumAsked(&harness, MakeRequest("long", 9, DraftTrials::kLater + 10)), 0);
}

TEST(WorkerDraftsTest, NothingIsAskedBehindTheEnd) {
  for (const auto& [max_tokens, max_model_len] : {std::pair(9, 100), std::pair(60, 23)}) {
    SchedulerOptions options = WithDraftModel(16);
    options.max_model_len = max_model_len;
    options.max_num_batched_tokens = 32;
    Harness harness(options);
    const EngineRequest request = MakeRequest("a", 10, max_tokens);
    harness.Run(request);
    const int32_t end = std::min(10 + max_tokens, max_model_len);
    EXPECT_EQ(harness.answers["a"].tokens, FakeWorker::ReferenceTokens(request.prompt, end - 10));
    EXPECT_GT(harness.scheduler.speculation().num_drafts, 0);
    int32_t position = 0;
    for (const v1::StepRequest& step : harness.steps) {
      for (const v1::ScheduledSequence& sequence : step.sequences()) {
        if (sequence.input_token_ids_size() > 0) position = sequence.start_position();
        position += sequence.num_tokens() - sequence.num_draft_tokens();
        EXPECT_LT(position + sequence.num_draft_tokens(), end);
        // The last proposal would come before the last token.
        EXPECT_LT(position + sequence.num_proposals(), end);
      }
    }
  }
  Harness harness(WithDraftModel(4));
  harness.Run(MakeRequest("one", 5, 1), MakeRequest("none", 5, 0, 50));
  EXPECT_EQ(harness.worker.num_proposals(), 0);
}

TEST(WorkerDraftsTest, AStopTokenEndsADraft) {
  for (int32_t place = 1; place <= 30; ++place) {
    Harness harness(WithDraftModel(8), place % 2);
    EngineRequest request = MakeRequest("a", 5, 40);
    const Tokens wanted = FakeWorker::ReferenceTokens(request.prompt, place);
    OwnSampling(&request)->stop_token_ids = {wanted.back()};
    harness.Run(request);
    EXPECT_EQ(harness.answers["a"].tokens, wanted);
    EXPECT_EQ(harness.scheduler.blocks().pool().num_used(), 0);
  }
}

// Proposals belong to the tokens that the workers have computed.
TEST(WorkerDraftsTest, ProposalsAreDroppedWithWhatIsComputed) {
  Harness harness(WithDraftModel(8));
  const EngineRequest request = MakeRequest("a", 5, 80);
  harness.Add(request);
  int num_preempted = 0;
  for (int i = 0; i < 1000 && harness.Step(); ++i) {
    if (DraftTokens(harness.steps.back()) == 0 || num_preempted == 4 || harness.scheduler.num_running() == 0)
      continue;
    ++num_preempted;
    harness.scheduler.PreemptAll();
    harness.Step();
    EXPECT_EQ(harness.steps.back().new_sequences_size(), 1);
    EXPECT_EQ(DraftTokens(harness.steps.back()), 0);
  }
  EXPECT_EQ(num_preempted, 4);
  EXPECT_EQ(harness.answers["a"].tokens, Reference(request));
}

TEST(WorkerDraftsTest, AnAbortOrALossDropsThem) {
  Harness harness(WithDraftModel(8), 1);
  const EngineRequest request = MakeRequest("a", 5, 90), other = MakeRequest("b", 6, 90, 200);
  harness.Add(request, other);
  int losses = 0;
  bool aborted = false;
  for (int i = 0; i < 1000 && harness.Step(); ++i) {
    if (harness.in_flight() == 0 || NumProposals(harness.steps.back()) < 2) continue;
    if (!aborted && losses == 2) {
      aborted = true;
      EXPECT_NE(harness.scheduler.Abort("b"), nullptr);
    } else if (losses < 5) {
      harness.Lose();
      ++losses;
    }
  }
  EXPECT_EQ(losses, 5);
  EXPECT_TRUE(aborted);
  EXPECT_EQ(harness.answers["a"].tokens, Reference(request));
  EXPECT_EQ(harness.scheduler.blocks().pool().num_used(), 0);
}

TEST(WorkerDraftsTest, BeamsAndPromptLookupAskForNothing) {
  Harness beams(WithDraftModel(8));
  EngineRequest request = MakeRequest("beams", 5, 10);
  SamplingParams* sampling = OwnSampling(&request);
  sampling->beam_search = BeamSearchParams{.width = 2};
  sampling->num_logprobs = 4;
  sampling->temperature = 0;
  beams.Add(request);
  beams.RunToEnd();
  SchedulerOptions options = SmallOptions();
  options.speculation = FakeDrafts(8);
  Harness lookup(options);
  lookup.Add(MakeRequest("a", 5, 40));
  lookup.RunToEnd();
  for (const Harness* harness : {&beams, &lookup}) {
    for (const v1::StepRequest& step : harness->steps) EXPECT_EQ(NumProposals(step), 0);
  }
}

}  // namespace
}  // namespace somnus
