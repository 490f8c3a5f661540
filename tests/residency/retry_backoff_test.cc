// When something that has failed is tried again, by values alone.

#include "coordinator/residency/retry_backoff.h"

#include <gtest/gtest.h>

namespace somnus {
namespace {

TEST(RetryBackoffTest, ThePauseDoublesUpToItsBound) {
  RetryBackoff retry(absl::Seconds(30), absl::Minutes(1));
  EXPECT_EQ(retry.due(), absl::InfiniteDuration());
  MonotonicTime now = absl::Hours(1);
  for (const int seconds : {30, 60, 60}) {
    EXPECT_EQ(retry.NoteFailed(now), absl::Seconds(seconds));
    EXPECT_EQ(retry.due(), now + absl::Seconds(seconds));
    retry.NoteTry();
    EXPECT_EQ(retry.due(), absl::InfiniteDuration());
    now += absl::Minutes(2);
  }
  retry.NoteServing(now);
  EXPECT_EQ(retry.NoteFailed(now + absl::Seconds(59)), absl::Minutes(1)) << "it has hardly served";
  retry.NoteServing(now);
  EXPECT_EQ(retry.NoteFailed(now + absl::Minutes(1)), absl::Seconds(30));
  EXPECT_EQ(RetryBackoff().NoteFailed(now), absl::InfiniteDuration());
}

TEST(RetryBackoffTest, AfterARestartThePausesBeginAnew) {
  RetryBackoff retry(absl::Seconds(1), absl::Minutes(1));
  const MonotonicTime now = absl::Hours(1);
  for (const int seconds : {1, 2, 4}) EXPECT_EQ(retry.NoteFailed(now), absl::Seconds(seconds));
  retry.Restart();
  EXPECT_EQ(retry.due(), now + absl::Seconds(4)) << "the try that is due stays";
  for (const int seconds : {1, 2}) EXPECT_EQ(retry.NoteFailed(now), absl::Seconds(seconds));
  // A bound below the first pause is none.
  RetryBackoff slow(absl::Minutes(1), absl::Seconds(1));
  for (int i = 0; i < 2; ++i) EXPECT_EQ(slow.NoteFailed(now), absl::Minutes(1));
}

}  // namespace
}  // namespace somnus
