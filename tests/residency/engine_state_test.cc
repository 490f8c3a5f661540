#include "coordinator/residency/engine_state.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <utility>

namespace somnus {
namespace {

using S = EngineState;

TEST(EngineStateTest, OnlyTheChangesOfTheTableAreAllowed) {
  const std::set<std::pair<S, S>> allowed = {
      {S::kLoading, S::kAwake},          {S::kLoading, S::kAsleep},
      {S::kLoading, S::kFailed},         {S::kAwake, S::kFallingAsleep},
      {S::kAwake, S::kDraining},         {S::kAwake, S::kFailed},
      {S::kFallingAsleep, S::kAsleep},   {S::kFallingAsleep, S::kAwake},
      {S::kFallingAsleep, S::kDraining}, {S::kFallingAsleep, S::kFailed},
      {S::kAsleep, S::kWaking},          {S::kAsleep, S::kDraining},
      {S::kAsleep, S::kFailed},          {S::kWaking, S::kAwake},
      {S::kWaking, S::kAsleep},          {S::kWaking, S::kDraining},
      {S::kWaking, S::kFailed},          {S::kDraining, S::kFailed},
      {S::kAwake, S::kRecovering},       {S::kFallingAsleep, S::kRecovering},
      {S::kAsleep, S::kRecovering},      {S::kWaking, S::kRecovering},
      {S::kAwake, S::kPausing},          {S::kAwake, S::kPaused},
      {S::kPausing, S::kPaused},         {S::kPausing, S::kFallingAsleep},
      {S::kPausing, S::kAwake},          {S::kPausing, S::kRecovering},
      {S::kPausing, S::kDraining},       {S::kPausing, S::kFailed},
      {S::kPaused, S::kAwake},           {S::kPaused, S::kFallingAsleep},
      {S::kPaused, S::kRecovering},      {S::kPaused, S::kDraining},
      {S::kPaused, S::kFailed},          {S::kFallingAsleep, S::kPaused},
      {S::kRecovering, S::kPausing},     {S::kRecovering, S::kPaused},
      {S::kRecovering, S::kAwake},       {S::kRecovering, S::kAsleep},
      {S::kRecovering, S::kDraining},    {S::kRecovering, S::kFailed},
      {S::kWaking, S::kPaused},          {S::kFailed, S::kRecovering}};
  for (const S from : kEngineStates) {
    for (const S to : kEngineStates) {
      EXPECT_EQ(IsAllowedChange(from, to), allowed.count({from, to}) > 0)
          << EngineStateName(from) << " -> " << EngineStateName(to);
    }
  }
}

TEST(EngineStateTest, WhatEachStateMeans) {
  struct Row {
    S state;
    const char* name;
    bool admits, ready, live, sleeping;
  };
  const Row rows[] = {{S::kLoading, "loading", false, false, true, false},
                      {S::kAwake, "awake", true, true, true, false},
                      {S::kFallingAsleep, "falling_asleep", true, false, true, false},
                      {S::kAsleep, "asleep", true, false, true, true},
                      {S::kWaking, "waking", true, false, true, true},
                      {S::kRecovering, "recovering", true, false, true, false},
                      {S::kDraining, "draining", false, false, true, false},
                      {S::kFailed, "failed", false, false, false, false},
                      {S::kPausing, "pausing", true, false, true, false},
                      {S::kPaused, "paused", true, false, true, true}};
  ASSERT_EQ(std::size(rows), std::size(kEngineStates));
  for (const Row& row : rows) {
    SCOPED_TRACE(row.name);
    EXPECT_EQ(std::string(EngineStateName(row.state)), row.name);
    EXPECT_EQ(AdmitsRequests(row.state), row.admits);
    EXPECT_EQ(IsReady(row.state), row.ready);
    EXPECT_EQ(IsLive(row.state), row.live);
    const bool recovers = row.state == S::kRecovering;
    EXPECT_EQ(IsSleeping(row.state, 0, false), row.sleeping);
    EXPECT_EQ(IsSleeping(row.state, 2, false), row.sleeping || recovers);
    EXPECT_EQ(IsSleeping(row.state, 0, true), row.sleeping || recovers);
    EXPECT_EQ(IsPaused(row.state, 0, false), row.sleeping);
    EXPECT_EQ(IsPaused(row.state, 2, false), row.sleeping || recovers);
    EXPECT_TRUE(IsPaused(row.state, 0, true));
    EXPECT_EQ(std::string(WhyNotReady(row.state)).empty(), row.ready);
  }
}

}  // namespace
}  // namespace somnus
