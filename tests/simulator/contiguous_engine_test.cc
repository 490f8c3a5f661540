// The paper's baselines, in cases that can be computed by hand.
#include "tools/simulator/contiguous_engine.h"

#include <gtest/gtest.h>

#include <random>

#include "tests/simulator/engine_steps.h"
#include "tools/simulator/buddy_allocator.h"

namespace somnus {
namespace {

EngineOptions Options(int64_t kv_slots, int32_t max_model_len) {
  EngineOptions options;
  options.kv_slots = kv_slots;
  options.max_model_len = max_model_len;
  return options;
}

TEST(BuddyAllocatorTest, PiecesArePowersOfTwoAndHalvesAreJoined) {
  BuddyAllocator memory(64);
  const auto first = memory.Allocate(5), second = memory.Allocate(8), large = memory.Allocate(32);
  ASSERT_TRUE(first.has_value() && second.has_value() && large.has_value());
  EXPECT_EQ(first->size(), 8);
  EXPECT_EQ(first->begin, 0);
  EXPECT_EQ(second->begin, 8);
  EXPECT_EQ(large->begin, 32);
  EXPECT_EQ(memory.free_slots(), 16);
  EXPECT_FALSE(memory.Allocate(17).has_value());
  memory.Free(*first);
  EXPECT_EQ(memory.free_slots(), 24);
  EXPECT_FALSE(memory.Allocate(32).has_value());  // 24 slots are free, in pieces of 8 and 16
  memory.Free(*second);
  EXPECT_TRUE(memory.Allocate(32).has_value());
}

TEST(BuddyAllocatorTest, MemoryThatIsNoPowerOfTwoIsUsedToItsEnd) {
  BuddyAllocator memory(15728);  // 7 pieces of 2,048 and a rest
  for (int i = 0; i < 7; ++i) ASSERT_TRUE(memory.Allocate(2048).has_value());
  EXPECT_FALSE(memory.Allocate(2048).has_value());
  EXPECT_EQ(memory.free_slots(), 15728 - 7 * 2048);
  for (const int rest : {1024, 256, 64, 32, 16}) ASSERT_TRUE(memory.Allocate(rest).has_value());
  EXPECT_EQ(memory.free_slots(), 0);
}

TEST(BuddyAllocatorTest, PiecesNeverOverlapAndAllComesBack) {
  std::mt19937_64 random(1);
  const int64_t size = 1000;
  BuddyAllocator memory(size);
  std::vector<bool> taken(size, false);
  std::vector<BuddyAllocator::Piece> pieces;
  for (int i = 0; i < 20000; ++i) {
    if (!pieces.empty() && random() % 2 == 0) {
      std::swap(pieces[random() % pieces.size()], pieces.back());
      for (int64_t slot = 0; slot < pieces.back().size(); ++slot) taken[pieces.back().begin + slot] = false;
      memory.Free(pieces.back());
      pieces.pop_back();
      continue;
    }
    const auto piece = memory.Allocate(1 + static_cast<int64_t>(random() % 100));
    if (!piece.has_value()) continue;
    for (int64_t slot = 0; slot < piece->size(); ++slot) {
      ASSERT_FALSE(taken.at(piece->begin + slot));
      taken[piece->begin + slot] = true;
    }
    pieces.push_back(*piece);
  }
  for (const BuddyAllocator::Piece& piece : pieces) memory.Free(piece);
  EXPECT_EQ(memory.free_slots(), size);
  EXPECT_TRUE(memory.Allocate(512).has_value());
}

TEST(OrcaEngineTest, ReservationsAreThoseOfThePaper) {
  const LoadRequest request = Request(0, 10, 25);
  EXPECT_EQ(ReservedSlots(Reservation::kOracle, request, 2048), 35);
  EXPECT_EQ(ReservedSlots(Reservation::kPow2, request, 2048), 10 + 32);
  EXPECT_EQ(ReservedSlots(Reservation::kMax, request, 2048), 2048);
  EXPECT_EQ(ReservedSlots(Reservation::kPow2, Request(0, 1000, 1030), 2048), 2048);
}

TEST(OrcaEngineTest, EverySlotIsAccountedFor) {
  const auto engine = MakeOrcaEngine(Options(128, 64), Reservation::kPow2);
  ASSERT_TRUE(engine->Add(Request(0, 10, 5)).ok());
  StepResult result;
  EXPECT_EQ(Step(engine.get(), &result).prefill_tokens, 10);
  KvUse use = engine->kv_use();
  EXPECT_EQ(use.live, 10);
  EXPECT_EQ(use.future, 5);
  EXPECT_EQ(use.surplus, 3);    // 8 are reserved for 5 outputs
  EXPECT_EQ(use.rounding, 14);  // 32 slots for 18
  EXPECT_EQ(use.reserved(), 32);
  EXPECT_EQ(use.total, 128);
  const StepLoad decode = Step(engine.get(), &result);
  EXPECT_EQ(decode.decode_sequences, 1);
  EXPECT_EQ(decode.kv_tokens, 11);
  use = engine->kv_use();
  EXPECT_EQ(use.live, 11);
  EXPECT_EQ(use.future, 4);
  EXPECT_EQ(result.first_tokens, std::vector<int64_t>{0});
  while (result.ended.empty()) Step(engine.get(), &result);
  EXPECT_EQ(engine->kv_use().reserved(), 0);
}

TEST(OrcaEngineTest, OneThatHasNoRoomWaitsUntilAnotherEnds) {
  const auto engine = MakeOrcaEngine(Options(128, 64), Reservation::kMax);
  for (const auto& request : {Request(0, 4, 2), Request(1, 4, 4), Request(2, 4, 1)})
    ASSERT_TRUE(engine->Add(request).ok());
  StepResult result;
  EXPECT_EQ(Step(engine.get(), &result).prefill_tokens, 8);  // two of 64 slots each
  EXPECT_EQ(engine->num_running(), 2);
  Step(engine.get(), &result);
  EXPECT_EQ(result.ended, std::vector<int64_t>{0});
  const StepLoad third = Step(engine.get(), &result);
  EXPECT_EQ(third.prefill_tokens, 4);  // the third joins while the second goes on
  EXPECT_EQ(third.decode_sequences, 1);
  EXPECT_EQ(result.ended, (std::vector<int64_t>{0, 2}));
}

TEST(OrcaEngineTest, SequencesOfARequestAreAdmittedTogetherOrNot) {
  EngineOptions options = Options(128, 64);
  options.n = 2;
  const auto engine = MakeOrcaEngine(options, Reservation::kMax);
  ASSERT_TRUE(engine->Add(Request(0, 4, 3)).ok());
  ASSERT_TRUE(engine->Add(Request(1, 4, 3)).ok());
  StepResult result;
  EXPECT_EQ(Step(engine.get(), &result).prefill_tokens, 4);  // once for both
  EXPECT_EQ(engine->num_running(), 1);
  EXPECT_EQ(Step(engine.get(), &result).decode_sequences, 2);
  options.n = 3;
  EXPECT_FALSE(MakeOrcaEngine(options, Reservation::kMax)->Add(Request(0, 4, 3)).ok());
}

TEST(RequestBatchEngineTest, ABatchEndsAsAWhole) {
  const auto engine = MakeRequestBatchEngine(Options(128, 64));
  for (const auto& request : {Request(0, 4, 1), Request(1, 10, 3), Request(2, 4, 1)})
    ASSERT_TRUE(engine->Add(request).ok());
  StepResult result;
  EXPECT_EQ(Step(engine.get(), &result).prefill_tokens, 20);  // both are as long as the longer request
  EXPECT_EQ(result.first_tokens, (std::vector<int64_t>{0, 1}));
  EXPECT_TRUE(result.ended.empty());  // the first has all tokens
  EXPECT_EQ(Step(engine.get(), &result).decode_sequences, 2);
  EXPECT_EQ(Step(engine.get(), &result).decode_sequences, 2);
  EXPECT_EQ(result.ended, (std::vector<int64_t>{0, 1}));
  EXPECT_EQ(Step(engine.get(), &result).prefill_tokens, 4);  // only now the third begins
  EXPECT_EQ(result.ended, (std::vector<int64_t>{0, 1, 2}));
}

TEST(ContiguousEnginesTest, WhatIsLongerThanTheModelIsRefused) {
  EXPECT_FALSE(MakeOrcaEngine(Options(128, 64), Reservation::kOracle)->Add(Request(0, 60, 5)).ok());
  EXPECT_FALSE(MakeRequestBatchEngine(Options(128, 64))->Add(Request(0, 60, 5)).ok());
  EXPECT_FALSE(MakeRequestBatchEngine(Options(63, 64))->Add(Request(0, 6, 5)).ok());
}

}  // namespace
}  // namespace somnus
