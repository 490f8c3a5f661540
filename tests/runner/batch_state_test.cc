#include "worker/runner/batch_state.h"

#include <cmath>
#include <functional>

#include "base/status_macros.h"
#include "gtest/gtest.h"

namespace somnus {
namespace {

v1::StepSampling Greedy() {
  v1::StepSampling sampling;
  sampling.set_top_p(1);
  sampling.set_repetition_penalty(1);
  sampling.set_num_logprobs(-1);
  sampling.set_num_prompt_logprobs(-1);
  return sampling;
}

// A prompt of 20 tokens in slot 1, blocks 3 and 4, all scheduled.
v1::StepRequest Good() {
  v1::StepRequest request;
  v1::NewSequence* fresh = request.add_new_sequences();
  fresh->set_slot(1);
  for (int i = 0; i < 20; ++i) fresh->add_token_ids(i);
  fresh->set_num_prompt_tokens(20);
  fresh->add_block_ids(3);
  fresh->add_block_ids(4);
  *request.add_samplings() = Greedy();
  v1::ScheduledSequence* sequence = request.add_sequences();
  sequence->set_slot(1);
  sequence->set_num_tokens(20);
  return request;
}

// Slot 2 forks slot 1, and has a private second block.
v1::SequenceFork* AddFork(v1::StepRequest* request) {
  v1::SequenceFork* fork = request->add_forks();
  fork->set_slot(2);
  fork->set_source_slot(1);
  fork->add_block_ids(3);
  fork->add_block_ids(5);
  fork->set_seed(9);
  return fork;
}

BatchLimits Limits() {
  BatchLimits limits;
  limits.max_num_seqs = 4;
  limits.max_num_batched_tokens = 32;
  limits.max_model_len = 48;
  limits.block_size = 16;
  limits.vocab_size = 100;
  limits.num_blocks = 10;
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

TEST(BatchStateTest, APromptThatPoolsSamplesNothing) {
  for (const v1::StepPooling pooling : {v1::STEP_POOLING_LAST, v1::STEP_POOLING_CLS, v1::STEP_POOLING_MEAN}) {
    BatchState state(Limits());
    v1::StepRequest request = Good();
    request.mutable_new_sequences(0)->set_pooling(pooling);
    ASSERT_TRUE(Apply(state, request).ok());
    ASSERT_EQ(state.scheduled().size(), 1u);
    EXPECT_FALSE(state.scheduled()[0].samples);
    EXPECT_TRUE(state.slot(1).pools());
    v1::StepRequest more;
    more.add_sequences()->set_slot(1);
    more.mutable_sequences(0)->set_num_tokens(1);
    EXPECT_FALSE(Apply(state, more).ok()) << "nothing follows the prompt";
    v1::StepRequest freed;
    freed.add_freed_slots(1);
    ASSERT_TRUE(Apply(state, freed).ok());
    ASSERT_TRUE(Apply(state, Good()).ok());
    EXPECT_TRUE(state.scheduled()[0].samples) << "the slot's next sequence does not pool";
  }
}

TEST(BatchStateTest, FaultsOfPoolingAreTheSlots) {
  const auto error_of = [](const std::function<void(v1::NewSequence*)>& change) {
    BatchState state(Limits());
    v1::StepRequest request = Good();
    change(request.mutable_new_sequences(0));
    EXPECT_TRUE(Apply(state, request).ok());
    EXPECT_EQ(state.refused_slots().size(), state.slot(1).error.ok() ? 0u : 1u);
    return state.slot(1).error;
  };
  const auto computed = [&](v1::StepPooling pooling) {
    return error_of([pooling](v1::NewSequence* fresh) {
      fresh->set_pooling(pooling);
      fresh->set_num_computed_tokens(0);
      fresh->set_num_prompt_tokens(19);
    });
  };
  for (const int value : {1, 2, 3, 4, -1})
    EXPECT_TRUE(absl::IsInvalidArgument(computed(static_cast<v1::StepPooling>(value)))) << value;
  const auto adopted = [&](v1::StepPooling pooling) {
    BatchState state(Limits());
    v1::StepRequest request = Good();
    request.mutable_new_sequences(0)->set_pooling(pooling);
    request.mutable_new_sequences(0)->set_num_computed_tokens(16);
    request.mutable_sequences(0)->set_num_tokens(4);
    EXPECT_TRUE(Apply(state, request).ok());
    return state.slot(1).error;
  };
  EXPECT_TRUE(adopted(v1::STEP_POOLING_LAST).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(adopted(v1::STEP_POOLING_CLS)));
  EXPECT_TRUE(absl::IsInvalidArgument(adopted(v1::STEP_POOLING_MEAN)));
}

TEST(BatchStateTest, NothingForksOrContinuesASequenceThatPools) {
  BatchState state(Limits());
  v1::StepRequest request = Good();
  request.mutable_new_sequences(0)->set_pooling(v1::STEP_POOLING_LAST);
  AddFork(&request);
  EXPECT_FALSE(Apply(state, request).ok());
  BatchState other(Limits());
  request = Good();
  request.mutable_new_sequences(0)->set_pooling(v1::STEP_POOLING_LAST);
  ASSERT_TRUE(Apply(other, request).ok());
  v1::StepRequest named;
  v1::ScheduledSequence* sequence = named.add_sequences();
  sequence->set_slot(1);
  sequence->set_num_tokens(1);
  sequence->add_input_token_ids(5);
  sequence->set_start_position(20);
  EXPECT_FALSE(Apply(other, named).ok());
}

TEST(BatchStateTest, PromptThenDecodes) {
  BatchState state(Limits());
  ASSERT_TRUE(Apply(state, Good()).ok());
  ASSERT_EQ(state.scheduled().size(), 1u);
  EXPECT_TRUE(state.scheduled()[0].samples);
  state.AppendToken(1, 42);

  v1::StepRequest decode;
  decode.add_sequences()->set_slot(1);
  decode.mutable_sequences(0)->set_num_tokens(1);
  ASSERT_TRUE(Apply(state, decode).ok());
  EXPECT_EQ(state.scheduled()[0].start, 20);
  EXPECT_EQ(state.slot(1).tokens[20], 42);
  EXPECT_EQ(state.slot(1).num_outputs(), 1);
  EXPECT_FALSE(Apply(state, decode).ok()) << "nothing was sampled, so nothing is known to compute";
}

TEST(BatchStateTest, ChunkedPromptSamplesAtItsEnd) {
  BatchState state(Limits());
  v1::StepRequest request = Good();
  request.mutable_sequences(0)->set_num_tokens(16);
  ASSERT_TRUE(Apply(state, request).ok());
  EXPECT_FALSE(state.scheduled()[0].samples);
  v1::StepRequest rest;
  rest.add_sequences()->set_slot(1);
  rest.mutable_sequences(0)->set_num_tokens(4);
  ASSERT_TRUE(Apply(state, rest).ok());
  EXPECT_TRUE(state.scheduled()[0].samples);
}

TEST(BatchStateTest, ResumedSequenceCountsItsOutputs) {
  BatchState state(Limits());
  v1::StepRequest request = Good();
  request.mutable_new_sequences(0)->set_num_prompt_tokens(18);
  request.mutable_samplings(0)->set_frequency_penalty(1);
  request.mutable_new_sequences(0)->set_num_computed_tokens(16);
  request.mutable_sequences(0)->set_num_tokens(4);
  ASSERT_TRUE(Apply(state, request).ok());
  EXPECT_EQ(state.slot(1).num_outputs(), 2);
  EXPECT_EQ(state.added_slots(), std::vector<int32_t>{1});
  EXPECT_EQ(state.scheduled()[0].start, 16);
}

// With a reach of 4 tokens the token at position 19 attends nothing of the first block, the token at 18 does.
TEST(BatchStateTest, OnlyABlockThatNoTokenAttendsMayBeTheNullBlock) {
  for (const int32_t computed : {18, 19}) {
    for (const int64_t reach : {0, 4}) {
      BatchLimits limits = Limits();
      limits.attention_reach = reach;
      BatchState state(limits);
      v1::StepRequest request = Good();
      request.mutable_new_sequences(0)->set_block_ids(0, 0);
      request.mutable_new_sequences(0)->set_num_computed_tokens(computed);
      request.mutable_sequences(0)->set_num_tokens(20 - computed);
      EXPECT_EQ(Apply(state, request).ok(), reach == 4 && computed == 19) << computed << " " << reach;
    }
  }
}

// A profile's sequences share the null block.
TEST(BatchStateTest, TheNullBlockIsForThoseWhoAreAllowedToHoldIt) {
  v1::StepRequest request = Good();
  request.mutable_new_sequences(0)->set_block_ids(0, 0);
  for (const bool allowed : {false, true}) {
    BatchState state(Limits());
    state.AllowNullBlock(allowed);
    EXPECT_EQ(Apply(state, request).ok(), allowed);
  }
  BatchState state(Limits());
  state.AllowNullBlock(true);
  state.AllowNullBlock(false);
  EXPECT_FALSE(Apply(state, request).ok());
}

// The coordinator has given the first block back, and may shrink the cache below that block.
TEST(BatchStateTest, ABlockThatNoTokenAttendsDoesNotKeepTheCacheLarge) {
  for (const int64_t reach : {0, 4}) {
    BatchLimits limits = Limits();
    limits.attention_reach = reach;
    BatchState state(limits);
    v1::StepRequest request = Good();
    request.mutable_new_sequences(0)->set_block_ids(0, 6);
    request.mutable_new_sequences(0)->set_block_ids(1, 3);
    ASSERT_TRUE(Apply(state, request).ok());
    EXPECT_EQ(state.CheckUnused(6).ok(), reach == 4);
    EXPECT_FALSE(state.CheckUnused(3).ok()) << "the second block is attended";
  }
}

// The blocks of the sequence were kept while the sequence waited.
TEST(BatchStateTest, ASequenceGoesOnWithinABlock) {
  BatchState state(Limits());
  v1::StepRequest request = Good();
  request.mutable_new_sequences(0)->set_num_computed_tokens(19);
  request.mutable_sequences(0)->set_num_tokens(1);
  ASSERT_TRUE(Apply(state, request).ok());
  EXPECT_EQ(state.slot(1).error, absl::OkStatus());
  EXPECT_EQ(state.scheduled()[0].start, 19);
  EXPECT_TRUE(state.scheduled()[0].samples);
}

TEST(BatchStateTest, AForkBeginsWhereItsSourceIs) {
  BatchState state(Limits());
  v1::StepRequest request = Good();
  AddFork(&request);
  ASSERT_TRUE(Apply(state, request).ok());
  EXPECT_EQ(state.scheduled().size(), 1u);
  ASSERT_EQ(state.forked().size(), 1u);
  EXPECT_EQ(state.forked()[0].slot, 2);
  EXPECT_EQ(state.forked()[0].source, 1);
  const Slot& fork = state.slot(2);
  EXPECT_EQ(fork.tokens, state.slot(1).tokens);
  EXPECT_EQ(fork.num_computed, 20);
  EXPECT_EQ(fork.block_ids, (std::vector<int32_t>{3, 5}));
  EXPECT_EQ(fork.sampling, state.slot(1).sampling);
  EXPECT_EQ(fork.seed, 9u);
  EXPECT_EQ(state.added_slots(), (std::vector<int32_t>{1, 2}));
  state.AppendToken(1, 42);
  state.AppendToken(2, 43);

  v1::StepRequest decode;
  decode.add_sequences()->set_slot(2);
  decode.mutable_sequences(0)->set_num_tokens(1);
  ASSERT_TRUE(Apply(state, decode).ok());
  EXPECT_TRUE(state.forked().empty());
  EXPECT_TRUE(state.scheduled()[0].samples);
}

// The slot of a fork may have held a sequence with a different adapter before.
TEST(BatchStateTest, AForkHasTheAdapterOfItsSource) {
  BatchState state(Limits());
  state.SetAdapters({true, true});
  for (const int32_t adapter : {2, 0, 1}) {
    v1::StepRequest request = Good();
    request.mutable_new_sequences(0)->set_adapter_slot(adapter);
    AddFork(&request);
    ASSERT_TRUE(Apply(state, request).ok());
    EXPECT_EQ(state.slot(2).adapter_slot, adapter);
    v1::StepRequest freed;
    freed.add_freed_slots(1);
    freed.add_freed_slots(2);
    ASSERT_TRUE(Apply(state, freed).ok());
  }
}

// The fork has the source's error, and keeps a slot until the coordinator frees the slot.
TEST(BatchStateTest, AForkOfARefusedSequenceIsRefused) {
  BatchState state(Limits());
  v1::StepRequest request = Good();
  AddFork(&request);
  request.mutable_samplings(0)->set_temperature(-1);
  ASSERT_TRUE(Apply(state, request).ok());
  EXPECT_EQ(state.refused_slots(), (std::vector<int32_t>{1, 2}));
  EXPECT_TRUE(state.forked().empty());
  EXPECT_TRUE(state.slot(2).in_use);
}

struct Damage {
  const char* name;
  std::function<void(v1::StepRequest&)> apply;
};

v1::NewSequence* fresh(v1::StepRequest& r) { return r.mutable_new_sequences(0); }
v1::StepSampling* sampling(v1::StepRequest& r) { return r.mutable_samplings(0); }

TEST(BatchStateTest, RefusesEveryBadNumberOfAStep) {
  const Damage damages[] = {
      {"new slot too large", [](auto& r) { fresh(r)->set_slot(4); }},
      {"new slot negative", [](auto& r) { fresh(r)->set_slot(-1); }},
      {"slot given twice", [](auto& r) { *r.add_new_sequences() = r.new_sequences(0); }},
      {"padding block", [](auto& r) { fresh(r)->set_block_ids(0, 0); }},
      {"block too large", [](auto& r) { fresh(r)->set_block_ids(0, 10); }},
      {"too many blocks",
       [](auto& r) {
         for (int i = 0; i < 3; ++i) fresh(r)->add_block_ids(5);
       }},
      {"too few blocks", [](auto& r) { fresh(r)->mutable_block_ids()->Truncate(1); }},
      {"new block outside", [](auto& r) { r.mutable_sequences(0)->add_new_block_ids(77); }},
      {"scheduled slot outside", [](auto& r) { r.mutable_sequences(0)->set_slot(1 << 30); }},
      {"scheduled slot unused", [](auto& r) { r.mutable_sequences(0)->set_slot(2); }},
      {"scheduled twice", [](auto& r) { *r.add_sequences() = r.sequences(0); }},
      {"zero tokens", [](auto& r) { r.mutable_sequences(0)->set_num_tokens(0); }},
      {"more tokens than known", [](auto& r) { r.mutable_sequences(0)->set_num_tokens(21); }},
      {"new but none scheduled", [](auto& r) { r.clear_sequences(); }},
      {"freed slot outside", [](auto& r) { r.add_freed_slots(9); }},
      {"freed slot unused", [](auto& r) { r.add_freed_slots(0); }},
      {"fork into a slot outside", [](auto& r) { AddFork(&r)->set_slot(4); }},
      {"fork into a slot in use", [](auto& r) { AddFork(&r)->set_slot(1); }},
      {"fork of a slot outside", [](auto& r) { AddFork(&r)->set_source_slot(4); }},
      {"fork of a slot unused", [](auto& r) { AddFork(&r)->set_source_slot(0); }},
      {"fork of a slot that does not sample",
       [](auto& r) { AddFork(&r), r.mutable_sequences(0)->set_num_tokens(19); }},
      {"fork with too few blocks", [](auto& r) { AddFork(&r)->mutable_block_ids()->Truncate(1); }},
      {"fork with a block outside", [](auto& r) { AddFork(&r)->set_block_ids(1, 10); }},
      {"copy from outside", [](auto& r) { r.add_copies()->set_src(10), r.mutable_copies(0)->set_dst(1); }},
      {"copy to padding", [](auto& r) { r.add_copies()->set_src(1); }},
  };
  for (const Damage& damage : damages) {
    BatchState state(Limits());
    v1::StepRequest request = Good();
    damage.apply(request);
    EXPECT_EQ(Apply(state, request).code(), absl::StatusCode::kInvalidArgument) << damage.name;
  }
}

// The sequence gets an error, another sequence in the same step is computed, and the slot can be used again.
TEST(BatchStateTest, RefusesASequenceWithABadNumber) {
  const Damage damages[] = {
      {"no tokens", [](auto& r) { fresh(r)->clear_token_ids(); }},
      {"too many tokens",
       [](auto& r) {
         for (int i = 0; i < 40; ++i) fresh(r)->add_token_ids(1);
       }},
      {"token outside", [](auto& r) { fresh(r)->set_token_ids(3, 100); }},
      {"token negative", [](auto& r) { fresh(r)->set_token_ids(3, -1); }},
      {"no prompt", [](auto& r) { fresh(r)->set_num_prompt_tokens(0); }},
      {"prompt longer than tokens", [](auto& r) { fresh(r)->set_num_prompt_tokens(21); }},
      {"all computed", [](auto& r) { fresh(r)->set_num_computed_tokens(32); }},
      {"computed negative", [](auto& r) { fresh(r)->set_num_computed_tokens(-16); }},
      {"temperature", [](auto& r) { sampling(r)->set_temperature(std::nanf("")); }},
      {"top_p", [](auto& r) { sampling(r)->set_temperature(1), sampling(r)->set_top_p(0); }},
      {"min_p", [](auto& r) { sampling(r)->set_min_p(2); }},
      {"repetition_penalty", [](auto& r) { sampling(r)->set_repetition_penalty(0); }},
      {"logit_bias", [](auto& r) { (*sampling(r)->mutable_logit_bias())[100] = 1; }},
      {"allowed", [](auto& r) { sampling(r)->add_allowed_token_ids(1000); }},
      {"bad word", [](auto& r) { sampling(r)->add_bad_words()->add_token_ids(100); }},
      {"bad text", [](auto& r) { sampling(r)->add_bad_texts()->add_token_ids(1); }},
      {"logprobs", [](auto& r) { sampling(r)->set_num_logprobs(65); }},
      {"sampling outside", [](auto& r) { fresh(r)->set_sampling_index(2); }},
      {"sampling negative", [](auto& r) { fresh(r)->set_sampling_index(-1); }},
  };
  for (const Damage& damage : damages) {
    SCOPED_TRACE(damage.name);
    BatchState state(Limits());
    v1::StepRequest request = Good();
    damage.apply(request);
    v1::StepRequest other = Good();
    other.mutable_new_sequences(0)->set_slot(2);
    other.mutable_new_sequences(0)->set_sampling_index(1);
    *request.add_new_sequences() = other.new_sequences(0);
    *request.add_samplings() = Greedy();
    request.add_sequences()->set_slot(2);
    request.mutable_sequences(1)->set_num_tokens(12);
    ASSERT_TRUE(Apply(state, request).ok());
    EXPECT_EQ(state.refused_slots(), std::vector<int32_t>{1});
    EXPECT_EQ(state.slot(1).error.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(state.added_slots(), std::vector<int32_t>{2});
    ASSERT_EQ(state.scheduled().size(), 1u);
    EXPECT_EQ(state.scheduled()[0].slot, 2);
    for (const BlockTableEdit& edit : state.block_edits()) EXPECT_EQ(edit.slot, 2);

    v1::StepRequest next = Good();  // the next step was in flight already
    next.clear_new_sequences();
    ASSERT_TRUE(Apply(state, next).ok());
    EXPECT_EQ(state.refused_slots(), std::vector<int32_t>{1});
    EXPECT_TRUE(state.scheduled().empty());

    v1::StepRequest again = Good();
    again.add_freed_slots(1);
    ASSERT_TRUE(Apply(state, again).ok());
    EXPECT_TRUE(state.refused_slots().empty());
    EXPECT_EQ(state.scheduled().size(), 1u);
  }
}

TEST(BatchStateTest, ForgetsStopTokensThatTheVocabularyLacks) {
  BatchState state(Limits());
  v1::StepRequest request = Good();
  for (int32_t id : {-2, 5, 1000}) request.mutable_samplings(0)->add_suppress_token_ids(id);
  ASSERT_TRUE(Apply(state, request).ok());
  EXPECT_EQ(state.slot(1).sampling->suppress_token_ids, std::vector<int32_t>{5});
}

TEST(BatchStateTest, RefusesMoreThanTheTokenBudget) {
  BatchState state(Limits());
  v1::StepRequest request = Good();
  *request.add_new_sequences() = request.new_sequences(0);
  *request.add_sequences() = request.sequences(0);
  request.mutable_new_sequences(1)->set_slot(2);
  request.mutable_sequences(1)->set_slot(2);
  EXPECT_EQ(Apply(state, request).code(), absl::StatusCode::kInvalidArgument);
}

TEST(BatchStateTest, FreedSlotStartsClean) {
  BatchState state(Limits());
  v1::StepRequest request = Good();
  request.mutable_samplings(0)->set_presence_penalty(1);
  ASSERT_TRUE(Apply(state, request).ok());
  v1::StepRequest again = Good();
  again.add_freed_slots(1);
  again.mutable_samplings(0)->set_presence_penalty(2);
  again.mutable_new_sequences(0)->set_token_ids(0, 99);
  ASSERT_TRUE(Apply(state, again).ok());
  EXPECT_EQ(state.slot(1).tokens[0], 99);
  EXPECT_EQ(state.slot(1).block_ids.size(), 2u);
}

TEST(BatchStateTest, SequencesOfOneRecordShareItUntilTheLastIsFreed) {
  BatchState state(Limits());
  v1::StepRequest request = Good();
  request.mutable_sequences(0)->set_num_tokens(10);
  *request.add_new_sequences() = request.new_sequences(0);
  *request.add_sequences() = request.sequences(0);
  request.mutable_new_sequences(1)->set_slot(2);
  request.mutable_new_sequences(1)->set_seed(9);
  request.mutable_sequences(1)->set_slot(2);
  ASSERT_TRUE(Apply(state, request).ok());
  EXPECT_EQ(state.slot(1).sampling, state.slot(2).sampling);
  EXPECT_EQ(state.slot(1).seed, 0u);
  EXPECT_EQ(state.slot(2).seed, 9u);
  const std::weak_ptr<const SlotSampling> shared = state.slot(1).sampling;
  v1::StepRequest free_one, free_other;
  free_one.add_freed_slots(1);
  free_other.add_freed_slots(2);
  ASSERT_TRUE(Apply(state, free_one).ok());
  EXPECT_FALSE(shared.expired());
  ASSERT_TRUE(Apply(state, free_other).ok());
  EXPECT_TRUE(shared.expired());
}

TEST(BatchStateTest, BlockEditsAreThoseOfTheStep) {
  BatchState state(Limits());
  const v1::StepRequest request = Good();
  ASSERT_TRUE(Apply(state, request).ok());
  ASSERT_EQ(state.block_edits().size(), 2u);
  EXPECT_EQ(state.block_edits()[1].slot, 1);
  EXPECT_EQ(state.block_edits()[1].index, 1);
  EXPECT_EQ(state.block_edits()[1].block_id, request.new_sequences(0).block_ids(1));
  ASSERT_TRUE(Apply(state, v1::StepRequest()).ok());
  EXPECT_TRUE(state.block_edits().empty());
  EXPECT_TRUE(state.added_slots().empty());
}

TEST(BatchStateTest, ALateTokenDoesNotReachTheSlotsNextSequence) {
  BatchState state(Limits());
  ASSERT_TRUE(Apply(state, Good()).ok());
  const int64_t generation = state.slot(1).generation;
  const int32_t index = state.AppendToken(1, kUnknownToken);
  state.SetToken(1, generation, index, 5);
  EXPECT_EQ(state.slot(1).tokens[index], 5);

  v1::StepRequest again = Good();
  again.add_freed_slots(1);
  ASSERT_TRUE(Apply(state, again).ok());
  const std::vector<int32_t> tokens = state.slot(1).tokens;
  state.SetToken(1, generation, 0, 77);
  EXPECT_EQ(state.slot(1).tokens, tokens);
}

}  // namespace
}  // namespace somnus
