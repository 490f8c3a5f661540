// Models whose workers an earlier coordinator has left: awake, asleep at either level, or asleep in part.

#include "tests/residency/shared_devices_fixture.h"

namespace somnus {
namespace {

Residency Asleep(int level, const std::vector<std::string>& tags = {}) {
  Residency held;
  held.Slept({level, tags});
  return held;
}

class SharedAdoptionTest : public SharedDevicesTest {
 protected:
  SharedAdoptionTest() { tag_bytes_ = {{"weights", 60}, {"kv_cache", 30}, {"workspace", 10}}; }

  int64_t Resident(int model) {
    int64_t sum = 0;
    for (const auto& [tag, bytes] : engine(model)->Stats().resident_bytes) sum += bytes;
    return sum;
  }
  int64_t AllResident() {
    int64_t sum = 0;
    for (size_t i = 0; i < models_.size(); ++i) sum += Resident(static_cast<int>(i));
    return sum;
  }
};

TEST_F(SharedAdoptionTest, EveryModelIsInTheStateOfItsWorkersAndServes) {
  held_ = {Residency(), Asleep(1), Asleep(2), Asleep(1, {"kv_cache"}), Asleep(2, {"weights"})};
  const std::vector<int64_t> resident = {100, 0, 0, 70, 40};
  Start(5, 3);
  for (int i = 0; i < 5; ++i) {
    SCOPED_TRACE(i);
    EXPECT_EQ(engine(i)->Stats().residency, held_[i]);
    EXPECT_EQ(engine(i)->state(), i == 0 ? EngineState::kAwake : EngineState::kAsleep);
    EXPECT_EQ(Resident(i), resident[i]);
  }
  int next_id = 0;
  for (const int i : {4, 1, 3, 2, 0, 4}) {
    SCOPED_TRACE(i);
    ExpectExact(Submit(i, absl::StrCat("request ", next_id++)));
    EXPECT_EQ(Resident(i), kBytes);
  }
}

TEST_F(SharedAdoptionTest, WhatTheyHoldCountsForTheBudget) {
  held_ = {Asleep(1, {"kv_cache"}), Asleep(1, {"weights"}), Asleep(2)};
  Start(3, 1);
  EXPECT_EQ(AllResident(), 70 + 40) << "more than the budget, until somebody needs it";
  ExpectExact(Submit(2, "a"));
  EXPECT_EQ(Resident(2), kBytes);
  EXPECT_EQ(AllResident(), kBytes) << "halves gave theirs up";
}

TEST_F(SharedAdoptionTest, AModelThatSleepsMayBeTooLarge) {
  for (const Residency& held : {Residency(), Asleep(1), Asleep(2), Asleep(1, {"kv_cache"})}) {
    held_ = {held};
    budget_ = kBytes - 1;
    AddModels(1, 0, ResidencyPolicy::kFifo, SleepArrivals::kQueue);
    const absl::Status status = devices_->Start();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_NE(status.message().find("model 0 takes 100 bytes while it is awake"), std::string::npos)
        << status;
    End();
  }
}

TEST_F(SharedAdoptionTest, MakeRoomTakesWhatHalvesHold) {
  held_ = {Residency(), Asleep(1, {"kv_cache"}), Asleep(2, {"weights"}), Asleep(2)};
  AddModels(4, 4, ResidencyPolicy::kFifo, SleepArrivals::kQueue);
  ASSERT_TRUE(devices_->MakeRoom().ok());
  EXPECT_EQ(AllResident(), 0);
  EXPECT_EQ(engine(0)->Stats().sleep_level, 1);
  EXPECT_EQ(engine(2)->Stats().sleep_level, 2) << "there is nothing to back up";
  EXPECT_TRUE(models_[3].executor->lifecycle_calls().empty());
  ASSERT_TRUE(devices_->Start().ok());
  for (int i = 0; i < 4; ++i) ExpectExact(Submit(i, absl::StrCat("request ", i)));
}

// The size of a backup is known, though the weights sleep when the model is added.
TEST_F(SharedAdoptionTest, ABackupThatHasNoRoomIsRefused) {
  host_memory_budget_ = 59;
  held_ = {Asleep(2)};
  Start(1, 1);
  ASSERT_TRUE(engine(0)->WakeUp({}).ok());
  const absl::Status refused = engine(0)->Sleep({.level = 1}).status();
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  EXPECT_TRUE(engine(0)->Sleep({.level = 2}).ok());
}

TEST_F(SharedAdoptionTest, AnOperatorsWakeUpOfAHalfNeedsTheOtherHalfAlone) {
  held_ = {Residency(), Asleep(1, {"kv_cache"})};
  budget_ = kBytes + 70 + 30;
  Start(2, 0);
  ASSERT_TRUE(engine(1)->WakeUp({"kv_cache"}).ok());
  EXPECT_EQ(engine(1)->state(), EngineState::kAwake);
  EXPECT_EQ(engine(0)->state(), EngineState::kAwake) << "there was room for both";
}

}  // namespace
}  // namespace somnus
