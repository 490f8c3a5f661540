#include "coordinator/group/held_state.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace somnus {
namespace {

v1::WorkerSnapshot Rank(const std::string& state, int level, const std::set<std::string>& resident,
                        int num_blocks = 9) {
  v1::WorkerSnapshot snapshot;
  snapshot.set_state(state);
  snapshot.set_sleep_level(level);
  for (const std::string& tag : resident) snapshot.add_resident_tags(tag);
  snapshot.set_num_blocks(num_blocks);
  return snapshot;
}

const std::set<std::string> kAll = {"kv_cache", "weights", "workspace"};

TEST(HeldStateTest, NewWorkersAreAwake) {
  const std::vector<v1::WorkerSnapshot> ranks = {Rank("created", 0, {}, 0), Rank("loaded", 0, kAll, 0)};
  EXPECT_TRUE(HeldBy(ranks).awake());
  EXPECT_EQ(NumBlocksOf(ranks), 0);
}

TEST(HeldStateTest, AGroupIsAsleepWhereAllThatHaveACacheAre) {
  const std::vector<v1::WorkerSnapshot> ranks = {Rank("created", 0, {}, 0), Rank("asleep", 1, {})};
  const Residency held = HeldBy(ranks);
  EXPECT_TRUE(held.fully_asleep());
  EXPECT_EQ(held.level(), 1);
  EXPECT_EQ(NumBlocksOf(ranks), 9);
}

TEST(HeldStateTest, OneAwakeRankWakesTheGroup) {
  EXPECT_TRUE(HeldBy({Rank("asleep", 2, {}), Rank("awake", 0, kAll)}).awake());
}

TEST(HeldStateTest, TheDeepestLevelAndTheTagsOfAllCount) {
  const Residency held =
      HeldBy({Rank("asleep", 1, {"kv_cache", "workspace"}), Rank("asleep", 2, {"workspace"})});
  EXPECT_EQ(held.level(), 2);
  EXPECT_EQ(held.asleep(), (std::set<std::string>{"kv_cache", "weights"}));
}

TEST(HeldStateTest, WhatAnUpdateBroughtIsLostWithARank) {
  Held held;
  held.weights.update_id = "u";
  const std::vector<v1::WorkerSnapshot> survivors = {Rank("awake", 0, kAll), Rank("awake", 0, kAll)};
  EXPECT_TRUE(HeldAgain(held, survivors).residency.awake());
  EXPECT_TRUE(AreOfUse(held));
  const std::vector<v1::WorkerSnapshot> one_new = {Rank("awake", 0, kAll), Rank("created", 0, {}, 0)};
  EXPECT_EQ(HeldAgain(held, one_new).residency.state("weights"), TagState::kStale);
  EXPECT_FALSE(AreOfUse(HeldAgain(held, one_new)));
  held.residency.Slept({.level = 1});
  const Held asleep = HeldAgain(held, one_new);
  EXPECT_EQ(asleep.residency.state("weights"), TagState::kDiscarded)
      << "there is no backup of it on all ranks";
  EXPECT_FALSE(AreOfUse(asleep));
  held.weights.update_id.clear();
  EXPECT_TRUE(HeldAgain(held, one_new).residency == held.residency) << "a checkpoint can be read again";
}

TEST(HeldStateTest, OneStaleRankMakesAllStale) {
  std::vector<v1::WorkerSnapshot> ranks = {Rank("awake", 0, kAll), Rank("awake", 0, kAll)};
  ranks[1].set_weights_stale(true);
  EXPECT_TRUE(HeldAgain(Held(), ranks).residency.weights_stale());
}

TEST(HeldStateTest, WeightsOfAnotherVersionDoNotGoOn) {
  v1::WorkerSnapshot rank = Rank("awake", 0, kAll);
  rank.set_weights_version(1);
  Held held;
  held.weights.version = 2;
  EXPECT_FALSE(HasOtherWeights(rank, held)) << "nothing is known of the group's";
  held.weights.path = "new";
  EXPECT_TRUE(HasOtherWeights(rank, held));
  held.residency.SetWeightsStale(true);
  EXPECT_FALSE(HasOtherWeights(rank, held)) << "they are replaced anyway";
}

}  // namespace
}  // namespace somnus
