#include "coordinator/replicas/set_state.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace somnus {
namespace {

using State = EngineState;
constexpr State kAwake = State::kAwake, kAsleep = State::kAsleep, kFalling = State::kFallingAsleep,
                kWaking = State::kWaking, kRecovering = State::kRecovering, kFailed = State::kFailed,
                kPaused = State::kPaused, kPausing = State::kPausing;

State Derive(std::vector<State> replicas, SetCall call = SetCall::kNone) {
  const State state = SetState(replicas, call, /*draining=*/false);
  std::reverse(replicas.begin(), replicas.end());
  EXPECT_EQ(SetState(replicas, call, false), state) << "the order of replicas does not matter";
  return state;
}

TEST(SetStateTest, OneReplicaThatServesIsEnough) {
  EXPECT_EQ(Derive({kAwake, kAwake}), kAwake);
  EXPECT_EQ(Derive({kAwake, kRecovering, kFailed}), kAwake);
  EXPECT_EQ(Derive({kRecovering, kFailed}), kRecovering);
}

TEST(SetStateTest, ItFailsWhenAllHave) {
  EXPECT_EQ(Derive({kFailed, kFailed}), kFailed);
  EXPECT_EQ(SetState({kFailed, kFailed}, SetCall::kNone, /*draining=*/true), kFailed);
  EXPECT_EQ(SetState({kFailed, kAwake}, SetCall::kNone, /*draining=*/true), State::kDraining);
}

// A client that waits for the memory must not be told that the memory is free before all memory is free.
TEST(SetStateTest, ItSleepsOnlyWhenAllDo) {
  EXPECT_EQ(Derive({kAsleep, kAsleep}), kAsleep);
  EXPECT_EQ(Derive({kAsleep, kAsleep, kFailed}), kAsleep);
  EXPECT_EQ(Derive({kAsleep, kFalling}), kFalling);
  EXPECT_EQ(Derive({kAsleep, kAwake}, SetCall::kSleep), kFalling);
  EXPECT_EQ(Derive({kAsleep, kRecovering}, SetCall::kSleep), kRecovering);
}

TEST(SetStateTest, ItWakesUntilAllAreAwake) {
  EXPECT_EQ(Derive({kAsleep, kWaking}), kWaking);
  EXPECT_EQ(Derive({kAwake, kWaking}), kWaking);
  EXPECT_EQ(Derive({kAwake, kAsleep}, SetCall::kWakeUp), kWaking);
  EXPECT_EQ(Derive({kAsleep, kAsleep}, SetCall::kWakeUp), kAsleep);
}

TEST(SetStateTest, ItIsPausedWhenNoneServes) {
  EXPECT_EQ(Derive({kPaused, kPaused}), kPaused);
  EXPECT_EQ(Derive({kPaused, kFailed}), kPaused);
  EXPECT_EQ(Derive({kPaused, kRecovering}), kPaused);
  EXPECT_EQ(Derive({kAwake, kAwake}, SetCall::kPause), kPausing);
  EXPECT_EQ(Derive({kAwake, kPaused}, SetCall::kPause), kPausing);
  EXPECT_EQ(Derive({kAwake, kPaused}), kAwake) << "it is being resumed";
  EXPECT_EQ(Derive({kPaused, kFalling}, SetCall::kSleep), kFalling);
}

// After a call that failed on one replica and could not be undone on the second.
TEST(SetStateTest, WhatIsAwakeServesWhenNoCallIsUnderWay) { EXPECT_EQ(Derive({kAwake, kAsleep}), kAwake); }

}  // namespace
}  // namespace somnus
