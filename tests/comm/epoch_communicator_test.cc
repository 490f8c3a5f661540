// One communicator for a worker's life, with a group for each epoch.

#include "worker/comm/epoch_communicator.h"

#include <gtest/gtest.h>

#include <thread>

#include "tests/fakes/unique_name.h"

namespace somnus {
namespace {

// A group whose fate the test sees.
class SpyCommunicator : public Communicator {
 public:
  struct Seen {
    std::string aborted;
    int calls = 0;
    bool destroyed = false;
  };
  explicit SpyCommunicator(Seen* seen) : seen_(seen) {}
  ~SpyCommunicator() override { seen_->destroyed = true; }

  int rank() const override { return 1; }
  int world_size() const override { return 2; }
  absl::Status AllReduceSum(void*, int64_t, DataType) override { return Count(); }
  absl::Status AllGather(const void*, int64_t, void*) override { return Count(); }
  absl::Status Barrier() override { return Count(); }
  absl::Status Suspend() override { return Count(); }
  absl::Status Resume() override { return Count(); }
  void Abort(const std::string& reason) override { seen_->aborted = reason; }
  absl::Status status() const override {
    return seen_->aborted.empty() ? absl::OkStatus() : absl::AbortedError(seen_->aborted);
  }

 private:
  absl::Status Count() {
    ++seen_->calls;
    return absl::OkStatus();
  }
  Seen* const seen_;
};

class EpochCommunicatorTest : public testing::Test {
 protected:
  EpochCommunicatorTest() {
    communicator_.SetShape(1, 2, /*on_gpu=*/false);
    communicator_.BeginEpoch(1);
  }
  absl::Status Join(SpyCommunicator::Seen* seen) {
    return communicator_.Join(std::make_unique<SpyCommunicator>(seen));
  }
  // Every call; the last error.
  absl::Status CallAll() {
    float data[2] = {};
    absl::Status error;
    for (const absl::Status& status :
         {communicator_.AllReduceSum(data, 1, DataType::kF32), communicator_.AllGather(data, 4, data),
          communicator_.Barrier(), communicator_.Suspend(), communicator_.Resume()}) {
      if (!status.ok()) error = status;
    }
    return error;
  }

  EpochCommunicator communicator_;
};

TEST_F(EpochCommunicatorTest, WithoutAGroupEveryCallFails) {
  EXPECT_EQ(communicator_.rank(), 1);
  EXPECT_EQ(communicator_.world_size(), 2);
  EXPECT_FALSE(communicator_.joined());
  EXPECT_TRUE(absl::IsFailedPrecondition(CallAll()));
  EXPECT_TRUE(absl::IsFailedPrecondition(communicator_.status()));
}

TEST(EpochCommunicator, OnlySeveralGpusQueueTheirCollectives) {
  for (const bool on_gpu : {false, true}) {
    for (const int world_size : {1, 2}) {
      EpochCommunicator communicator;
      communicator.SetShape(0, world_size, on_gpu);
      EXPECT_EQ(communicator.stream_ordered(), on_gpu && world_size > 1);
    }
  }
}

TEST_F(EpochCommunicatorTest, ForwardsToTheGroupOfTheEpoch) {
  SpyCommunicator::Seen first, second;
  ASSERT_TRUE(Join(&first).ok());
  EXPECT_TRUE(CallAll().ok());
  EXPECT_EQ(first.calls, 5);
  communicator_.BeginEpoch(2);
  EXPECT_TRUE(first.destroyed);
  EXPECT_FALSE(communicator_.joined());
  EXPECT_TRUE(absl::IsFailedPrecondition(CallAll()));
  ASSERT_TRUE(Join(&second).ok());
  EXPECT_TRUE(CallAll().ok());
  EXPECT_EQ(first.calls, 5);
  EXPECT_EQ(second.calls, 5);
  communicator_.BeginEpoch(3);  // `second` is gone before the communicator
}

TEST_F(EpochCommunicatorTest, AnAbortEndsTheGroupsOfItsEpochAndOlderOnes) {
  SpyCommunicator::Seen first, second;
  ASSERT_TRUE(Join(&first).ok());
  communicator_.AbortUpTo(0, "too old");
  EXPECT_EQ(first.aborted, "");
  EXPECT_FALSE(communicator_.aborted());
  communicator_.AbortUpTo(1, "epoch 2 begins");
  EXPECT_EQ(first.aborted, "epoch 2 begins");
  EXPECT_TRUE(communicator_.aborted());
  EXPECT_TRUE(absl::IsAborted(communicator_.status()));
  communicator_.BeginEpoch(2);
  EXPECT_FALSE(communicator_.aborted());
  ASSERT_TRUE(Join(&second).ok());
  communicator_.AbortUpTo(1, "somebody's late error");
  EXPECT_EQ(second.aborted, "");
  communicator_.Abort("the worker leaves");
  EXPECT_EQ(second.aborted, "the worker leaves");
  communicator_.BeginEpoch(3);
}

TEST_F(EpochCommunicatorTest, AGroupThatFormedTooLateIsAborted) {
  SpyCommunicator::Seen seen;
  communicator_.AbortUpTo(1, "given up");
  EXPECT_EQ(Join(&seen), absl::AbortedError("given up"));
  EXPECT_EQ(seen.aborted, "given up");
  communicator_.BeginEpoch(2);
}

// Rank 0 waits for rank 1, or rank 1 for rank 0; the timeout is minutes.
TEST_F(EpochCommunicatorTest, AnAbortEndsTheWaitForTheOtherRanks) {
  for (const int rank : {0, 1}) {
    communicator_.BeginEpoch(rank + 1);
    GroupOptions options;
    options.group_name = UniqueName();
    options.rank = rank;
    options.world_size = 2;
    options.connect_timeout = absl::Minutes(10);
    options.cancelled = [this] { return communicator_.aborted(); };
    absl::Status status;
    std::thread joins([&] { status = MakeShmCommunicator(options).status(); });
    communicator_.AbortUpTo(rank + 1, "the epoch is over");
    joins.join();
    EXPECT_TRUE(absl::IsAborted(status)) << status;
  }
}

}  // namespace
}  // namespace somnus
