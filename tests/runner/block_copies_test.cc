#include "worker/runner/block_copies.h"

#include <gtest/gtest.h>

#include <random>
#include <utility>

namespace somnus {
namespace {

using Copies = std::vector<std::pair<int32_t, int32_t>>;

std::vector<Copies> Plan(const Copies& copies) {
  v1::StepRequest request;
  for (const auto& [src, dst] : copies) {
    v1::BlockCopy* const copy = request.add_copies();
    copy->set_src(src);
    copy->set_dst(dst);
  }
  std::vector<Copies> calls;
  for (const BlockCopyCall& call : PlanBlockCopies(request.copies())) {
    EXPECT_EQ(call.src.size(), call.dst.size());
    calls.emplace_back();
    for (size_t i = 0; i < call.src.size(); ++i) calls.back().emplace_back(call.src[i], call.dst[i]);
  }
  return calls;
}

TEST(BlockCopies, OneCallAsLongAsTheOrderDoesNotMatter) {
  EXPECT_TRUE(Plan({}).empty());
  EXPECT_EQ(Plan({{1, 2}, {1, 3}, {4, 5}}), (std::vector<Copies>{{{1, 2}, {1, 3}, {4, 5}}}));
  EXPECT_EQ(Plan({{1, 2}, {2, 3}}), (std::vector<Copies>{{{1, 2}}, {{2, 3}}})) << "reads what was written";
  EXPECT_EQ(Plan({{1, 2}, {3, 1}}), (std::vector<Copies>{{{1, 2}}, {{3, 1}}})) << "writes what was read";
  EXPECT_EQ(Plan({{1, 2}, {3, 2}}), (std::vector<Copies>{{{1, 2}}, {{3, 2}}})) << "writes what was written";
  EXPECT_EQ(Plan({{7, 7}, {1, 2}, {2, 2}, {1, 3}}), (std::vector<Copies>{{{1, 2}, {1, 3}}})) << "to itself";
}

TEST(BlockCopies, ACallHasABound) {
  Copies copies;
  for (int32_t i = 0; i < static_cast<int32_t>(kMaxBlockCopiesOfCall) + 1; ++i) copies.emplace_back(0, i + 1);
  const std::vector<Copies> calls = Plan(copies);
  ASSERT_EQ(calls.size(), 2u);
  EXPECT_EQ(calls[0].size(), kMaxBlockCopiesOfCall);
  EXPECT_EQ(calls[1].size(), 1u);
}

// Each call's copies are done from the last to the first.
TEST(BlockCopies, TheCallsHaveTheEffectOfTheCopiesInTheirOrder) {
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    std::vector<int> expected(12), blocks(12);
    for (int i = 0; i < 12; ++i) expected[i] = blocks[i] = i;
    Copies copies;
    for (int i = 0; i < 20; ++i) {
      copies.emplace_back(random() % 12, random() % 12);
      expected[copies.back().second] = expected[copies.back().first];
    }
    for (const Copies& call : Plan(copies)) {
      for (auto copy = call.rbegin(); copy != call.rend(); ++copy) blocks[copy->second] = blocks[copy->first];
    }
    EXPECT_EQ(blocks, expected) << round;
  }
}

}  // namespace
}  // namespace somnus
