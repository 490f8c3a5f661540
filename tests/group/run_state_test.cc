// The state that a coordinator takes over from an earlier coordinator, and writes down for the next.

#include "coordinator/group/run_state.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "coordinator/group/served_weights.h"
#include "proto/group_file.h"
#include "tests/fakes/temp_dir.h"

namespace somnus {
namespace {

class RunStateTest : public ::testing::Test {
 protected:
  void SetUp() override {
    group_.set_world_size(2);
    group_.set_model_path("model");
    group_.set_options_digest("digest");
  }
  void TearDown() override {
    for (const ProcessId& worker : workers_) {
      (void)EndProcesses({worker}, absl::ZeroDuration());
      waitpid(worker.pid, nullptr, 0);
    }
  }

  ProcessId StartWorker() {
    const pid_t pid = fork();
    if (pid == 0) {
      while (true) pause();
    }
    workers_.push_back(FindProcess(pid).value());
    return workers_.back();
  }
  std::unique_ptr<RunState> Open() {
    absl::StatusOr<std::unique_ptr<RunState>> state = RunState::Open(path_, group_);
    EXPECT_TRUE(state.ok()) << state.status();
    return *std::move(state);
  }

  const TempDir parent_;
  const std::string path_ = parent_.path() + "/run";
  v1::GroupFile group_;
  std::vector<ProcessId> workers_;
};

TEST_F(RunStateTest, TheNextCoordinatorFindsWhatWasRecorded) {
  const ProcessesByRank workers = {{0, StartWorker()}, {1, StartWorker()}};
  {
    const auto state = Open();
    EXPECT_TRUE(state->left().empty());
    EXPECT_EQ(state->left_epoch(), 0);
    ASSERT_TRUE(state->Record(3, workers).ok());
  }
  const auto state = Open();
  EXPECT_EQ(state->left(), workers);
  EXPECT_EQ(state->left_epoch(), 3);
  ASSERT_TRUE(state->Record(0, workers).ok());
  EXPECT_EQ(ReadGroupFile(path_ + "/group")->group_epoch(), 3) << "no epoch is forgotten";
  state->Clear();
  EXPECT_FALSE(std::filesystem::exists(path_ + "/group"));
}

TEST_F(RunStateTest, AWorkerThatHasEndedIsNotLeft) {
  const ProcessId one = StartWorker(), other = StartWorker();
  { ASSERT_TRUE(Open()->Record(1, {{0, one}, {1, other}}).ok()); }
  ASSERT_TRUE(EndProcesses({one}, absl::ZeroDuration()).ok());
  EXPECT_EQ(Open()->left(), (ProcessesByRank{{1, other}}));
}

TEST_F(RunStateTest, WorkersOfAnotherGroupAreEnded) {
  for (const char* what : {"model", "options", "size"}) {
    SCOPED_TRACE(what);
    const ProcessId worker = StartWorker();
    { ASSERT_TRUE(Open()->Record(5, {{0, worker}}).ok()); }
    if (what == std::string("model")) group_.set_model_path("another");
    if (what == std::string("options")) group_.set_options_digest("another");
    if (what == std::string("size")) group_.set_world_size(1);
    const auto state = Open();
    EXPECT_TRUE(state->left().empty());
    EXPECT_EQ(state->left_epoch(), 5);
    EXPECT_FALSE(IsRunning(worker));
  }
}

TEST_F(RunStateTest, ADamagedFileIsNoReasonNotToStart) {
  { ASSERT_TRUE(Open()->Record(5, {}).ok()); }
  std::ofstream(path_ + "/group", std::ios::trunc) << "what is this";
  const auto state = Open();
  EXPECT_TRUE(state->left().empty());
  ASSERT_TRUE(state->Record(1, {}).ok());
  EXPECT_TRUE(ReadGroupFile(path_ + "/group").ok());
}

TEST_F(RunStateTest, WorkersOfAnotherNumberOfReplicasAreEnded) {
  const auto record = [&](const std::string& path) {
    const ProcessId worker = StartWorker();
    EXPECT_TRUE((*RunState::Open(path, group_))->Record(1, {{0, worker}}).ok());
    return worker;
  };
  const ProcessId alone = record(path_);
  const ProcessId first = record(RunDir::ReplicaPath(path_, 0)),
                  third = record(RunDir::ReplicaPath(path_, 2));
  {
    const absl::StatusOr<RunDir> directory = RunDir::Open(path_);
    ASSERT_TRUE(EndWorkersOfOtherReplicas(*directory, 2).ok());
    EXPECT_FALSE(IsRunning(alone));
    EXPECT_FALSE(IsRunning(third));
    EXPECT_TRUE(IsRunning(first)) << "its replica is there still";
    EXPECT_EQ(directory->Replicas(), (std::vector<int32_t>{0}));
  }
  const auto state = Open();
  EXPECT_FALSE(IsRunning(first)) << "a single replica has no directory within";
  EXPECT_FALSE(std::filesystem::exists(RunDir::ReplicaPath(path_, 0)));
}

TEST_F(RunStateTest, WorkersOfOtherModelsAreEnded) {
  const auto record = [&](const std::string& path) {
    const ProcessId worker = StartWorker();
    EXPECT_TRUE((*RunState::Open(path, group_))->Record(1, {{0, worker}}).ok());
    return worker;
  };
  const ProcessId alone = record(path_), replica = record(RunDir::ReplicaPath(path_, 1));
  const std::string own = RunDir::ModelPath(path_, "own"), other = RunDir::ModelPath(path_, "other");
  const ProcessId of_own = record(own), of_other = record(other);
  EXPECT_TRUE(HasLeftWorkers(own));
  {
    const absl::StatusOr<RunDir> directory = RunDir::Open(path_);
    ASSERT_TRUE(EndWorkersOfOtherModels(*directory, {own}).ok());
    for (const ProcessId& useless : {alone, replica, of_other}) EXPECT_FALSE(IsRunning(useless));
    EXPECT_TRUE(IsRunning(of_own));
    EXPECT_EQ(directory->Models(), std::vector<std::string>{own});
    EXPECT_TRUE(directory->Replicas().empty());
    EXPECT_FALSE(HasLeftWorkers(path_));
    RemoveEndedModels(*directory);
    EXPECT_EQ(directory->Models(), std::vector<std::string>{own}) << "its workers were left";
  }
  const auto state = Open();
  EXPECT_FALSE(IsRunning(of_own)) << "a single model has no directory within";
  EXPECT_FALSE(std::filesystem::exists(own));
}

TEST_F(RunStateTest, WhatModelsHaveGoesWithTheirWorkers) {
  const std::string model = RunDir::ModelPath(path_, "model");
  const absl::StatusOr<RunDir> directory = RunDir::Open(path_);
  ASSERT_TRUE(directory.ok());
  (*RunState::Open(model, group_))->Clear();
  EXPECT_FALSE(HasLeftWorkers(model));
  EXPECT_EQ(directory->Models().size(), 1u);
  RemoveEndedModels(*directory);
  EXPECT_TRUE(directory->Models().empty());
}

TEST_F(RunStateTest, OneCoordinatorAtATime) {
  const auto state = Open();
  EXPECT_TRUE(absl::IsFailedPrecondition(RunState::Open(path_, group_).status()));
}

TEST(ServedWeightsTest, AServerThatBeginsWithOtherWeightsSaysSo) {
  const TempDir directory;
  EXPECT_EQ(NoteOfOlderWeights("", 1, "old"), "");
  EXPECT_EQ(NoteOfOlderWeights(directory.path(), 1, "old"), "") << "there was no change";
  ASSERT_TRUE(RecordWeights(directory.path(), 2, "new").ok());
  EXPECT_EQ(NoteOfOlderWeights(directory.path(), 1, "old"),
            "an earlier server has changed the weights to version 2, from new; this one has version 1, from "
            "old, until a reload or an update brings others");
  EXPECT_EQ(NoteOfOlderWeights(directory.path(), 2, "new"), "");
  EXPECT_EQ(NoteOfOlderWeights(directory.path(), 1, "new"), "")
      << "the command line names the new ones by now";
  EXPECT_FALSE(RecordWeights(directory.path() + "/none", 2, "new").ok());
}

TEST(ServedWeightsTest, AVersionGoesOnWhereItsWeightsCameFromTheSameSource) {
  const TempDir directory;
  EXPECT_EQ(FirstWeightsVersion("", "model"), 1);
  EXPECT_EQ(FirstWeightsVersion(directory.path(), "model"), 1) << "there was no change";
  ASSERT_TRUE(RecordWeights(directory.path(), 3, "model").ok());
  EXPECT_EQ(FirstWeightsVersion(directory.path(), "model"), 3);
  EXPECT_EQ(FirstWeightsVersion(directory.path(), "other"), 1);
  ASSERT_TRUE(RecordWeights(directory.path(), 4, "update x").ok());
  EXPECT_EQ(FirstWeightsVersion(directory.path(), "model"), 1) << "only workers have what an update brought";
}

}  // namespace
}  // namespace somnus
