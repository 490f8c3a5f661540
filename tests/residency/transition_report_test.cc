#include "coordinator/residency/transition_report.h"

#include <gtest/gtest.h>

namespace somnus {
namespace {

TEST(TransitionReportTest, SumsBytesOverRanks) {
  TransitionReport report;
  report.ranks = {
      {.rank = 0, .tags = {{"weights", {.freed_bytes = 3, .mapped_bytes = 1}}}},
      {.rank = 1, .tags = {{"weights", {.freed_bytes = 4}}, {"kv_cache", {.resident_bytes = 9}}}}};
  EXPECT_EQ(report.freed_bytes(), (TagBytes{{"weights", 7}}));
  EXPECT_EQ(report.mapped_bytes(), (TagBytes{{"weights", 1}}));
}

TEST(TransitionReportTest, ATagIsAsShallowAsOnAnyReplica) {
  TransitionReport first, second, all;
  EXPECT_FALSE(all.changed());
  first.tags = {{"weights", {TagState::kDiscarded, false}}};
  second.tags = {{"weights", {TagState::kBackedUp, true}}};
  first.ranks = {{.rank = 0}, {.rank = 1}};
  second.ranks = {{.rank = 0}};
  all.Add(first, 0);
  EXPECT_FALSE(all.changed());
  all.Add(second, 1);
  EXPECT_TRUE(all.changed());
  EXPECT_EQ(all.tags, (std::map<std::string, TagOutcome>{{"weights", {TagState::kBackedUp, true}}}));
  ASSERT_EQ(all.ranks.size(), 3u);
  EXPECT_EQ(all.ranks[1].replica, 0);
  EXPECT_EQ(all.ranks[2].replica, 1);
}

}  // namespace
}  // namespace somnus
