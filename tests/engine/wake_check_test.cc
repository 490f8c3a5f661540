#include "coordinator/engine/wake_check.h"

#include <gtest/gtest.h>

namespace somnus {
namespace {

const SelfCheckResult kBefore = {.weights_version = 1, .fingerprint = 7, .machines = "a"};
const SelfCheckResult kAfter = {.weights_version = 1, .fingerprint = 8, .machines = "a"};

TEST(WakeCheckTest, OtherLogitsAfterAWakeUpAreRefusedWhereTheSameBitsArePromised) {
  for (const bool promised : {false, true}) {
    WakeCheck check(/*enabled=*/true, promised);
    EXPECT_EQ(check.Judge(kBefore), SelfCheckOutcome::kTaken);
    check.NoteWoken({kKvCacheTag});
    EXPECT_FALSE(check.due()) << "a KV cache holds nothing that is checked";
    check.NoteWoken({kKvCacheTag, kWeightsTag});
    EXPECT_TRUE(check.due());
    EXPECT_EQ(check.Judge(kAfter), promised ? SelfCheckOutcome::kRefused : SelfCheckOutcome::kDifferent);
    EXPECT_EQ(check.Judge(kBefore), SelfCheckOutcome::kSame);
    check.NoteServed();
    EXPECT_FALSE(check.due());
    EXPECT_EQ(check.Judge(kAfter), SelfCheckOutcome::kDifferent) << "nothing has slept";
  }
}

TEST(WakeCheckTest, NewWeightsHaveNothingToCompareWith) {
  WakeCheck check(/*enabled=*/true, /*batch_invariant=*/true);
  EXPECT_EQ(check.Judge(kBefore), SelfCheckOutcome::kTaken);
  check.NoteNewWeights(/*awake=*/false);
  EXPECT_TRUE(check.due()) << "the tags that sleep are checked when they wake";
  EXPECT_FALSE(check.taken());
  EXPECT_EQ(check.Judge(kAfter), SelfCheckOutcome::kTaken);
  EXPECT_EQ(check.fingerprint(), 8u);
}

TEST(WakeCheckTest, NothingIsDueWhereNoCheckIsAskedFor) {
  WakeCheck check(/*enabled=*/false, /*batch_invariant=*/true);
  check.NoteWoken({kWeightsTag});
  check.NoteNewWeights(/*awake=*/false);
  EXPECT_FALSE(check.due());
}

}  // namespace
}  // namespace somnus
