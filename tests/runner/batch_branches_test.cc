// The batch state's part of named tokens and branches.

#include <functional>
#include <vector>

#include "base/status_macros.h"
#include "gtest/gtest.h"
#include "worker/runner/batch_state.h"

namespace somnus {
namespace {

BatchLimits Limits() {
  BatchLimits limits;
  limits.max_num_seqs = 4;
  limits.max_num_batched_tokens = 32;
  limits.max_model_len = 48;
  limits.block_size = 16;
  limits.vocab_size = 100;
  limits.num_blocks = 20;
  return limits;
}

absl::Status Apply(BatchState& state, const v1::StepRequest& request) {
  RETURN_IF_ERROR(state.Branch(request));
  RETURN_IF_ERROR(state.Free(request));
  RETURN_IF_ERROR(state.CheckCopies(request));
  RETURN_IF_ERROR(state.Add(request));
  RETURN_IF_ERROR(state.Schedule(request));
  return state.Fork(request);
}

// Prompts of 10 tokens in slots 0 and 1, whose tokens are 10 to 19 and 20 to 29, in blocks 1 and 2. Both
// have sampled token 7.
class BatchBranchesTest : public testing::Test {
 protected:
  void SetUp() override { Start(1); }

  void Start(float repetition_penalty) {
    state_ = BatchState(Limits());
    v1::StepRequest request;
    v1::StepSampling* sampling = request.add_samplings();
    sampling->set_top_p(1);
    sampling->set_repetition_penalty(repetition_penalty);
    sampling->set_num_logprobs(4);
    sampling->set_num_prompt_logprobs(-1);
    for (const int32_t slot : {0, 1}) {
      v1::NewSequence* fresh = request.add_new_sequences();
      fresh->set_slot(slot);
      for (int i = 0; i < 10; ++i) fresh->add_token_ids(10 * (slot + 1) + i);
      fresh->set_num_prompt_tokens(10);
      fresh->add_block_ids(1 + slot);
      v1::ScheduledSequence* sequence = request.add_sequences();
      sequence->set_slot(slot);
      sequence->set_num_tokens(10);
    }
    ASSERT_EQ(Apply(state_, request), absl::OkStatus());
    for (const int32_t slot : {0, 1}) state_.AppendToken(slot, 7);
  }

  static void AddBranch(v1::StepRequest* request, int32_t slot, int32_t source, int32_t block) {
    v1::SequenceFork* branch = request->add_branches();
    branch->set_slot(slot);
    branch->set_source_slot(source);
    branch->set_seed(5);
    branch->add_block_ids(block);
  }
  static v1::ScheduledSequence* AddInput(v1::StepRequest* request, int32_t slot,
                                         std::vector<int32_t> tokens) {
    v1::ScheduledSequence* sequence = request->add_sequences();
    sequence->set_slot(slot);
    sequence->set_num_tokens(static_cast<int32_t>(tokens.size()));
    sequence->mutable_input_token_ids()->Add(tokens.begin(), tokens.end());
    sequence->set_start_position(10);
    return sequence;
  }
  // Slot 2 goes on as slot 0 with token 30, beside slot 0 itself.
  static v1::StepRequest Good() {
    v1::StepRequest request;
    AddBranch(&request, 2, 0, 3);
    AddInput(&request, 0, {31});
    AddInput(&request, 2, {30});
    return request;
  }

  BatchState state_{Limits()};
};

TEST_F(BatchBranchesTest, NamedTokensTakeThePlaceOfTheSampledOne) {
  v1::StepRequest request;
  AddInput(&request, 1, {50, 51, 52});
  ASSERT_EQ(Apply(state_, request), absl::OkStatus());
  EXPECT_EQ(state_.slot(1).tokens,
            (std::vector<int32_t>{20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 50, 51, 52}));
  ASSERT_EQ(state_.scheduled().size(), 1u);
  EXPECT_EQ(state_.scheduled()[0].start, 10);
  EXPECT_EQ(state_.scheduled()[0].num_tokens, 3);
  EXPECT_TRUE(state_.scheduled()[0].samples);
  EXPECT_TRUE(state_.added_slots().empty());
  EXPECT_EQ(state_.slot(0).tokens.back(), 7);
  state_.AppendToken(1, 8);

  v1::StepRequest shorter;  // a step that begins before computed tokens
  AddInput(&shorter, 1, {60})->set_start_position(11);
  ASSERT_EQ(Apply(state_, shorter), absl::OkStatus());
  EXPECT_EQ(state_.slot(1).tokens.size(), 12u);
  EXPECT_EQ(state_.slot(1).tokens.back(), 60);
}

TEST_F(BatchBranchesTest, ABranchIsACopyOfItsSource) {
  const int64_t generation = state_.slot(2).generation;
  ASSERT_EQ(Apply(state_, Good()), absl::OkStatus());
  const Slot &branch = state_.slot(2), &source = state_.slot(0);
  EXPECT_EQ(branch.tokens, (std::vector<int32_t>{10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 30}));
  EXPECT_EQ(source.tokens, (std::vector<int32_t>{10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 31}));
  EXPECT_EQ(branch.num_prompt_tokens, 10);
  EXPECT_EQ(branch.num_computed, 11);
  EXPECT_EQ(branch.sampling, source.sampling);
  EXPECT_EQ(branch.seed, 5u);
  EXPECT_EQ(branch.block_ids, std::vector<int32_t>{3});
  EXPECT_GT(branch.generation, generation);
  EXPECT_EQ(state_.added_slots(), std::vector<int32_t>{2});
  ASSERT_EQ(state_.block_edits().size(), 1u);
  EXPECT_EQ(state_.block_edits()[0].slot, 2);
  EXPECT_EQ(state_.scheduled().size(), 2u);
}

// Two slots change places, a third slot goes on as one of the two, and a source is freed.
TEST_F(BatchBranchesTest, SourcesAreReadBeforeAnySlotIsWritten) {
  v1::StepRequest request;
  AddBranch(&request, 0, 1, 4);
  AddBranch(&request, 1, 0, 5);
  AddBranch(&request, 3, 0, 6);
  for (const int32_t slot : {0, 1, 3}) AddInput(&request, slot, {40 + slot});
  ASSERT_EQ(Apply(state_, request), absl::OkStatus());
  EXPECT_EQ(state_.slot(0).tokens[0], 20);
  EXPECT_EQ(state_.slot(1).tokens[0], 10);
  EXPECT_EQ(state_.slot(3).tokens[0], 10);
  for (const int32_t slot : {0, 1, 3}) {
    EXPECT_EQ(state_.slot(slot).tokens.back(), 40 + slot);
    state_.AppendToken(slot, 7);
  }
  v1::StepRequest freed;
  AddBranch(&freed, 2, 3, 7);
  freed.add_freed_slots(3);
  AddInput(&freed, 2, {50})->set_start_position(11);
  ASSERT_EQ(Apply(state_, freed), absl::OkStatus());
  EXPECT_FALSE(state_.slot(3).in_use);
  EXPECT_EQ(state_.slot(2).tokens.back(), 50);
}

TEST_F(BatchBranchesTest, TokensThatPenaltiesCountAreCountedAgain) {
  Start(1.5f);
  v1::StepRequest request = Good();
  ASSERT_EQ(Apply(state_, request), absl::OkStatus());
  EXPECT_EQ(state_.added_slots(), (std::vector<int32_t>{2, 0}));
}

TEST_F(BatchBranchesTest, ATokenOutsideTheVocabularyEndsItsSequenceAlone) {
  for (const int32_t token : {-1, 100}) {
    Start(1);
    v1::StepRequest request = Good();
    request.mutable_sequences(1)->set_input_token_ids(0, token);
    ASSERT_EQ(Apply(state_, request), absl::OkStatus());
    EXPECT_EQ(state_.refused_slots(), std::vector<int32_t>{2});
    EXPECT_EQ(state_.slot(2).error.code(), absl::StatusCode::kInvalidArgument);
    ASSERT_EQ(state_.scheduled().size(), 1u);
    EXPECT_EQ(state_.scheduled()[0].slot, 0);

    v1::StepRequest from_refused;  // a branch has the error of the source
    AddBranch(&from_refused, 3, 2, 5);
    from_refused.add_freed_slots(2);
    AddInput(&from_refused, 3, {1});
    ASSERT_EQ(Apply(state_, from_refused), absl::OkStatus());
    EXPECT_EQ(state_.refused_slots(), std::vector<int32_t>{3});
  }
}

TEST_F(BatchBranchesTest, RefusesEveryBadNumberOfAStep) {
  struct Damage {
    const char* name;
    std::function<void(v1::StepRequest&)> apply;
  };
  const auto input = [](v1::StepRequest& r) { return r.mutable_sequences(0); };
  const Damage damages[] = {
      {"slot outside", [](auto& r) { r.mutable_branches(0)->set_slot(4); }},
      {"slot negative", [](auto& r) { r.mutable_branches(0)->set_slot(-1); }},
      {"source outside", [](auto& r) { r.mutable_branches(0)->set_source_slot(4); }},
      {"source unused", [](auto& r) { r.mutable_branches(0)->set_source_slot(3); }},
      {"branched twice", [](auto& r) { *r.add_branches() = r.branches(0); }},
      {"block outside", [](auto& r) { r.mutable_branches(0)->set_block_ids(0, 20); }},
      {"padding block", [](auto& r) { r.mutable_branches(0)->set_block_ids(0, 0); }},
      {"too few blocks", [](auto& r) { r.mutable_branches(0)->clear_block_ids(); }},
      {"branch is not scheduled", [](auto& r) { r.mutable_sequences()->RemoveLast(); }},
      {"branch has no input",
       [](auto& r) {
         r.mutable_sequences(1)->clear_input_token_ids();
         r.mutable_sequences(1)->set_start_position(0);
       }},
      {"freed branch", [](auto& r) { r.add_freed_slots(2); }},
      {"more tokens than inputs", [&](auto& r) { input(r)->set_num_tokens(2); }},
      {"fewer tokens than inputs", [&](auto& r) { input(r)->add_input_token_ids(1); }},
      {"position within the prompt", [&](auto& r) { input(r)->set_start_position(9); }},
      {"position negative", [&](auto& r) { input(r)->set_start_position(-1); }},
      {"position not computed", [&](auto& r) { input(r)->set_start_position(11); }},
      {"drafts", [&](auto& r) { input(r)->set_num_draft_tokens(1); }},
      {"beyond the longest",
       [&](auto& r) {
         for (int i = 0; i < 40; ++i) input(r)->add_input_token_ids(1);
         input(r)->set_num_tokens(41);
       }},
  };
  for (const Damage& damage : damages) {
    Start(1);
    v1::StepRequest request = Good();
    damage.apply(request);
    EXPECT_EQ(Apply(state_, request).code(), absl::StatusCode::kInvalidArgument) << damage.name;
  }
}

// A draft of eight tokens behind the sampled token; the draft reaches into a second block.
v1::StepRequest Draft(int32_t start, int32_t block) {
  v1::StepRequest request;
  v1::ScheduledSequence* sequence = request.add_sequences();
  sequence->set_start_position(start);
  for (int32_t i = 0; i < 9; ++i) sequence->add_input_token_ids(50 + i);
  sequence->set_num_tokens(9);
  sequence->set_num_draft_tokens(8);
  sequence->add_new_block_ids(block);
  return request;
}

TEST_F(BatchBranchesTest, BehindADraftTheNextStepNamesTokensAndBlocks) {
  for (const int32_t start : {10, 12, 15}) {  // from a token of the draft before
    ASSERT_EQ(Apply(state_, Draft(start, start)), absl::OkStatus()) << start;
    ASSERT_EQ(state_.scheduled().size(), 1u);
    EXPECT_EQ(state_.scheduled()[0].start, start);
    EXPECT_EQ(state_.scheduled()[0].num_drafts, 8);
    EXPECT_TRUE(state_.scheduled()[0].samples);
    EXPECT_EQ(state_.slot(0).tokens.size(), static_cast<size_t>(start) + 9);
    EXPECT_EQ(state_.slot(0).num_drafts, 8);
    EXPECT_EQ(state_.slot(0).block_ids, (std::vector<int32_t>{1, start}));
  }
  EXPECT_EQ(state_.CheckUnused(10), absl::OkStatus()) << "a block of guesses may have been given back";
  BatchState without = state_;
  v1::StepRequest decode;
  decode.add_sequences()->set_num_tokens(1);
  EXPECT_EQ(Apply(without, decode).code(), absl::StatusCode::kInvalidArgument);
  BatchState forked = state_;
  v1::StepRequest fork = Draft(16, 16);
  fork.add_forks()->set_slot(3);
  EXPECT_EQ(Apply(forked, fork).code(), absl::StatusCode::kInvalidArgument);
  decode.mutable_sequences(0)->add_input_token_ids(60);
  decode.mutable_sequences(0)->set_start_position(20);
  ASSERT_EQ(Apply(state_, decode), absl::OkStatus());
  EXPECT_EQ(state_.slot(0).num_drafts, 0);
  EXPECT_EQ(state_.slot(0).block_ids, (std::vector<int32_t>{1, 15}));
  EXPECT_FALSE(state_.CheckUnused(10).ok());
  state_.AppendToken(0, 7);
  decode.mutable_sequences(0)->clear_input_token_ids();
  EXPECT_EQ(Apply(state_, decode), absl::OkStatus());
}

TEST_F(BatchBranchesTest, RefusesEveryBadNumberOfADraft) {
  const auto refused = [this](const std::function<void(v1::ScheduledSequence*)>& damage) {
    BatchState state = state_;
    v1::StepRequest request = Draft(10, 10);
    damage(request.mutable_sequences(0));
    return Apply(state, request).code() == absl::StatusCode::kInvalidArgument;
  };
  EXPECT_FALSE(refused([](auto*) {}));
  EXPECT_TRUE(refused([](auto* s) { s->set_num_draft_tokens(9); }));
  EXPECT_TRUE(refused([](auto* s) { s->set_num_draft_tokens(-1); }));
  EXPECT_TRUE(refused([](auto* s) { s->clear_new_block_ids(); }));
  EXPECT_TRUE(refused([](auto* s) { s->clear_input_token_ids(); }));
}

// The coordinator names a sequence's next tokens only when all earlier tokens are known.
TEST_F(BatchBranchesTest, RefusesInputWhileTokensArePending) {
  v1::StepRequest decode;
  decode.add_sequences()->set_num_tokens(1);
  ASSERT_EQ(Apply(state_, decode), absl::OkStatus());
  state_.AppendToken(0, kUnknownToken);
  BatchState later = state_;
  EXPECT_EQ(Apply(state_, Good()).code(), absl::StatusCode::kInvalidArgument);
  later.SetToken(0, later.slot(0).generation, 11, 8);
  EXPECT_EQ(Apply(later, Good()), absl::OkStatus());
}

}  // namespace
}  // namespace somnus
