// Weights that are read again or brought by an update: the version of the weights, and the weights after
// transitions.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "tests/worker/weights_test.h"

namespace somnus {
namespace {

using testing::HasSubstr;

using WorkerWeightsTest = WeightsTest;

TEST_F(WorkerWeightsTest, AReloadGivesItsVersionAndIsWhatLevel2Reads) {
  MakeAwake();
  const std::string digest = worker_.Snapshot().options_digest();
  auto response = Reload("other", 5);
  ASSERT_TRUE(response.ok()) << response.status();
  EXPECT_EQ(response->weights_version(), 5);
  EXPECT_EQ(response->checkpoint_fingerprint(), "fingerprint of other");
  EXPECT_GE(response->seconds(), 0);
  const State other = {5, false, "fingerprint of other"};
  EXPECT_EQ(state(), other);
  EXPECT_EQ(Number(), kLoaded);
  EXPECT_EQ(worker_.Snapshot().options_digest(), digest) << "these are the options of the load";
  ASSERT_EQ(Transit(2), absl::OkStatus());
  EXPECT_EQ(state(), other);
  ASSERT_EQ(Transit(0), absl::OkStatus());
  EXPECT_EQ(state(), other);
  EXPECT_EQ(control_.reloads, 2);
  response = Reload("", 2);
  ASSERT_TRUE(response.ok()) << response.status();
  EXPECT_EQ(state(), (State{2, false, "fingerprint of other"})) << "the checkpoint that was read last";
}

TEST_F(WorkerWeightsTest, WhatFailsBeforeTheFirstWriteHasChangedNothing) {
  MakeAwake();
  const auto unchanged = [&](const absl::Status& status, absl::StatusCode code, const std::string& why) {
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(why));
    EXPECT_EQ(state(), kFirst);
    EXPECT_EQ(control_.reloads, 0);
    EXPECT_EQ(Number(), kLoaded);
  };
  const auto invalid = absl::StatusCode::kInvalidArgument;
  unchanged(Reload("other", 0).status(), invalid, "weights_version: must be at least 1, not 0");
  control_.open_error = absl::DataLossError("the file was cut");
  unchanged(Reload("other", 2).status(), invalid, "the file was cut");
  control_.open_error = absl::OkStatus();
  control_.check_error = absl::NotFoundError("tensor x is missing");
  unchanged(Reload("other", 2).status(), invalid, "tensor x is missing");
  control_.check_error = absl::OkStatus();
  unchanged(Reload("other", 2, /*epoch=*/3).status(), absl::StatusCode::kFailedPrecondition,
            "the request is of epoch 3, this worker is in epoch 1");
  control_.update_error = absl::FailedPreconditionError("with --dequantize");
  unchanged(Begin("u"), absl::StatusCode::kFailedPrecondition, "with --dequantize");
  control_.update_error = absl::OkStatus();
  unchanged(Begin(""), invalid, "update_id: has 0 bytes");
  unchanged(Begin(std::string(129, 'u')), invalid, "update_id: has 129 bytes");
  unchanged(Begin("u", /*epoch=*/2), absl::StatusCode::kFailedPrecondition, "the request is of epoch 2");
}

TEST_F(WorkerWeightsTest, WeightsAreWrittenOnlyWhereTheyAreMappedAndNothingIsPrepared) {
  MakeAwake();
  ASSERT_EQ(worker_.Prepare(PrepareOf(TransitionOf(1), ++last_transition_)), absl::OkStatus());
  ExpectRefused(Reload("", 2).status(), "ReloadWeights: a transition is prepared");
  ExpectRefused(Begin("u"), "BeginWeightUpdate: a transition is prepared");
  ASSERT_TRUE(worker_.Commit(CommitOf(last_transition_)).ok());
  ExpectRefused(Reload("", 2).status(), "ReloadWeights: the memory of weights sleeps");
  ExpectRefused(Begin("u"), "BeginWeightUpdate: the memory of weights sleeps");
  EXPECT_EQ(state(), kFirst);
  ASSERT_EQ(Transit(0, {"weights"}), absl::OkStatus());
  ASSERT_TRUE(Reload("", 2).ok()) << "the KV cache may sleep";
  ASSERT_EQ(Begin("u"), absl::OkStatus());
  ASSERT_EQ(worker_.Prepare(PrepareOf(TransitionOf(0, {"kv_cache"}), ++last_transition_)), absl::OkStatus());
  ExpectRefused(Send("u", {One(3)}).status(), "UpdateWeights: a transition is prepared");
  ExpectRefused(Finish("u", 3), "FinishWeightUpdate: a transition is prepared");
  ASSERT_TRUE(worker_.Commit(CommitOf(last_transition_)).ok());
  ASSERT_TRUE(Send("u", AllTensors(3)).ok());
  EXPECT_EQ(Finish("u", 3), absl::OkStatus());
}

TEST_F(WorkerWeightsTest, ChecksumsAreOfTheWeightsThatAreThere) {
  MakeAwake();
  const auto sums = [&](int64_t epoch = 1, bool has_left = false) {
    v1::ChecksumWeightsRequest request;
    request.set_group_epoch(epoch);
    return worker_.ChecksumWeights(request, [has_left] { return has_left; });
  };
  const auto first = sums();
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(first->weights_version(), kFirst.version);
  ASSERT_EQ(first->weights_size(), 1);
  EXPECT_EQ(first->weights(0).name(), "all");
  EXPECT_EQ(first->weights(0).bytes(), FakeRunner::kBytes);
  ASSERT_EQ(Transit(1), absl::OkStatus());
  ExpectRefused(sums().status(), "ChecksumWeights: the memory of weights sleeps");
  ASSERT_EQ(Transit(0), absl::OkStatus());
  EXPECT_EQ(sums()->weights(0).checksum(), first->weights(0).checksum()) << "what a sleep brings back";
  ExpectRefused(sums(2).status(), "the request is of epoch 2");
  EXPECT_TRUE(absl::IsCancelled(sums(1, /*has_left=*/true).status()));
  ASSERT_EQ(Begin("u"), absl::OkStatus());
  ExpectRefused(sums().status(), "ChecksumWeights: the weights are stale");
  ASSERT_TRUE(Send("u", AllTensors(3)).ok());
  ASSERT_EQ(Finish("u", 9), absl::OkStatus());
  EXPECT_EQ(sums()->weights_version(), 9);
  EXPECT_NE(sums()->weights(0).checksum(), first->weights(0).checksum());
}

// The other ranks may have read the checkpoint: this rank has weights of no version until the coordinator
// gives a version.
TEST_F(WorkerWeightsTest, AReloadThatFailsHalfwayLeavesStaleWeights) {
  MakeAwake();
  control_.reload_error = absl::InvalidArgumentError("not what the header said");
  EXPECT_EQ(Reload("other", 2).status(), absl::InternalError("not what the header said"))
      << "InvalidArgument would mean that nothing has changed";
  EXPECT_EQ(state(), kNowhere);
  control_.reload_error = absl::DataLossError("the disk is gone");
  EXPECT_EQ(Reload("other", 2).status(), control_.reload_error);
  EXPECT_EQ(state(), kNowhere);
  EXPECT_EQ(Number(), -1);
  control_.reload_error = absl::OkStatus();
  // No transition reads the files of the load.
  ExpectRefused(Transit(0), "somnus reload-weights or an update");
  const int reloads = control_.reloads;
  for (const int level : {1, 2}) {
    ASSERT_EQ(Transit(level), absl::OkStatus());
    EXPECT_EQ(worker_.Snapshot().sleep_level(), 2) << "what is stale is not kept";
    ASSERT_EQ(Transit(0), absl::OkStatus());
    EXPECT_EQ(state(), kNowhere);
  }
  EXPECT_EQ(control_.reloads, reloads);
  EXPECT_EQ(Number(), -1);
  ASSERT_TRUE(Reload("", 3).ok());
  EXPECT_EQ(state(), (State{3, false, "fingerprint of fake"}));
  EXPECT_EQ(Number(), kLoaded);
}

// Weights that no file has must not be taken for weights of a file: not by a sleep, by an abort, or by a
// recovery.
TEST_F(WorkerWeightsTest, NothingReadsTheOldCheckpointAfterAnUpdate) {
  MakeAwake();
  ASSERT_EQ(Transit(1), absl::OkStatus());
  ASSERT_EQ(Transit(0), absl::OkStatus()) << "now there is a backup of the old weights";
  ASSERT_EQ(Update("u", 3, 2), absl::OkStatus());
  const State updated = {2, false, "update u"};
  ASSERT_EQ(Transit(1), absl::OkStatus());
  EXPECT_EQ(state(), updated);
  ASSERT_EQ(Transit(0), absl::OkStatus());
  EXPECT_EQ(Number(), 3) << "the backup was dropped";
  EXPECT_EQ(state(), updated);
  for (const int level : {1, 2}) {
    ASSERT_EQ(worker_.Prepare(PrepareOf(TransitionOf(level), ++last_transition_)), absl::OkStatus());
    ASSERT_EQ(worker_.AbortTransition(AbortOf(last_transition_)), absl::OkStatus());
    EXPECT_EQ(state(), updated);
    EXPECT_EQ(Number(), 3);
  }
  // The group loses a rank in the middle of a sleep.
  ASSERT_EQ(worker_.Prepare(PrepareOf(TransitionOf(2), ++last_transition_)), absl::OkStatus());
  const auto snapshot = BeginEpoch(worker_, 2);
  ASSERT_TRUE(snapshot.ok()) << snapshot.status();
  EXPECT_EQ(snapshot->weights_version(), 2);
  EXPECT_EQ(state(), updated);
  ASSERT_EQ(worker_.JoinGroup(JoinRequest(0, 1, "", 2)), absl::OkStatus());
  EXPECT_EQ(Number(2), 3);
  EXPECT_EQ(control_.reloads, 0);
}

TEST_F(WorkerWeightsTest, Level2AfterAnUpdateWakesToStaleWeights) {
  MakeAwake();
  ASSERT_EQ(Update("u", 3, 2), absl::OkStatus());
  ASSERT_EQ(Transit(2), absl::OkStatus());
  v1::PlanRequest plan;
  plan.set_group_epoch(1);
  *plan.mutable_transition() = TransitionOf(0);
  EXPECT_FALSE(worker_.Plan(plan)->reads_weights());
  ASSERT_EQ(Transit(0), absl::OkStatus());
  EXPECT_EQ(worker_.GetStatus().state(), "awake");
  EXPECT_EQ(worker_.Snapshot().resident_tags_size(), 3);
  EXPECT_EQ(state(), (State{0, true, "update u"}));
  EXPECT_EQ(Number(), -1);
  EXPECT_EQ(control_.reloads, 0);
  ExpectRefused(Transit(0, {"weights"}), "somnus reload-weights or an update");
  ExpectRefused(worker_.Plan(plan).status(), "somnus reload-weights or an update");
  EXPECT_EQ(Transit(0, {"kv_cache"}), absl::OkStatus()) << "others may wake";
  EXPECT_EQ(Transit(0, {}, /*skip=*/true), absl::OkStatus()) << "nothing is to be read";
  EXPECT_EQ(control_.reloads, 0);
  ASSERT_EQ(Update("v", 4, 3), absl::OkStatus());
  EXPECT_EQ(Number(), 4);
  ASSERT_TRUE(Reload("", 4).ok());
  EXPECT_EQ(state(), (State{4, false, "fingerprint of fake"}));
  // From now on the checkpoint is the source again.
  ASSERT_EQ(Transit(2), absl::OkStatus());
  ASSERT_EQ(Transit(0), absl::OkStatus());
  EXPECT_EQ(state(), (State{4, false, "fingerprint of fake"}));
  EXPECT_EQ(Number(), kLoaded);
}

TEST_F(WorkerWeightsTest, AWakeUpMaySkipTheLoadAndALaterOneReadsIt) {
  MakeAwake();
  ASSERT_EQ(Transit(2), absl::OkStatus());
  ASSERT_EQ(Transit(0, {"weights"}, /*skip=*/true), absl::OkStatus());
  EXPECT_EQ(state(), (State{0, true, "fingerprint of fake"}));
  EXPECT_EQ(control_.reloads, 0);
  ASSERT_EQ(Transit(0, {"kv_cache", "workspace"}), absl::OkStatus());
  EXPECT_EQ(Number(), -1);
  // An abort leaves the weights stale, however much was written.
  ASSERT_EQ(worker_.Prepare(PrepareOf(TransitionOf(0), ++last_transition_)), absl::OkStatus());
  ASSERT_EQ(worker_.AbortTransition(AbortOf(last_transition_)), absl::OkStatus());
  EXPECT_EQ(Number(), -1);
  ASSERT_EQ(Transit(0), absl::OkStatus());
  EXPECT_EQ(state(), kFirst);
  EXPECT_EQ(Number(), kLoaded);
  // Once an update has begun to write, the checkpoint is theirs no longer.
  ASSERT_EQ(Transit(2), absl::OkStatus());
  ASSERT_EQ(Transit(0, {}, /*skip=*/true), absl::OkStatus());
  ASSERT_EQ(Begin("u"), absl::OkStatus());
  ExpectRefused(Transit(0), "somnus reload-weights or an update");
  EXPECT_EQ(state(), kNowhere);
  ASSERT_TRUE(Send("u", AllTensors(9)).ok());
  ASSERT_EQ(Finish("u", 2), absl::OkStatus());
  EXPECT_EQ(Number(), 9);
}

TEST_F(WorkerWeightsTest, ACheckpointThatHasChangedWakesNothing) {
  MakeAwake();
  ASSERT_EQ(Transit(2), absl::OkStatus());
  control_.changed_files = ", changed";
  ExpectRefused(
      Transit(0),
      "the checkpoint has changed since its weights were read, from fingerprint fingerprint of fake "
      "to fingerprint of fake, changed: somnus reload-weights reads what is there now");
  EXPECT_EQ(control_.reloads, 0);
  EXPECT_EQ(worker_.Snapshot().resident_tags_size(), 0);
  EXPECT_EQ(state(), kFirst);
  ASSERT_EQ(Transit(0, {}, /*skip=*/true), absl::OkStatus());
  ASSERT_TRUE(Reload("", 2).ok());
  EXPECT_EQ(state(), (State{2, false, "fingerprint of fake, changed"}));
}

// A newcomer in a group whose weights no file has.
TEST_F(WorkerWeightsTest, MemoryAloneIsStaleUntilAnUpdateOrAReload) {
  MakeAwake(v1::LOAD_FORMAT_NONE);
  EXPECT_EQ(event_.weights_version(), 0);
  EXPECT_EQ(event_.checkpoint_fingerprint(), "");
  EXPECT_EQ(event_.weights_bytes(), FakeRunner::kBytes);
  EXPECT_EQ(state(), kNowhere);
  EXPECT_EQ(Number(), -1);
  ExpectRefused(Transit(0), "somnus reload-weights or an update");
  ASSERT_EQ(Transit(2), absl::OkStatus());
  ASSERT_EQ(Transit(0), absl::OkStatus());
  EXPECT_EQ(state(), kNowhere);
  ASSERT_EQ(Begin("u"), absl::OkStatus());
  ASSERT_TRUE(Send("u", {One(3)}).ok());
  EXPECT_FALSE(Finish("u", 6).ok()) << "all are missing but one";
  ASSERT_TRUE(Send("u", AllTensors(3)).ok());
  ASSERT_EQ(Finish("u", 6), absl::OkStatus());
  EXPECT_EQ(state(), (State{6, false, "update u"}));
  EXPECT_EQ(Number(), 3);
  ASSERT_TRUE(Reload("", 7).ok());
  EXPECT_EQ(state(), (State{7, false, "fingerprint of fake"}));

  FakeModelControl control;
  Worker other({.num_threads = 1}, FakeParts(&control));
  ASSERT_TRUE(BeginEpoch(other, 1).ok());
  v1::LoadModelRequest request = LoadRequest();
  request.set_backup(v1::BACKUP_POLICY_RETAIN);
  ASSERT_TRUE(other.LoadModel(request, [](int64_t, int64_t) {}).ok());
  EXPECT_EQ(other.Snapshot().options_digest(), worker_.Snapshot().options_digest());
}

// A group of random weights has no file but a configuration, and an update may have replaced the weights of
// files.
TEST(MemoryAlone, NeedsNoMoreThanAConfiguration) {
  FakeModelControl control;
  WorkerParts parts = FakeParts(&control);
  parts.open_checkpoint = [](const std::string&,
                             LoadFormat format) -> absl::StatusOr<std::unique_ptr<Checkpoint>> {
    if (format != LoadFormat::kDummy) return absl::NotFoundError("no tensors");
    return std::make_unique<FakeCheckpoint>();
  };
  for (const v1::LoadFormat format : {v1::LOAD_FORMAT_AUTO, v1::LOAD_FORMAT_NONE}) {
    Worker worker({.num_threads = 1}, parts);
    ASSERT_TRUE(BeginEpoch(worker, 1).ok());
    v1::LoadModelRequest request = LoadRequest();
    request.set_load_format(format);
    const absl::Status status = worker.LoadModel(request, [](int64_t, int64_t) {}).status();
    EXPECT_EQ(status, format == v1::LOAD_FORMAT_NONE ? absl::OkStatus() : absl::NotFoundError("no tensors"));
  }
}

}  // namespace
}  // namespace somnus
