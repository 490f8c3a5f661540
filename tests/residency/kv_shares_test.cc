#include "coordinator/several_models/kv_shares.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

namespace somnus {
namespace {

using State = KvShareView::State;
using Resizes = std::vector<KvResize>;

constexpr MonotonicTime kNow = absl::Seconds(1000);

// A cache of 1600 blocks of 10 bytes; the minimum is 100.
KvShareView Awake(int32_t mapped, int32_t needed, absl::Duration unused_for = absl::ZeroDuration()) {
  KvShareView view;
  view.state = State::kAwake;
  view.block_bytes = 10;
  view.min_blocks = 100;
  view.max_blocks = 1600;
  view.mapped_blocks = mapped;
  view.needed_blocks = needed;
  view.last_used = kNow - unused_for;
  return view;
}

KvShareView Waiter(int32_t mapped, int32_t needed) {
  KvShareView view = Awake(mapped, needed);
  view.state = State::kWaiter;
  view.other_bytes = 5000;
  return view;
}

Resizes Plan(int64_t free_bytes, const std::vector<KvShareView>& models) {
  return PlanKvShares(KvShareOptions(), kNow, free_bytes, models).resizes;
}

TEST(KvSharesTest, NobodyShrinksForNobody) {
  EXPECT_EQ(Plan(0, {Awake(1600, 0), Awake(100, 20)}), Resizes());
  EXPECT_EQ(Plan(50000, {Awake(400, 0), Awake(400, 200)}), Resizes());
}

TEST(KvSharesTest, ABusyCacheGrowsIntoFreeMemory) {
  EXPECT_EQ(Plan(16000, {Awake(400, 400)}), (Resizes{{0, 500, 0}}));
  EXPECT_EQ(Plan(1e9, {Awake(1500, 1500)}), (Resizes{{0, 1600, 0}}));
  EXPECT_EQ(Plan(1500, {Awake(400, 800)}), (Resizes{{0, 550, 0}}));
  EXPECT_EQ(Plan(500, {Awake(400, 800)}), Resizes()) << "less than a sixteenth of the cache";
}

TEST(KvSharesTest, AnIdleCacheShrinksForABusyOneThenThatGrows) {
  const std::vector<KvShareView> models = {Awake(1600, 0, absl::Seconds(9)), Awake(400, 400)};
  EXPECT_EQ(Plan(0, models), (Resizes{{0, 1500, 1}}));
  EXPECT_EQ(Plan(1000, {Awake(1500, 0), Awake(400, 400)}), (Resizes{{1, 500, 1}}));
}

TEST(KvSharesTest, TheLeastRecentlyUsedGivesFirst) {
  EXPECT_EQ(Plan(0, {Awake(500, 0, absl::Seconds(1)), Awake(150, 0, absl::Seconds(5)), Awake(400, 400)}),
            (Resizes{{1, 100, 2}, {0, 400, 2}}));
}

TEST(KvSharesTest, TwoThatWantMoreThanThereIsGetTheSame) {
  EXPECT_EQ(Plan(0, {Awake(1500, 1500), Awake(500, 1500)}), (Resizes{{0, 1000, 1}}));
  EXPECT_EQ(Plan(0, {Awake(1000, 1500), Awake(1000, 1500)}), Resizes());
  EXPECT_EQ(Plan(0, {Awake(1040, 1500), Awake(960, 1500)}), Resizes()) << "less than a sixteenth";
}

TEST(KvSharesTest, HeadroomGivesWayBeforeWhatIsNeeded) {
  EXPECT_EQ(Plan(0, {Awake(1000, 800), Awake(500, 480)}), (Resizes{{0, 900, 1}}));
  EXPECT_EQ(Plan(0, {Awake(900, 800), Awake(550, 500)}), Resizes()) << "less than a sixteenth";
}

TEST(KvSharesTest, GrowthLeavesRoomForWholeChunks) {
  KvShareView busy = Awake(400, 400);
  busy.slack_bytes = 300;
  EXPECT_EQ(Plan(1300, {busy}), (Resizes{{0, 500, 0}}));
  EXPECT_EQ(Plan(1290, {busy}), Resizes());
  EXPECT_EQ(Plan(0, {Awake(1600, 0), busy}), (Resizes{{0, 1470, 1}}));
}

// Memory comes in chunks, and every row may take two chunks beside its blocks; the whole cache takes no more
// than the cache's size.
TEST(KvSharesTest, ACacheGrowsWhereAllOfItFitsWhateverTheSlack) {
  KvShareView small = Awake(100, 800);
  small.slack_bytes = 30000;
  EXPECT_EQ(Plan(20000, {small}), Resizes()) << "which may be missing";
  small.rest_bytes = 15000;
  EXPECT_EQ(Plan(20000, {small}), (Resizes{{0, 1000, 0}}));
  EXPECT_EQ(Plan(14999, {small}), Resizes());
}

TEST(KvSharesTest, AModelThatWaitsGetsItsMinimumOfOthersAndItsSizeBefore) {
  const auto plan = [](int64_t free, const std::vector<KvShareView>& models) {
    return PlanKvShares(KvShareOptions(), kNow, free, models);
  };
  // The cache takes 5000 bytes and 100 blocks.
  KvSharesPlan shrinks = plan(0, {Awake(1600, 0), Waiter(1600, 0)});
  EXPECT_EQ(shrinks.resizes, (Resizes{{0, 1000, 1}, {1, 100, 1}}));
  EXPECT_TRUE(shrinks.served[1]);
  KvSharesPlan fits = plan(21000, {Awake(1600, 0), Waiter(1600, 0)});
  EXPECT_EQ(fits.resizes, Resizes());
  EXPECT_TRUE(fits.served[1]);
  // The other models need their memory: somebody has to sleep, and the less the waiter takes the better.
  KvSharesPlan too_much = plan(0, {Awake(300, 300), Waiter(1600, 0)});
  EXPECT_EQ(too_much.resizes, (Resizes{{1, 100, 1}}));
  EXPECT_FALSE(too_much.served[1]);
  // The model's requests need more than the minimum.
  EXPECT_EQ(plan(0, {Awake(1600, 0), Waiter(1600, 400)}).resizes, (Resizes{{0, 600, 1}, {1, 500, 1}}));
}

TEST(KvSharesTest, WhatIsPromisedToAWaiterIsNotGrownInto) {
  EXPECT_EQ(Plan(6000, {Awake(400, 400), Waiter(100, 0), Awake(1600, 0)}), (Resizes{{2, 1500, 1}}));
}

// The weights of the waiter sleep, and the waiter's cache is mapped: a larger cache takes memory before the
// wake-up.
TEST(KvSharesTest, AMappedCacheOfAWaiterGrowsIntoFreeMemoryOnly) {
  KvShareView waiter = Waiter(100, 400);
  waiter.is_mapped = true;
  waiter.other_bytes = 4000;
  EXPECT_EQ(Plan(3990, {Awake(1600, 0), waiter}), (Resizes{{0, 1099, 1}}));
  EXPECT_EQ(Plan(4000, {Awake(1600, 0), waiter}), (Resizes{{0, 1100, 1}, {1, 500, 1}}));
  waiter.is_mapped = false;
  EXPECT_EQ(Plan(3990, {Awake(1600, 0), waiter}), (Resizes{{0, 1099, 1}, {1, 500, 1}}));
}

TEST(KvSharesTest, ACacheThatWasResizedStaysForAWhile) {
  std::vector<KvShareView> models = {Awake(1600, 0), Awake(400, 400)};
  models[0].resized_at = kNow - absl::Milliseconds(300);
  const KvSharesPlan plan = PlanKvShares(KvShareOptions(), kNow, 0, models);
  EXPECT_EQ(plan.resizes, Resizes());
  EXPECT_EQ(plan.look_again_at, kNow + absl::Milliseconds(700));
}

TEST(KvSharesTest, AWaiterThatCouldNotBeResizedIsNotAskedAtOnce) {
  for (const int32_t mapped : {1600, 300}) {  // of the other one, which can or cannot give what is missing
    std::vector<KvShareView> models = {Awake(mapped, 0), Waiter(1600, 0)};
    if (mapped == 300) models[0].needed_blocks = 300;
    models[1].resized_at = kNow - absl::Milliseconds(900);
    const KvSharesPlan plan = PlanKvShares(KvShareOptions(), kNow, 0, models);
    for (const KvResize& resize : plan.resizes) EXPECT_EQ(resize.model, 0);
    EXPECT_EQ(plan.look_again_at, kNow + absl::Milliseconds(100));
  }
}

// For any subset of resizes that is carried out, and any needs in between: no cache leaves its bounds, memory
// is never promised twice, no cache shrinks while no model lacks memory, and the sizes come to rest where
// needs stay.
TEST(KvSharesTest, RandomModelsStayWithinTheirBoundsAndComeToRest) {
  for (int seed = 0; seed < 300; ++seed) {
    std::mt19937 random(seed);
    const auto pick = [&](int n) { return static_cast<int>(random() % n); };
    std::vector<KvShareView> models(1 + pick(5));
    int64_t free = pick(20000);
    for (KvShareView& model : models) {
      model.state = pick(4) == 0 ? State::kWaiter : State::kAwake;
      model.block_bytes = 1 + pick(20);
      model.other_bytes = pick(3000);
      model.slack_bytes = pick(3) == 0 ? pick(200) : 0;
      model.min_blocks = 1 + pick(50);
      model.max_blocks = model.min_blocks + pick(2000);
      model.mapped_blocks = model.min_blocks + pick(model.max_blocks - model.min_blocks + 1);
      model.last_used = kNow - absl::Seconds(pick(100));
    }
    for (int round = 0; round < 60; ++round) {
      if (round % 20 == 0) {
        for (KvShareView& model : models) model.needed_blocks = pick(model.max_blocks + 1);
      }
      const KvSharesPlan plan = PlanKvShares(KvShareOptions(), kNow, free, models);
      EXPECT_TRUE(round % 20 < 15 || plan.resizes.empty()) << "seed " << seed << " round " << round;
      for (const KvResize& resize : plan.resizes) {
        KvShareView& model = models[resize.model];
        ASSERT_GE(resize.blocks, model.min_blocks) << seed;
        ASSERT_LE(resize.blocks, model.max_blocks) << seed;
        ASSERT_NE(resize.blocks, model.mapped_blocks) << seed;
        const int64_t more = int64_t{resize.blocks - model.mapped_blocks} * model.block_bytes;
        if (model.state == State::kAwake) {
          ASSERT_TRUE(more < 0 || more <= free) << "seed " << seed;
          ASSERT_TRUE(more > 0 || resize.for_model != resize.model) << "seed " << seed;
          if (more > 0) free -= more;
        }
      }
      for (const KvResize& resize : plan.resizes) {
        KvShareView& model = models[resize.model];
        if (model.state == State::kAwake && resize.blocks < model.mapped_blocks)
          free += int64_t{model.mapped_blocks - resize.blocks} * model.block_bytes;
        model.mapped_blocks = resize.blocks;
      }
      ASSERT_GE(free, 0);
      for (KvShareView& model : models) {
        const int64_t takes = model.other_bytes + int64_t{model.mapped_blocks} * model.block_bytes;
        if (model.state != State::kWaiter || takes > free) continue;
        free -= takes;
        model.state = State::kAwake;
      }
    }
  }
}

}  // namespace
}  // namespace somnus
