#include "coordinator/residency/residency.h"

#include <gtest/gtest.h>

namespace somnus {
namespace {

using Tags = std::vector<std::string>;

TEST(ResidencyTest, SleepsAndWakesTagByTag) {
  Residency residency;
  EXPECT_TRUE(residency.awake());
  EXPECT_EQ(residency.level(), 0);
  EXPECT_TRUE(residency.ToWake({}).empty());
  residency.Slept({.level = 1});
  EXPECT_TRUE(residency.fully_asleep());
  EXPECT_EQ(residency.level(), 1);
  EXPECT_EQ(residency.ToWake({}), (Tags{"kv_cache", "weights", "workspace"}));
  EXPECT_EQ(residency.ToWake({"weights", "weights"}), Tags{"weights"});
  residency.Woke({"weights"});
  EXPECT_FALSE(residency.awake());
  EXPECT_FALSE(residency.fully_asleep());
  EXPECT_EQ(residency.level(), 1);
  EXPECT_TRUE(residency.ToWake({"weights"}).empty()) << "it is resident already";
  residency.Woke({"kv_cache", "workspace"});
  EXPECT_TRUE(residency.awake());
  EXPECT_EQ(residency.level(), 0);
}

TEST(ResidencyTest, ASleepChangesWhatIsResidentOrTooShallow) {
  Residency residency;
  EXPECT_FALSE(residency.ToSleep({.level = 1}).empty());
  residency.Slept({.level = 1});
  EXPECT_TRUE(residency.ToSleep({.level = 1}).empty());
  EXPECT_FALSE(residency.ToSleep({.level = 2}).empty());
  residency.Slept({.level = 2});
  EXPECT_TRUE(residency.ToSleep({.level = 1}).empty());
  EXPECT_TRUE(residency.ToSleep({.level = 2}).empty());
  residency.Woke({"weights"});
  EXPECT_FALSE(residency.ToSleep({.level = 2}).empty()) << "the weights are resident again";
  EXPECT_FALSE(residency.ToSleep({.level = 1}).empty());
}

TEST(ResidencyTest, ASleepOfSomeTags) {
  Residency residency;
  residency.Slept({.level = 2, .tags = {"kv_cache"}});
  EXPECT_FALSE(residency.awake());
  EXPECT_EQ(residency.level(), 1) << "the weights are resident";
  EXPECT_EQ(residency.state("kv_cache"), TagState::kDiscarded);
  EXPECT_EQ(residency.state("weights"), TagState::kResident);
  EXPECT_EQ(residency.ToSleep({.level = 1}), (Tags{"weights", "workspace"}));
  EXPECT_EQ(residency.ToSleep({.level = 1, .tags = {"kv_cache"}}), Tags());
  residency.Slept({.level = 1, .tags = {"weights"}});
  EXPECT_EQ(residency.state("weights"), TagState::kBackedUp);
  EXPECT_EQ(residency.ToSleep({.level = 2, .tags = {"weights", "kv_cache"}}), (Tags{"weights", "workspace"}));
  residency.Slept({.level = 2, .tags = {"weights"}});
  EXPECT_EQ(residency.level(), 2);
  EXPECT_FALSE(residency.fully_asleep());
  residency.Woke({"weights", "kv_cache"});
  EXPECT_TRUE(residency.awake());
}

// Controllers of vLLM know two tags, and expect that both are all.
TEST(ResidencyTest, TheWorkspaceGoesAlongWithTheLastOfTheOthers) {
  for (const auto& [first, last] :
       {std::pair<std::string, std::string>("weights", "kv_cache"), {"kv_cache", "weights"}}) {
    Residency residency;
    EXPECT_EQ(residency.ToSleep({.tags = {first}}), Tags{first});
    residency.Slept({.tags = {first}});
    EXPECT_EQ(residency.ToSleep({.tags = {last}}), (Tags{last, "workspace"}));
    residency.Slept({.tags = {last, "workspace"}});
    EXPECT_EQ(residency.ToWake({first}), Tags{first});
    residency.Woke({first});
    EXPECT_EQ(residency.ToWake({last}), (Tags{last, "workspace"}));
    EXPECT_EQ(residency.ToWake({"workspace"}), Tags{"workspace"}) << "it can be named, too";
  }
}

TEST(ResidencyTest, StaleWeightsAreMappedAndCountForTheWorkspace) {
  Residency residency;
  residency.Slept({.level = 2});
  residency.Woke({"weights"}, /*weights_stale=*/true);
  EXPECT_EQ(residency.ToWake({"kv_cache"}), (Tags{"kv_cache", "workspace"}));
}

TEST(ResidencyTest, DiscardedWeightsStayDiscardedUntilTheyAreRead) {
  Residency residency;
  residency.Slept({.level = 2});
  residency.Woke({"kv_cache"});
  residency.Slept({.level = 1});
  EXPECT_EQ(residency.level(), 2) << "there is nothing to keep in host memory";
  residency.Woke({"weights"});
  EXPECT_EQ(residency.level(), 1) << "they have been read";
  residency.Slept({.level = 1});
  EXPECT_EQ(residency.state("weights"), TagState::kBackedUp);
}

TEST(ResidencyTest, StaleWeightsAreMappedAndNothingIsAwake) {
  Residency residency;
  residency.Slept({.level = 2});
  residency.Woke({"weights"}, /*weights_stale=*/true);
  EXPECT_EQ(residency.state("weights"), TagState::kStale);
  EXPECT_EQ(residency.asleep(), (std::set<std::string>{"kv_cache", "workspace"}));
  residency.Woke({"kv_cache", "workspace"}, /*weights_stale=*/true);
  EXPECT_FALSE(residency.awake());
  EXPECT_EQ(residency.level(), 0) << "no memory is released";
  EXPECT_EQ(residency.ToWake({}), Tags{"weights"});
  EXPECT_TRUE(residency.ToWake({"kv_cache"}).empty());
  residency.SetWeightsStale(false);
  EXPECT_TRUE(residency.awake());
  residency.SetWeightsStale(true);
  residency.Woke({"weights"});
  EXPECT_TRUE(residency.awake()) << "they were read";
}

TEST(ResidencyTest, StaleWeightsHaveNothingToBackUp) {
  Residency residency;
  residency.SetWeightsStale(true);
  EXPECT_EQ(residency.ToSleep({.level = 1, .tags = {"weights"}}), Tags{"weights"});
  residency.Slept({.level = 1, .tags = {"weights"}});
  EXPECT_EQ(residency.state("weights"), TagState::kDiscarded);
  EXPECT_EQ(residency.level(), 2);
  residency.Woke({"weights"});
  EXPECT_TRUE(residency.awake());
}

TEST(ResidencyTest, ABackupBringsWeightsThatAreNotStale) {
  Residency residency;
  residency.Slept({.level = 1});
  residency.SetWeightsStale(true);  // says nothing of sleeping weights
  residency.Woke({}, /*weights_stale=*/true);
  residency.Woke({"kv_cache", "weights", "workspace"}, /*weights_stale=*/true);
  EXPECT_TRUE(residency.awake());
}

}  // namespace
}  // namespace somnus
