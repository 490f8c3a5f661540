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

}  // namespace
}  // namespace somnus
