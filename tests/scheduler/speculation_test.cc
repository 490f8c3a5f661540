// Speculative decoding: the tokens are the same as without, in fewer steps, and nobody else has less of a
// step.

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "tests/scheduler/fake_drafter.h"
#include "tests/scheduler/scheduler_harness.h"

namespace somnus {
namespace {

int32_t NumTokens(const v1::StepRequest& step) {
  int32_t count = 0;
  for (const v1::ScheduledSequence& sequence : step.sequences()) count += sequence.num_tokens();
  return count;
}

TEST(SpeculationTest, RightDraftsGiveTheSameTokensInFewerSteps) {
  for (size_t depth : {0u, 1u}) {
    Harness harness(WithDrafts(FakeDrafts(8)), depth);
    const EngineRequest request = MakeRequest("a", 5, 40);
    harness.Run(request);
    EXPECT_EQ(harness.answers["a"].tokens, Reference(request));
    EXPECT_EQ(harness.answers["a"].reason, FinishReason::kLength);
    // The prompt's token and the tokens that show that guesses are right; then 2, 4, 8, 8 and 8 tokens and an
    // additional token each, and the rest. Where steps overlap the second right guess is known a step later.
    std::vector<int32_t> drafts;
    for (const v1::StepRequest& step : harness.steps) {
      if (step.sequences_size() > 0) drafts.push_back(DraftTokens(step));
    }
    std::vector<int32_t> wanted = {0, 0, 0, 2, 4, 8, 8, 8, 1};
    if (depth == 1) wanted = {0, 0, 0, 0, 2, 4, 8, 8, 8, 0};
    EXPECT_EQ(drafts, wanted) << depth;
    const SpeculationCounts& counts = harness.scheduler.speculation();
    const int32_t sum = std::accumulate(wanted.begin(), wanted.end(), 0);
    EXPECT_EQ(counts.num_drafts, depth == 0 ? 6 : 5);
    EXPECT_EQ(counts.num_draft_tokens, sum);
    EXPECT_EQ(counts.num_accepted_tokens, sum);
    EXPECT_EQ(harness.worker.num_draft_tokens(), sum);
    EXPECT_EQ(std::accumulate(counts.num_accepted_tokens_per_pos.begin(),
                              counts.num_accepted_tokens_per_pos.end(), int64_t{0}),
              sum);
    EXPECT_EQ(counts.num_accepted_tokens_per_pos[0], counts.num_drafts);
    EXPECT_EQ(harness.scheduler.stats().generation_tokens, 40);
    EXPECT_EQ(harness.scheduler.blocks().pool().num_used(), 0);
  }
}

TEST(SpeculationTest, OffByDefault) {
  SpeculationOptions none = FakeDrafts(0);
  Harness harness(WithDrafts(none));
  harness.Run(MakeRequest("a", 5, 20));
  EXPECT_EQ(harness.scheduler.speculation().num_drafts, 0);
  for (const v1::StepRequest& step : harness.steps) {
    for (const v1::ScheduledSequence& sequence : step.sequences())
      EXPECT_EQ(sequence.input_token_ids_size(), 0);
  }
}

// However many tokens of drafts are right, tokens are exact, and blocks behind the right part go back.
TEST(SpeculationTest, WrongDraftsChangeNothing) {
  for (size_t depth : {0u, 1u}) {
    for (int64_t period : {5, 6, 7, 11}) {
      const auto is_wrong = [period](int64_t position) { return position % period == 0; };
      Harness harness(WithDrafts(FakeDrafts(6, is_wrong)), depth);
      std::vector<EngineRequest> requests;
      for (int i = 0; i < 3; ++i) {
        requests.push_back(MakeRequest(std::to_string(i), 5 + 3 * i, 60, 100 * i));
        OwnSampling(&requests.back())->num_logprobs = 2;
        harness.Add(requests.back());
      }
      while (harness.Step()) {
        if (harness.in_flight() > 0) continue;
        // A running sequence holds the blocks of known tokens, and no other blocks.
        int32_t most = 0;
        for (const EngineRequest& request : requests) {
          const Answer& answer = harness.answers[request.id];
          const size_t num_tokens = request.prompt.size() + answer.tokens.size();
          if (answer.reason == FinishReason::kNone) most += static_cast<int32_t>(num_tokens + 3) / 4;
        }
        ASSERT_LE(harness.scheduler.blocks().pool().num_used(), most);
      }
      for (const EngineRequest& request : requests) {
        const Answer& answer = harness.answers[request.id];
        EXPECT_EQ(answer.tokens, Reference(request)) << period;
        ASSERT_EQ(answer.logprobs.size(), answer.tokens.size());
        std::vector<int32_t> tokens = request.prompt;
        for (size_t i = 0; i < answer.tokens.size(); ++i) {
          const v1::StepLogprobs wanted = FakeWorker::ReferenceCandidates(tokens, 2);
          EXPECT_EQ(answer.logprobs[i].token_ids,
                    (std::vector<int32_t>{wanted.token_ids().begin(), wanted.token_ids().end()}));
          tokens.push_back(answer.tokens[i]);
        }
      }
      const SpeculationCounts& counts = harness.scheduler.speculation();
      EXPECT_GT(counts.num_accepted_tokens, 0) << period;
      EXPECT_LT(counts.num_accepted_tokens, counts.num_draft_tokens) << period;
    }
  }
}

// The drafter expects the next tokens rightly, and is wrong whenever that counts.
TEST(SpeculationTest, DraftsThatNeverPayEnd) {
  SpeculationOptions speculation = FakeDrafts(8);
  speculation.make_drafter = [] {
    class Deceiver : public Drafter {
     public:
      void Propose(absl::Span<const int32_t> tokens, int32_t most, std::vector<int32_t>* draft) override {
        *draft = FakeWorker::ReferenceTokens({tokens.begin(), tokens.end()}, most);
        if (most > 1) draft->front() = (draft->front() + 1) % 1000;
      }
    };
    return std::make_unique<Deceiver>();
  };
  SchedulerOptions options = WithDrafts(speculation, 400);
  options.max_model_len = 1000;
  Harness deceived(options);
  const EngineRequest request = MakeRequest("a", 5, 900);
  deceived.Add(request);
  deceived.RunToEnd();
  EXPECT_EQ(deceived.answers["a"].tokens, Reference(request));
  const SpeculationCounts& counts = deceived.scheduler.speculation();
  EXPECT_EQ(counts.num_accepted_tokens, 0);
  // After 2, 4, 8, 16 and then each time 32 right guesses.
  EXPECT_LE(counts.num_drafts, 4 + 900 / 32);
  EXPECT_GE(counts.num_drafts, 20);
}

TEST(SpeculationTest, NoDraftGoesBeyondTheEnd) {
  for (const auto& [max_tokens, max_model_len] : {std::pair(9, 100), std::pair(60, 23)}) {
    SchedulerOptions options = WithDrafts(FakeDrafts(16));
    options.max_model_len = max_model_len;
    options.max_num_batched_tokens = 32;
    Harness harness(options);
    const EngineRequest request = MakeRequest("a", 10, max_tokens);
    harness.Run(request);
    const int32_t end = std::min(10 + max_tokens, max_model_len);
    EXPECT_EQ(harness.answers["a"].tokens, FakeWorker::ReferenceTokens(request.prompt, end - 10));
    EXPECT_GT(harness.scheduler.speculation().num_drafts, 0);
    for (const v1::StepRequest& step : harness.steps) {
      for (const v1::ScheduledSequence& sequence : step.sequences())
        EXPECT_LT(sequence.start_position() + sequence.num_tokens(), end);
    }
  }
}

TEST(SpeculationTest, AStopTokenEndsADraft) {
  for (int32_t place = 1; place <= 30; ++place) {
    Harness harness(WithDrafts(FakeDrafts(8)), place % 2);
    EngineRequest request = MakeRequest("a", 5, 40);
    std::vector<int32_t> wanted = FakeWorker::ReferenceTokens(request.prompt, place);
    OwnSampling(&request)->stop_token_ids = {wanted.back()};
    harness.Run(request);
    EXPECT_EQ(harness.answers["a"].tokens, wanted);
    EXPECT_EQ(harness.answers["a"].reason, FinishReason::kStop);
    EXPECT_EQ(harness.answers["a"].stop_token_id, wanted.back());
    EXPECT_EQ(harness.scheduler.blocks().pool().num_used(), 0);
  }
}

// A long prompt gets as much of each step as without drafts.
TEST(SpeculationTest, DraftsHaveWhatOthersLeave) {
  Harness harness(WithDrafts(FakeDrafts(8)), 1);
  harness.Add(MakeRequest("a", 5, 60));
  for (int i = 0; i < 8; ++i) harness.Step();
  ASSERT_GT(DraftTokens(harness.steps.back()) + DraftTokens(harness.steps[harness.steps.size() - 2]), 0);
  const size_t first = harness.steps.size();
  harness.Run(MakeRequest("long", 70, 4, 300));
  int64_t computed = 0;
  for (size_t i = first; computed < 70; ++i) {
    const v1::StepRequest& step = harness.steps[i];
    EXPECT_LE(NumTokens(step), 16);
    const bool has_decode = step.sequences_size() > 1;
    const int64_t chunk = step.sequences(step.sequences_size() - 1).num_tokens();
    EXPECT_EQ(chunk, std::min<int64_t>(70 - computed, has_decode ? 15 : 16));
    computed += chunk;
  }
  EXPECT_EQ(harness.answers["a"].tokens, Reference(MakeRequest("a", 5, 60)));
  EXPECT_EQ(harness.answers["long"].tokens, Reference(MakeRequest("long", 70, 4, 300)));
}

// Lookahead slots are not taken where running sequences may soon need the blocks.
TEST(SpeculationTest, DraftsPreemptNobody) {
  for (size_t depth : {0u, 1u}) {
    SchedulerOptions options = WithDrafts(FakeDrafts(8), /*num_blocks=*/22);
    Harness harness(options, depth);
    std::vector<EngineRequest> requests;
    for (int i = 0; i < 4; ++i) {
      requests.push_back(MakeRequest(std::to_string(i), 6, 30, 100 * i));
      harness.Add(requests.back());
    }
    while (harness.Step()) {
      if (DraftTokens(harness.steps.back()) == 0 || harness.in_flight() == 0) continue;
      const auto& step = harness.steps.back();
      const bool has_lookahead = std::any_of(
          step.sequences().begin(), step.sequences().end(), [](const v1::ScheduledSequence& sequence) {
            return sequence.num_draft_tokens() > 0 && sequence.new_block_ids_size() > 0 &&
                   sequence.start_position() % 4 != 0;
          });
      if (has_lookahead) {
        EXPECT_GE(harness.scheduler.blocks().pool().num_free(), harness.scheduler.num_running());
      }
    }
    for (const EngineRequest& request : requests)
      EXPECT_EQ(harness.answers[request.id].tokens, Reference(request));
    EXPECT_GT(harness.scheduler.speculation().num_drafts, 0);
  }
}

TEST(SpeculationTest, BeamsHaveNoDrafts) {
  Harness harness(WithDrafts(FakeDrafts(8)));
  EngineRequest beams = MakeRequest("beams", 5, 10);
  SamplingParams* sampling = OwnSampling(&beams);
  sampling->beam_search = BeamSearchParams{.width = 2};
  sampling->num_logprobs = 4;
  sampling->temperature = 0;
  harness.Run(beams);
  EXPECT_EQ(harness.scheduler.speculation().num_drafts, 0);
  EXPECT_EQ(harness.answers["beams"].beams.size(), 2u);
}

// Tokens behind a token that differs from the draft were computed from a wrong token.
TEST(SpeculationTest, AReplyThatGoesOnBehindAWrongTokenEndsTheRequest) {
  Scheduler scheduler(WithDrafts(FakeDrafts(8)));
  FakeWorker worker({});
  scheduler.Add(MakeRequest("a", 5, 40));
  scheduler.Add(MakeRequest("b", 5, 40, 100));
  std::vector<std::string> failed;
  for (int i = 0; i < 100 && failed.empty(); ++i) {
    const StepPlan plan = scheduler.Schedule();
    auto reply = worker.Execute(plan.request);
    ASSERT_TRUE(reply.ok()) << reply.status();
    if (DraftTokens(plan.request) > 0) {
      v1::SampledToken* first = reply->mutable_tokens(0);
      first->set_token_id((first->token_id() + 1) % 1000);
    }
    auto outputs = scheduler.Update(*reply);
    ASSERT_TRUE(outputs.ok()) << outputs.status();
    for (const SequenceOutput& output : *outputs) {
      if (output.output.finish_reason != FinishReason::kError) continue;
      EXPECT_TRUE(absl::IsInternal(output.output.error)) << output.output.error;
      failed.push_back(output.sequence->request.id);
    }
    ASSERT_TRUE(scheduler.CheckIntegrity().ok());
  }
  EXPECT_EQ(failed, std::vector<std::string>{"a"});
  EXPECT_EQ(scheduler.num_running(), 1);
}

// A worker dies, or a sequence is preempted, while drafts are in flight.
TEST(SpeculationTest, DraftsInFlightAreLostWithTheirStep) {
  Harness harness(WithDrafts(FakeDrafts(8)), 1);
  const EngineRequest request = MakeRequest("a", 5, 90);
  harness.Add(request);
  int losses = 0;
  for (int i = 0; i < 1000 && harness.Step(); ++i) {
    if (harness.in_flight() == 0 || DraftTokens(harness.steps.back()) == 0 || losses >= 5) continue;
    EXPECT_EQ(harness.Lose().size(), 1u);
    ++losses;
  }
  EXPECT_EQ(losses, 5);
  EXPECT_EQ(harness.answers["a"].tokens, Reference(request));
}

}  // namespace
}  // namespace somnus
