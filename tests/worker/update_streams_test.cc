// Updates over gRPC: streams that end, break, hang and are taken over, and calls that are sent again.

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "proto/status.h"
#include "proto/worker.grpc.pb.h"
#include "tests/worker/fake_parts.h"
#include "worker/worker_service.h"

namespace somnus {
namespace {

using testing::HasSubstr;

class UpdateStreamsTest : public testing::Test {
 protected:
  UpdateStreamsTest()
      : worker_({.num_threads = 1}, FakeParts(&control_)), service_(MakeWorkerService(&worker_, [] {})) {
    grpc::ServerBuilder builder;
    builder.RegisterService(service_.get());
    server_ = builder.BuildAndStart();
    stub_ = v1::WorkerService::NewStub(server_->InProcessChannel({}));
    EXPECT_TRUE(Fence(1).ok());
    EXPECT_TRUE(worker_.LoadModel(LoadRequest(), [](int64_t, int64_t) {}).ok());
    EXPECT_TRUE(worker_.JoinGroup(JoinRequest()).ok());
    EXPECT_TRUE(worker_.AllocateKvCache(KvRequest()).ok());
  }
  ~UpdateStreamsTest() override { server_->Shutdown(); }

  // A stream of this client.
  struct Stream {
    Stream(v1::WorkerService::Stub* stub, std::string update_id, int64_t epoch = 1)
        : writer(stub->UpdateWeights(&context, &response)), update_id(std::move(update_id)), epoch(epoch) {}
    bool Send(const v1::WeightChunk& chunk) {
      v1::WorkerUpdateWeightsRequest request;
      if (std::exchange(first, false)) {
        request.set_group_epoch(epoch);
        request.set_update_id(update_id);
      }
      *request.mutable_chunk() = chunk;
      return writer->Write(request);
    }
    absl::Status Finish() {
      writer->WritesDone();
      return FromGrpcStatus(writer->Finish());
    }

    grpc::ClientContext context;
    v1::WorkerUpdateWeightsResponse response;
    std::unique_ptr<grpc::ClientWriter<v1::WorkerUpdateWeightsRequest>> writer;
    const std::string update_id;
    const int64_t epoch;
    bool first = true;
  };

  absl::StatusOr<v1::WorkerSnapshot> Fence(int64_t epoch) {
    grpc::ClientContext context;
    v1::FenceRequest request;
    request.set_group_epoch(epoch);
    v1::FenceResponse response;
    const grpc::Status status = stub_->Fence(&context, request, &response);
    if (!status.ok()) return FromGrpcStatus(status);
    return response.snapshot();
  }
  absl::Status Begin(const std::string& id, uint64_t operation, int64_t epoch = 1) {
    v1::BeginWeightUpdateRequest request;
    request.set_group_epoch(epoch);
    request.set_operation_id(operation);
    request.set_update_id(id);
    grpc::ClientContext context;
    v1::BeginWeightUpdateResponse response;
    const grpc::Status status = stub_->BeginWeightUpdate(&context, request, &response);
    EXPECT_EQ(response.weights_version(), 0);
    return FromGrpcStatus(status);
  }
  absl::StatusOr<int64_t> FinishUpdate(const std::string& id, int64_t version, uint64_t operation) {
    v1::FinishWeightUpdateRequest request;
    request.set_group_epoch(1);
    request.set_operation_id(operation);
    request.set_update_id(id);
    request.set_weights_version(version);
    grpc::ClientContext context;
    v1::FinishWeightUpdateResponse response;
    const grpc::Status status = stub_->FinishWeightUpdate(&context, request, &response);
    if (!status.ok()) return FromGrpcStatus(status);
    return response.weights_version();
  }
  static v1::WeightChunk One(float value) { return AllTensors(value)[0]; }
  // The chunk without its second half, which is the second chunk.
  static v1::WeightChunk Cut(v1::WeightChunk* chunk) {
    v1::WeightChunk rest;
    const size_t half = chunk->data().size() / 2;
    rest.set_data(chunk->data().substr(half));
    chunk->mutable_data()->resize(half);
    return rest;
  }

  FakeModelControl control_;
  Worker worker_;
  std::unique_ptr<grpc::Service> service_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<v1::WorkerService::Stub> stub_;
};

TEST_F(UpdateStreamsTest, AStreamReturnsOnceAllIsInPlace) {
  ASSERT_EQ(Begin("u", 1), absl::OkStatus());
  Stream stream(stub_.get(), "u");
  for (v1::WeightChunk chunk : AllTensors(3)) {
    const v1::WeightChunk rest = Cut(&chunk);
    ASSERT_TRUE(stream.Send(chunk));
    ASSERT_TRUE(stream.Send(rest));
  }
  ASSERT_EQ(stream.Finish(), absl::OkStatus());
  EXPECT_EQ(stream.response.num_tensors(), 11);
  EXPECT_EQ(stream.response.num_bytes(), 4 * (8 * 4 + 7 * 16 + 3 * 4));
  EXPECT_EQ(control_.placed.size(), 11u);
  EXPECT_EQ(FinishUpdate("u", 2, 2).value_or(-1), 2);
  EXPECT_EQ(RunStep(worker_, EmptyStep(1)).tokens(0).token_id(), 1 + 3);
}

// The caller did not get the reply and calls again.
TEST_F(UpdateStreamsTest, ARetriedCallIsDoneOnce) {
  ASSERT_EQ(Begin("u", 1), absl::OkStatus());
  Stream stream(stub_.get(), "u");
  ASSERT_TRUE(stream.Send(One(3)));
  ASSERT_EQ(stream.Finish(), absl::OkStatus());
  ASSERT_EQ(Begin("u", 1), absl::OkStatus()) << "begun anew it would need all tensors";
  for (int i = 0; i < 2; ++i) EXPECT_EQ(FinishUpdate("u", 2, 2).value_or(-1), 2);
  v1::WorkerReloadWeightsRequest request;
  request.set_group_epoch(1);
  request.set_operation_id(3);
  request.set_weights_version(4);
  for (int i = 0; i < 2; ++i) {
    grpc::ClientContext context;
    v1::WorkerReloadWeightsResponse response;
    EXPECT_TRUE(stub_->ReloadWeights(&context, request, &response).ok());
    EXPECT_EQ(response.weights_version(), 4);
    EXPECT_EQ(response.checkpoint_fingerprint(), "fingerprint of fake");
  }
  EXPECT_EQ(control_.reloads, 1);
}

TEST_F(UpdateStreamsTest, AChunkThatIsRefusedEndsTheStreamWithItsError) {
  ASSERT_EQ(Begin("u", 1), absl::OkStatus());
  Stream stream(stub_.get(), "u");
  v1::WeightChunk wrong = One(3);
  wrong.set_name("model.nothing.weight");
  stream.Send(wrong);
  const absl::Status status = stream.Finish();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("model.nothing.weight"));
  Stream next(stub_.get(), "u");
  ASSERT_TRUE(next.Send(One(3)));
  EXPECT_EQ(next.Finish(), absl::OkStatus()) << "the update goes on";
  EXPECT_EQ(FinishUpdate("u", 2, 2).value_or(-1), 2);
}

TEST_F(UpdateStreamsTest, AStreamIsOfOneEpochAndOneUpdate) {
  ASSERT_EQ(Begin("u", 1), absl::OkStatus());
  Stream other_update(stub_.get(), "v");
  other_update.Send(One(3));
  EXPECT_EQ(other_update.Finish(), absl::FailedPreconditionError("UpdateWeights: update v is not under way"));
  Stream other_epoch(stub_.get(), "u", /*epoch=*/2);
  other_epoch.Send(One(3));
  EXPECT_EQ(other_epoch.Finish().code(), absl::StatusCode::kFailedPrecondition);
  Stream changes(stub_.get(), "u");
  ASSERT_TRUE(changes.Send(One(3)));
  v1::WorkerUpdateWeightsRequest request;
  request.set_update_id("v");
  *request.mutable_chunk() = One(3);
  changes.writer->Write(request);
  EXPECT_EQ(changes.Finish(),
            absl::InvalidArgumentError("UpdateWeights: a stream has one epoch and one update"));
  Stream empty(stub_.get(), "u");
  EXPECT_EQ(empty.Finish(),
            absl::InvalidArgumentError("UpdateWeights: a stream begins with its epoch and update"));
}

// The worker learns of the loss a moment later; in any order of events the part of a tensor does not count.
TEST_F(UpdateStreamsTest, AClientThatDisappearsWithinATensorLeavesNothingOfIt) {
  ASSERT_EQ(Begin("u", 1), absl::OkStatus());
  v1::WeightChunk chunk = One(9);
  Cut(&chunk);
  {
    Stream lost(stub_.get(), "u");
    ASSERT_TRUE(lost.Send(One(3)));
    ASSERT_TRUE(lost.Send(chunk));
    while (control_.num_placed == 0) absl::SleepFor(absl::Milliseconds(1));  // the worker has begun to place
    lost.context.TryCancel();
    EXPECT_FALSE(lost.Finish().ok());
  }
  Stream next(stub_.get(), "u");
  ASSERT_TRUE(next.Send(One(5)));
  ASSERT_EQ(next.Finish(), absl::OkStatus());
  EXPECT_EQ(FinishUpdate("u", 2, 2).value_or(-1), 2);
  EXPECT_EQ(RunStep(worker_, EmptyStep(1)).tokens(0).token_id(), 1 + 5);
}

// A sender that hangs, and a later sender that took its place.
TEST_F(UpdateStreamsTest, ALaterStreamTakesOver) {
  ASSERT_EQ(Begin("u", 1), absl::OkStatus());
  Stream hangs(stub_.get(), "u");
  v1::WeightChunk chunk = One(9);
  const v1::WeightChunk rest = Cut(&chunk);
  ASSERT_TRUE(hangs.Send(One(9)));
  ASSERT_TRUE(hangs.Send(chunk));
  while (control_.num_placed == 0) absl::SleepFor(absl::Milliseconds(1));  // the worker has begun to place
  Stream next(stub_.get(), "u");
  ASSERT_TRUE(next.Send(One(5)));
  ASSERT_EQ(next.Finish(), absl::OkStatus());
  hangs.Send(rest);
  EXPECT_EQ(hangs.Finish().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(FinishUpdate("u", 2, 2).value_or(-1), 2);
  EXPECT_EQ(RunStep(worker_, EmptyStep(1)).tokens(0).token_id(), 1 + 5);
}

TEST_F(UpdateStreamsTest, AFenceEndsStreamsThatWait) {
  ASSERT_EQ(Begin("u", 1), absl::OkStatus());
  Stream waits(stub_.get(), "u");
  ASSERT_TRUE(waits.Send(One(3)));
  while (control_.num_placed == 0) absl::SleepFor(absl::Milliseconds(1));
  const auto snapshot = Fence(2);
  ASSERT_TRUE(snapshot.ok()) << snapshot.status();
  EXPECT_TRUE(snapshot->weights_stale());
  EXPECT_FALSE(FromGrpcStatus(waits.writer->Finish()).ok()) << "also without the client's word";
  EXPECT_EQ(Begin("v", 1, /*epoch=*/2), absl::OkStatus());
}

TEST_F(UpdateStreamsTest, OpenStreamsAreBounded) {
  std::vector<std::unique_ptr<Stream>> open;
  for (int i = 0; i < 8; ++i) open.push_back(std::make_unique<Stream>(stub_.get(), "u"));
  for (int attempt = 0;; ++attempt) {  // the worker learns of open streams a moment later
    ASSERT_LT(attempt, 2000);
    if (absl::IsResourceExhausted(Stream(stub_.get(), "u").Finish())) break;
    absl::SleepFor(absl::Milliseconds(5));
  }
  for (const auto& stream : open) EXPECT_FALSE(stream->Finish().ok());
}

}  // namespace
}  // namespace somnus
