// Updates of weights: their conditions, and their ends.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/worker/weights_test.h"

namespace somnus {
namespace {

using testing::HasSubstr;

using WorkerUpdatesTest = WeightsTest;

TEST_F(WorkerUpdatesTest, AnUpdateOfFreshWeightsNeedsNotAllTensors) {
  MakeAwake();
  ASSERT_EQ(Begin("u1"), absl::OkStatus());
  EXPECT_EQ(state(), kNowhere);
  EXPECT_EQ(Number(), -1);
  const auto sent = Send("u1", {One(3)});
  ASSERT_TRUE(sent.ok()) << sent.status();
  EXPECT_EQ(sent->num_tensors(), 1);
  EXPECT_EQ(sent->num_bytes(), 8 * 4 * 4);
  EXPECT_EQ(Number(), -1);
  EXPECT_EQ(Finish("u1", 0), absl::InvalidArgumentError("weights_version: must be at least 1, not 0"));
  ASSERT_EQ(Finish("u1", 2), absl::OkStatus());
  EXPECT_EQ(state(), (State{2, false, "update u1"}));
  EXPECT_EQ(Number(), 3);
  EXPECT_EQ(control_.placed.size(), 1u);
  ExpectRefused(Finish("u1", 2), "FinishWeightUpdate: update u1 is not under way");
  ExpectRefused(Send("u1", {One(4)}).status(), "UpdateWeights: update u1 is not under way");
  EXPECT_EQ(Number(), 3);
}

TEST_F(WorkerUpdatesTest, AnUpdateOfStaleWeightsNeedsAllTensors) {
  MakeAwake();
  ASSERT_EQ(Begin("u1"), absl::OkStatus());
  ASSERT_EQ(Begin("u2"), absl::OkStatus()) << "it begins anew, and those of u1 are stale";
  ExpectRefused(Send("u1", {One(3)}).status(), "UpdateWeights: update u1 is not under way");
  ASSERT_TRUE(Send("u2", {One(3)}).ok());
  const absl::Status missing = Finish("u2", 2);
  EXPECT_EQ(missing.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(missing.message()), HasSubstr("10 tensors are missing"));
  EXPECT_EQ(state(), kNowhere);
  ASSERT_TRUE(Send("u2", AllTensors(4)).ok()) << "they can still be sent";
  ASSERT_EQ(Finish("u2", 2), absl::OkStatus());
  EXPECT_EQ(Number(), 4);
}

TEST_F(WorkerUpdatesTest, ATensorThatHasComeInPartKeepsTheUpdateOpen) {
  MakeAwake();
  ASSERT_EQ(Begin("u"), absl::OkStatus());
  const absl::Status ended = Send("u", {Half(3)}).status();
  EXPECT_EQ(ended.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(ended.message()), HasSubstr("the stream ended after 64 of its 128 bytes"));
  EXPECT_THAT(std::string(Finish("u", 2).message()), HasSubstr("model.embed_tokens.weight"));
  EXPECT_EQ(Number(), -1);
  // A stream whose sender is lost is over once a new stream begins.
  const auto lost = worker_.OpenWeightStream(1, "u");
  ASSERT_TRUE(lost.ok());
  ASSERT_EQ(worker_.AddWeights(1, *lost, Half(3)), absl::OkStatus());
  ASSERT_TRUE(Send("u", {One(5)}).ok());
  ExpectRefused(worker_.AddWeights(1, *lost, One(3)), "another stream has begun");
  ExpectRefused(worker_.CloseWeightStream(1, *lost).status(), "another stream has begun");
  ASSERT_EQ(Finish("u", 2), absl::OkStatus());
  EXPECT_EQ(Number(), 5);
  // A place that fails is an error of the chunk; the tensor is sent again.
  ASSERT_EQ(Begin("v"), absl::OkStatus());
  control_.place_error = absl::InternalError("the device is gone");
  EXPECT_EQ(Send("v", {One(6)}).status(), control_.place_error);
  EXPECT_FALSE(Finish("v", 3).ok());
  control_.place_error = absl::OkStatus();
  ASSERT_TRUE(Send("v", {One(6)}).ok());
  ASSERT_EQ(Finish("v", 3), absl::OkStatus());
  EXPECT_EQ(Number(), 6);
}

TEST_F(WorkerUpdatesTest, ASleepOfWeightsEndsAnUpdate) {
  MakeAwake();
  for (const int level : {1, 2}) {
    ASSERT_EQ(Begin("u"), absl::OkStatus());
    ASSERT_TRUE(Send("u", {One(3)}).ok());
    ASSERT_EQ(Transit(1, {"kv_cache"}), absl::OkStatus());
    ASSERT_TRUE(Send("u", {One(3)}).ok()) << "the KV cache has nothing to do with it";
    ASSERT_EQ(Transit(level), absl::OkStatus());
    ExpectRefused(Send("u", {One(3)}).status(), "update u is not under way");
    ASSERT_EQ(Transit(0), absl::OkStatus());
    ExpectRefused(Finish("u", 2), "update u is not under way");
    EXPECT_EQ(state(), kNowhere);
  }
  EXPECT_EQ(control_.reloads, 0);
}

TEST_F(WorkerUpdatesTest, AFenceEndsAnUpdateAndLeavesStaleWeights) {
  MakeAwake();
  ASSERT_EQ(Begin("u"), absl::OkStatus());
  const auto stream = worker_.OpenWeightStream(1, "u");
  ASSERT_TRUE(stream.ok());
  const auto snapshot = BeginEpoch(worker_, 2);
  ASSERT_TRUE(snapshot.ok()) << snapshot.status();
  EXPECT_TRUE(snapshot->weights_stale());
  EXPECT_EQ(snapshot->weights_version(), 0);
  EXPECT_EQ(snapshot->state(), "awake");
  ExpectRefused(worker_.AddWeights(1, *stream, One(3)), "the request is of epoch 1");
  ExpectRefused(worker_.AddWeights(2, *stream, One(3)), "the stream's update is over");
  ExpectRefused(Finish("u", 2, /*epoch=*/2), "update u is not under way");
  ASSERT_TRUE(Reload("", 2, /*epoch=*/2).ok());
  ASSERT_EQ(worker_.JoinGroup(JoinRequest(0, 1, "", 2)), absl::OkStatus());
  EXPECT_EQ(Number(2), kLoaded);
}

TEST_F(WorkerUpdatesTest, AReloadEndsAnUpdate) {
  MakeAwake();
  ASSERT_EQ(Begin("u"), absl::OkStatus());
  ASSERT_TRUE(Send("u", {One(3)}).ok());
  ASSERT_TRUE(Reload("", 2).ok());
  ExpectRefused(Finish("u", 3), "update u is not under way");
  EXPECT_EQ(state(), (State{2, false, "fingerprint of fake"}));
  EXPECT_EQ(Number(), kLoaded);
}

}  // namespace
}  // namespace somnus
