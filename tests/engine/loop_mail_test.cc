#include "coordinator/engine/loop_mail.h"

#include <gtest/gtest.h>

#include <thread>

#include "tests/fakes/jumping_clock.h"

namespace somnus {
namespace {

TEST(LoopMailTest, TheFirstFailureAndTheLatestCallCount) {
  LoopMail mail;
  EXPECT_TRUE(mail.Take().empty());
  mail.PostFailure(absl::UnavailableError("first"));
  mail.PostFailure(absl::UnavailableError("second"));
  mail.PostCallResult(2, TransitionReport());
  mail.PostCallResult(1, absl::UnavailableError("an older call"));
  mail.PostRecovered(absl::OkStatus());
  const LoopMail::Events events = mail.Take();
  EXPECT_EQ(events.failure->message(), "first");
  EXPECT_TRUE(events.recovered->ok());
  EXPECT_EQ(events.call_result->call, 2);
  EXPECT_TRUE(events.call_result->result.ok());
  EXPECT_TRUE(mail.Take().empty());
}

TEST(LoopMailTest, WhatCameBeforeTheWaitEndsIt) {
  LoopMail mail;
  mail.Wake();
  mail.WaitFor(absl::InfiniteDuration());
  mail.PostRecovered(absl::OkStatus());
  mail.WaitFor(absl::InfiniteDuration());
  std::thread other([&] { mail.Wake(); });
  mail.WaitFor(absl::InfiniteDuration());
  other.join();
  mail.WaitFor(-absl::InfiniteDuration());
}

TEST(LoopMailTest, AWallClockThatIsSetBackDoesNotProlongTheWait) {
  LoopMail mail;
  std::thread clock([] { g_wall_clock_seconds = -3600; });
  mail.WaitFor(absl::Milliseconds(50));
  clock.join();
  mail.WaitFor(absl::Milliseconds(1));
  g_wall_clock_seconds = 0;
}

}  // namespace
}  // namespace somnus
