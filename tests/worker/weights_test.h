#pragma once
// A worker with weights that are one number, and the calls that change the weights.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ostream>
#include <string>
#include <vector>

#include "base/status_macros.h"
#include "tests/worker/fake_parts.h"
#include "worker/worker.h"

namespace somnus {

inline constexpr uint8_t kLoaded = 7;  // FakeRunner's initial weights

class WeightsTest : public testing::Test {
 protected:
  WeightsTest() : worker_({.num_threads = 1}, FakeParts(&control_)) {}

  void MakeAwake(v1::LoadFormat format = v1::LOAD_FORMAT_AUTO,
                 v1::BackupPolicy backup = v1::BACKUP_POLICY_RETAIN) {
    ASSERT_TRUE(BeginEpoch(worker_, 1).ok());
    v1::LoadModelRequest request = LoadRequest();
    request.set_backup(backup);
    request.set_load_format(format);
    Load(request);
  }
  void Load(const v1::LoadModelRequest& request) {
    const auto event = worker_.LoadModel(request, [](int64_t, int64_t) {});
    ASSERT_TRUE(event.ok()) << event.status();
    event_ = *event;
    ASSERT_EQ(worker_.JoinGroup(JoinRequest()), absl::OkStatus());
    ASSERT_TRUE(worker_.AllocateKvCache(KvRequest()).ok());
  }

  absl::StatusOr<v1::WorkerReloadWeightsResponse> Reload(const std::string& path, int64_t version,
                                                         int64_t epoch = 1) {
    v1::WorkerReloadWeightsRequest request;
    request.set_group_epoch(epoch);
    request.set_model_path(path);
    request.set_weights_version(version);
    return worker_.ReloadWeights(request);
  }
  absl::Status Begin(const std::string& id, int64_t epoch = 1) {
    v1::BeginWeightUpdateRequest request;
    request.set_group_epoch(epoch);
    request.set_update_id(id);
    return worker_.BeginWeightUpdate(request);
  }
  // Sends a stream.
  absl::StatusOr<v1::WorkerUpdateWeightsResponse> Send(const std::string& id,
                                                       const std::vector<v1::WeightChunk>& chunks,
                                                       int64_t epoch = 1) {
    ASSIGN_OR_RETURN(const uint64_t stream, worker_.OpenWeightStream(epoch, id));
    for (const v1::WeightChunk& chunk : chunks) RETURN_IF_ERROR(worker_.AddWeights(epoch, stream, chunk));
    return worker_.CloseWeightStream(epoch, stream);
  }
  absl::Status Finish(const std::string& id, int64_t version, int64_t epoch = 1) {
    v1::FinishWeightUpdateRequest request;
    request.set_group_epoch(epoch);
    request.set_update_id(id);
    request.set_weights_version(version);
    return worker_.FinishWeightUpdate(request);
  }
  // All tensors, of this number.
  absl::Status Update(const std::string& id, float value, int64_t version) {
    RETURN_IF_ERROR(Begin(id));
    RETURN_IF_ERROR(Send(id, AllTensors(value)).status());
    return Finish(id, version);
  }
  // A whole tensor of the model.
  static v1::WeightChunk One(float value) { return AllTensors(value)[0]; }
  static v1::WeightChunk Half(float value) {
    v1::WeightChunk chunk = One(value);
    chunk.mutable_data()->resize(chunk.data().size() / 2);
    return chunk;
  }

  struct State {
    int64_t version;
    bool stale;
    std::string fingerprint;
    bool operator==(const State&) const = default;
    friend void PrintTo(const State& state, std::ostream* out) {
      *out << "version " << state.version << (state.stale ? ", stale, " : ", ") << state.fingerprint;
    }
  };
  State state() {
    const v1::WorkerSnapshot snapshot = worker_.Snapshot();
    EXPECT_EQ(worker_.GetStatus().weights_version(), snapshot.weights_version());
    EXPECT_EQ(worker_.weights_version(), snapshot.weights_version());
    return {snapshot.weights_version(), snapshot.weights_stale(), snapshot.checkpoint_fingerprint()};
  }
  const State kFirst = {1, false, "fingerprint of fake"};
  const State kNowhere = {0, true, ""};

  // The number that a step computes with; -1: a step is refused, as required for stale weights.
  int Number(int64_t epoch = 1) {
    const int64_t id = ++last_step_;
    const v1::StepReply reply = RunStep(worker_, EmptyStep(id, epoch));
    if (reply.error_message() == "Execute: the weights are stale") return -1;
    EXPECT_EQ(reply.error_message(), "");
    EXPECT_EQ(reply.weights_version(), worker_.weights_version());
    return reply.tokens_size() == 0 ? 0 : reply.tokens(0).token_id() - static_cast<int>(id);
  }
  absl::Status Transit(int level, const std::vector<std::string>& tags = {}, bool skip = false) {
    v1::Transition transition = TransitionOf(level, tags);
    transition.set_skip_weights_load(skip);
    const uint64_t id = ++last_transition_;
    RETURN_IF_ERROR(worker_.Prepare(PrepareOf(transition, id)));
    return worker_.Commit(CommitOf(id)).status();
  }
  void ExpectRefused(const absl::Status& status, const std::string& why) {
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    EXPECT_THAT(std::string(status.message()), testing::HasSubstr(why));
  }

  FakeModelControl control_;
  Worker worker_;
  v1::LoadModelEvent event_;
  int64_t last_step_ = 0;
  uint64_t last_transition_ = 0;
};

}  // namespace somnus
