#include "coordinator/replicas/router.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

namespace somnus {
namespace {

constexpr int32_t kBlockSize = 4;

std::vector<int32_t> Prompt(int32_t length, int32_t first = 0) {
  std::vector<int32_t> prompt(static_cast<size_t>(length));
  std::iota(prompt.begin(), prompt.end(), first);
  return prompt;
}

PrefixChain Chain(const std::vector<int32_t>& prompt, const std::string& salt = "") {
  return MakePrefixChain(prompt, salt, kBlockSize);
}

int ChooseAndNote(Router* router, const PrefixChain& chain,
                  const std::vector<Router::Candidate>& candidates) {
  const int replica = router->Choose(chain, candidates);
  router->Note(chain, replica);
  return replica;
}

TEST(PrefixChainTest, HasTheWholeBlocksBeforeTheLastToken) {
  EXPECT_TRUE(Chain(Prompt(4)).empty()) << "the last token is always computed";
  EXPECT_EQ(Chain(Prompt(5)).size(), 1u);
  EXPECT_EQ(Chain(Prompt(8)).size(), 1u);
  EXPECT_EQ(Chain(Prompt(9)).size(), 2u);
  EXPECT_EQ(Chain(Prompt(1 << 20)).size(), kMaxChain);
}

TEST(PrefixChainTest, EveryHashStandsForAllThatComesBeforeIt) {
  std::vector<int32_t> other = Prompt(13);
  other[0] = 99;
  const PrefixChain one = Chain(Prompt(13)), two = Chain(other), salted = Chain(Prompt(13), "salt");
  for (size_t i = 0; i < one.size(); ++i) {
    EXPECT_NE(one[i], two[i]) << i;
    EXPECT_NE(one[i], salted[i]) << i;
  }
  EXPECT_EQ(Chain(Prompt(9)), PrefixChain(one.begin(), one.begin() + 2));
}

TEST(RouterTest, WithoutAPrefixTheLeastLoadedIsChosenAndEqualsTakeTurns) {
  Router router(kBlockSize, 100);
  EXPECT_EQ(router.Choose({}, {{0, 50}, {1, 10}, {2, 40}}), 1);
  std::vector<int> order;
  for (int i = 0; i < 6; ++i) order.push_back(router.Choose({}, {{0, 0}, {1, 0}, {2, 0}}));
  EXPECT_EQ(order, (std::vector<int>{0, 2, 1, 0, 2, 1}));
}

TEST(RouterTest, AffinityWinsUnlessItsReplicaIsClearlyMoreLoaded) {
  Router router(kBlockSize, 100);
  const PrefixChain chain = Chain(Prompt(41));
  router.Note(chain, 1);
  EXPECT_EQ(router.CountKnown(chain, 1), 10);
  // 10 blocks of 4 tokens are worth a load of 160, and half of the least load is borne beside.
  EXPECT_EQ(router.Choose(chain, {{0, 0}, {1, 160}}), 1);
  EXPECT_EQ(router.Choose(chain, {{0, 0}, {1, 161}}), 0);
  EXPECT_EQ(router.Choose(chain, {{0, 100}, {1, 310}}), 1);
  EXPECT_EQ(router.Choose(chain, {{0, 100}, {1, 311}}), 0);
}

TEST(RouterTest, TheLongestPrefixCountsAndOfEqualOnesTheLeastLoad) {
  Router router(kBlockSize, 100);
  const PrefixChain chain = Chain(Prompt(41));
  router.Note(Chain(Prompt(21)), 0);
  router.Note(chain, 2);
  EXPECT_EQ(router.Choose(chain, {{0, 0}, {1, 0}, {2, 20}}), 2);
  router.Note(chain, 1);
  EXPECT_EQ(router.Choose(chain, {{0, 0}, {1, 30}, {2, 20}}), 2);
  EXPECT_EQ(router.Choose(chain, {{0, 0}, {1, 10}, {2, 20}}), 1);
}

TEST(RouterTest, OnlyCandidatesAreChosen) {
  Router router(kBlockSize, 100);
  const PrefixChain chain = Chain(Prompt(41));
  router.Note(chain, 1);
  EXPECT_EQ(router.Choose(chain, {{0, 1000}, {2, 2000}}), 0) << "replica 1 has no room";
}

TEST(RouterTest, AReplicaWhoseCacheIsEmptyIsForgotten) {
  Router router(kBlockSize, 100);
  const PrefixChain chain = Chain(Prompt(41));
  router.Note(chain, 0);
  router.Note(chain, 1);
  router.Forget(0);
  EXPECT_EQ(router.CountKnown(chain, 0), 0);
  EXPECT_EQ(router.CountKnown(chain, 1), 10);
  router.Forget(1);
  EXPECT_EQ(router.num_blocks(), 0u);
}

TEST(RouterTest, WhatNoPromptHadForLongestIsForgottenFirstAndDeepBlocksBeforeShallowOnes) {
  Router router(kBlockSize, 10);
  const PrefixChain old = Chain(Prompt(21, 0)), recent = Chain(Prompt(21, 1000)),
                    next = Chain(Prompt(13, 2000));
  router.Note(old, 0);
  router.Note(recent, 0);
  router.Note(old, 0);
  router.Note(next, 0);  // three blocks too many
  EXPECT_EQ(router.num_blocks(), 10u);
  EXPECT_EQ(router.CountKnown(next, 0), 3);
  EXPECT_EQ(router.CountKnown(old, 0), 5);
  EXPECT_EQ(router.CountKnown(recent, 0), 2);
}

TEST(RouterTest, APromptLongerThanTheMemoryIsRememberedByItsBeginning) {
  Router router(kBlockSize, 3);
  const PrefixChain chain = Chain(Prompt(100));
  router.Note(chain, 0);
  EXPECT_EQ(router.num_blocks(), 3u);
  EXPECT_EQ(router.CountKnown(chain, 0), 3);
  Router none(kBlockSize, 0);
  none.Note(chain, 0);
  EXPECT_EQ(none.num_blocks(), 0u);
}

// For any sequence of calls: the memory keeps the bound, a candidate is chosen, and no candidate has a load
// beyond the rule's bound.
TEST(RouterTest, RandomPromptsAndLoads) {
  for (uint32_t seed = 1; seed <= 50; ++seed) {
    std::mt19937 random(seed);
    Router router(kBlockSize, 200);
    for (int i = 0; i < 300; ++i) {
      const PrefixChain chain =
          Chain(Prompt(1 + static_cast<int32_t>(random() % 200), static_cast<int32_t>(random() % 5) * 1000));
      std::vector<Router::Candidate> candidates;
      for (int replica = 0; replica < 4; ++replica) {
        if (candidates.empty() || random() % 4 != 0)
          candidates.push_back({replica, static_cast<int64_t>(random() % 3000)});
      }
      int64_t least = candidates[0].load, longest = 0;
      for (const Router::Candidate& candidate : candidates) {
        least = std::min(least, candidate.load);
        longest = std::max(longest, router.CountKnown(chain, candidate.replica));
      }
      const int chosen = ChooseAndNote(&router, chain, candidates);
      const auto it = std::find_if(candidates.begin(), candidates.end(),
                                   [&](const auto& candidate) { return candidate.replica == chosen; });
      ASSERT_NE(it, candidates.end());
      EXPECT_LE(static_cast<double>(it->load),
                1.5 * static_cast<double>(least) + static_cast<double>(4 * longest * kBlockSize));
      ASSERT_LE(router.num_blocks(), 200u);
      if (random() % 20 == 0) router.Forget(static_cast<int>(random() % 4));
    }
  }
}

// Users whose prompts begin alike: each user stays where the prefix is, and all replicas get a part.
TEST(RouterTest, EqualTenantsAreSpreadAndStay) {
  Router router(kBlockSize, 10000);
  std::vector<int64_t> load(4, 0);
  std::vector<int> count(4, 0);
  std::mt19937 random(1);
  int num_hits = 0;
  for (int i = 0; i < 800; ++i) {
    const PrefixChain chain = Chain(Prompt(200, static_cast<int32_t>(random() % 16) * 1000));
    std::vector<Router::Candidate> candidates;
    for (int replica = 0; replica < 4; ++replica) candidates.push_back({replica, load[replica]});
    const int before = router.Choose(chain, candidates);
    num_hits += router.CountKnown(chain, before) > 0;
    router.Note(chain, before);
    ++count[before];
    load[before] += 200;
    for (int64_t& one : load) one = std::max<int64_t>(0, one - 55);
  }
  EXPECT_GE(num_hits, 700);
  for (const int one : count) EXPECT_GE(one, 100);
}

}  // namespace
}  // namespace somnus
