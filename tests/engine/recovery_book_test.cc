#include "coordinator/engine/recovery_book.h"

#include <gtest/gtest.h>

namespace somnus {
namespace {

EngineOptions Bounds() {
  EngineOptions options;
  options.max_recoveries = 2;
  options.recovery_window = absl::Seconds(10);
  options.max_recoveries_per_request = 2;
  return options;
}

TEST(RecoveryBookTest, TooManyLossesWithinTheWindowEndTheGroup) {
  const EngineOptions options = Bounds();
  RecoveryBook book(options);
  EXPECT_TRUE(book.MayRecover(absl::Seconds(0)));
  EXPECT_TRUE(book.MayRecover(absl::Seconds(9)));
  EXPECT_FALSE(book.MayRecover(absl::Seconds(9)));
  EXPECT_TRUE(book.MayRecover(absl::Seconds(10))) << "the first loss has left the window";
  EXPECT_FALSE(book.MayRecover(absl::Seconds(11)));
  book.ForgetLosses();
  EXPECT_TRUE(book.MayRecover(absl::Seconds(11)));
}

TEST(RecoveryBookTest, ARestartIsNoRecovery) {
  const EngineOptions options = Bounds();
  RecoveryBook book(options);
  EXPECT_FALSE(book.End(absl::Seconds(1)).was_under_way);
  book.BeginRestart(absl::Seconds(1));
  EXPECT_TRUE(book.under_way());
  const RecoveryBook::Ended restart = book.End(absl::Seconds(3));
  EXPECT_TRUE(restart.was_under_way && restart.was_restart);
  EXPECT_EQ(restart.duration, absl::Seconds(2));
  book.NoteRecovered(restart);
  EXPECT_EQ(book.num_recoveries(), 0);
  book.Begin(absl::Seconds(4));
  const RecoveryBook::Ended recovery = book.End(absl::Seconds(5));
  EXPECT_FALSE(recovery.was_restart);
  book.NoteRecovered(recovery);
  EXPECT_EQ(book.num_recoveries(), 1);
}

TEST(RecoveryBookTest, ASuspectRunsAloneAndThenEndsUnlessItGetsOn) {
  const EngineOptions options = Bounds();
  const RecoveryBook book(options);
  Sequence sequence;
  sequence.tokens = {1, 2, 3};
  EXPECT_FALSE(book.Suspect(&sequence));
  EXPECT_FALSE(sequence.runs_alone);
  EXPECT_FALSE(book.Suspect(&sequence));
  EXPECT_TRUE(sequence.runs_alone);
  sequence.tokens.resize(5);
  RecoveryBook::Exonerate(&sequence);
  EXPECT_TRUE(sequence.runs_alone) << "two steps may have been in flight";
  Sequence other = sequence;
  EXPECT_TRUE(book.Suspect(&other));
  sequence.tokens.resize(6);
  RecoveryBook::Exonerate(&sequence);
  EXPECT_FALSE(sequence.runs_alone);
  EXPECT_FALSE(book.Suspect(&sequence));
}

}  // namespace
}  // namespace somnus
