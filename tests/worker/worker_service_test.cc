// The gRPC service of a worker, over an in-process channel and a fake model.

#include "worker/worker_service.h"

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "absl/time/clock.h"
#include "proto/status.h"
#include "proto/worker.grpc.pb.h"
#include "tests/fakes/unique_name.h"
#include "tests/worker/fake_parts.h"

namespace somnus {
namespace {

class WorkerServiceTest : public testing::Test {
 protected:
  WorkerServiceTest()
      : worker_({.num_threads = 1}, FakeParts(&control_)),
        service_(MakeWorkerService(&worker_, [this] { ++shutdowns_; })) {
    grpc::ServerBuilder builder;
    builder.RegisterService(service_.get());
    server_ = builder.BuildAndStart();
    stub_ = v1::WorkerService::NewStub(server_->InProcessChannel({}));
    EXPECT_TRUE(Fence(1).ok());
  }
  ~WorkerServiceTest() override { server_->Shutdown(); }

  grpc::Status Load(std::vector<v1::LoadModelEvent>* events) {
    grpc::ClientContext context;
    v1::LoadModelRequest request = LoadRequest();
    request.set_operation_id(++last_operation_);
    auto reader = stub_->LoadModel(&context, request);
    v1::LoadModelEvent event;
    while (reader->Read(&event)) events->push_back(event);
    return reader->Finish();
  }
  absl::Status Fence(int64_t epoch, v1::WorkerSnapshot* snapshot = nullptr) {
    grpc::ClientContext context;
    v1::FenceRequest request;
    request.set_group_epoch(epoch);
    v1::FenceResponse response;
    const grpc::Status status = stub_->Fence(&context, request, &response);
    if (snapshot != nullptr) *snapshot = response.snapshot();
    return FromGrpcStatus(status);
  }
  // Stamps the request with a new operation id.
  template <typename Call, typename Request, typename Response>
  absl::Status Operate(const Call& call, Request request, Response* response) {
    request.set_operation_id(++last_operation_);
    grpc::ClientContext context;
    return FromGrpcStatus((stub_.get()->*call)(&context, request, response));
  }
  absl::Status Join(int64_t epoch) {
    v1::JoinGroupResponse response;
    return Operate(&v1::WorkerService::Stub::JoinGroup, JoinRequest(0, 1, "", epoch), &response);
  }
  void MakeAwake() {
    std::vector<v1::LoadModelEvent> events;
    ASSERT_TRUE(Load(&events).ok());
    ASSERT_TRUE(Join(1).ok());
    v1::AllocateKvCacheResponse response;
    const absl::Status status = Operate(&v1::WorkerService::Stub::AllocateKvCache, KvRequest(), &response);
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_EQ(response.weights_version(), 1);
  }

  FakeModelControl control_;
  absl::Notification hold_;  // lives as long as the service, whose threads wait for the notification
  std::atomic<int> shutdowns_{0};
  Worker worker_;
  std::unique_ptr<grpc::Service> service_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<v1::WorkerService::Stub> stub_;
  uint64_t last_operation_ = 0;
};

TEST_F(WorkerServiceTest, LoadStreamsProgressThenDone) {
  std::vector<v1::LoadModelEvent> events;
  ASSERT_TRUE(Load(&events).ok());
  ASSERT_GE(events.size(), 2u);
  EXPECT_FALSE(events.front().done());
  EXPECT_GT(events.front().bytes_total(), 0);
  EXPECT_TRUE(events.back().done());
  EXPECT_GT(events.back().kv_block_bytes(), 0);
  // A second load is refused, with the state in the message.
  events.clear();
  const grpc::Status again = Load(&events);
  EXPECT_EQ(again.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(again.error_message(), "LoadModel: the worker is loaded");
}

// The id is complete, or empty where this machine has no NCCL, and can be had before anything is loaded.
TEST_F(WorkerServiceTest, NewGroupAnswersNcclsUniqueId) {
  grpc::ClientContext context;
  v1::NewGroupResponse response;
  v1::NewGroupRequest request;
  request.set_group_epoch(1);
  const grpc::Status status = stub_->NewGroup(&context, request, &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_TRUE(response.nccl_unique_id().empty() || response.nccl_unique_id().size() == 128);
  std::vector<v1::LoadModelEvent> events;
  EXPECT_TRUE(Load(&events).ok());
}

TEST_F(WorkerServiceTest, LoadErrorIsTheStatus) {
  control_.open_error = absl::NotFoundError("no such directory: fake");
  std::vector<v1::LoadModelEvent> events;
  const grpc::Status status = Load(&events);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(status.error_message(), "no such directory: fake");
}

TEST_F(WorkerServiceTest, StepsAreAnsweredInOrderHoweverManyAreSentAhead) {
  MakeAwake();
  grpc::ClientContext context;
  auto stream = stub_->Execute(&context);
  constexpr int kSteps = 100;
  std::thread writer(
      [&] {  // both directions are bounded: writing everything before reading would block for ever
        for (int i = 1; i <= kSteps; ++i) EXPECT_TRUE(stream->Write(EmptyStep(i)));
      });
  v1::StepReply reply;
  for (int i = 1; i <= kSteps; ++i) {
    ASSERT_TRUE(stream->Read(&reply));
    EXPECT_EQ(reply.step_id(), i);
    EXPECT_EQ(reply.error_code(), 0);
    EXPECT_EQ(reply.tokens(0).token_id(), i + 7);
  }
  writer.join();
  // One stream in an epoch: two coordinators would corrupt each other's batch state.
  grpc::ClientContext second_context;
  auto second = stub_->Execute(&second_context);
  ASSERT_TRUE(second->Write(EmptyStep(kSteps + 1)));
  ASSERT_TRUE(second->Read(&reply));
  EXPECT_EQ(reply.error_message(), "Execute: a step stream of epoch 1 is already open");
  EXPECT_FALSE(second->Read(&reply));
  EXPECT_EQ(second->Finish().error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  stream->WritesDone();
  EXPECT_FALSE(stream->Read(&reply));
  EXPECT_TRUE(stream->Finish().ok());
}

TEST_F(WorkerServiceTest, StepErrorIsAnsweredAndTheStreamLives) {
  MakeAwake();
  grpc::ClientContext context;
  auto stream = stub_->Execute(&context);
  control_.execute_error = absl::InternalError("kernel failed");
  v1::StepReply reply;
  for (int i = 1; i <= 3; ++i) {
    ASSERT_TRUE(stream->Write(EmptyStep(i)));
    ASSERT_TRUE(stream->Read(&reply));
    EXPECT_EQ(reply.step_id(), i);
    EXPECT_EQ(reply.error_code(), static_cast<int>(absl::StatusCode::kInternal));
    EXPECT_EQ(reply.error_message(), "kernel failed");
  }
  stream->WritesDone();
  EXPECT_TRUE(stream->Finish().ok());
  grpc::ClientContext status_context;
  v1::WorkerStatusResponse status;
  v1::WorkerStatusRequest status_request;
  status_request.set_group_epoch(1);
  ASSERT_TRUE(stub_->GetStatus(&status_context, status_request, &status).ok());
  EXPECT_EQ(status.state(), "failed");
}

TEST_F(WorkerServiceTest, CancelledStreamMakesRoomForTheNext) {
  MakeAwake();
  {
    grpc::ClientContext context;
    auto stream = stub_->Execute(&context);
    stream->Write(EmptyStep(1));
    context.TryCancel();
    stream->Finish();
  }
  for (int attempt = 0;; ++attempt) {  // the worker learns of the cancellation a moment later
    ASSERT_LT(attempt, 1000);
    grpc::ClientContext context;
    auto stream = stub_->Execute(&context);
    stream->Write(EmptyStep(2));
    v1::StepReply reply;
    const bool answered = stream->Read(&reply) && reply.error_code() == 0;
    stream->WritesDone();
    stream->Finish();
    if (answered) break;
    absl::SleepFor(absl::Milliseconds(5));
  }
}

// The caller did not get the reply and calls again.
TEST_F(WorkerServiceTest, ARetriedPhaseIsDoneOnce) {
  MakeAwake();
  const v1::PrepareRequest prepare = PrepareOf(TransitionOf(1), 77);
  v1::CommitRequest commit = CommitOf(77);
  commit.set_operation_id(78);
  for (int i = 0; i < 2; ++i) {
    grpc::ClientContext context;
    v1::PrepareResponse response;
    EXPECT_EQ(FromGrpcStatus(stub_->Prepare(&context, prepare, &response)), absl::OkStatus());
    EXPECT_EQ(response.weights_version(), 1);
  }
  for (int i = 0; i < 2; ++i) {
    grpc::ClientContext context;
    v1::CommitResponse response;
    EXPECT_EQ(FromGrpcStatus(stub_->Commit(&context, commit, &response)), absl::OkStatus());
    EXPECT_EQ(response.tags().at("kv_cache").freed_bytes(), 64 << 16) << "also when it is asked again";
    EXPECT_EQ(response.weights_version(), 1);
  }
  v1::AbortRequest abort = AbortOf(77);
  abort.set_operation_id(77);
  v1::AbortResponse aborted;
  grpc::ClientContext context, zero_context;
  EXPECT_EQ(FromGrpcStatus(stub_->Abort(&context, abort, &aborted)),
            absl::InvalidArgumentError("operation_id: 77 is of a Prepare, not of a Abort"));
  abort.set_operation_id(0);
  EXPECT_EQ(FromGrpcStatus(stub_->Abort(&zero_context, abort, &aborted)),
            absl::InvalidArgumentError("operation_id: must not be 0"));
  EXPECT_EQ(worker_.GetStatus().state(), "asleep");
}

TEST_F(WorkerServiceTest, ARetriedLoadReturnsItsLastEventAlone) {
  std::vector<v1::LoadModelEvent> events;
  ASSERT_TRUE(Load(&events).ok());
  --last_operation_;
  std::vector<v1::LoadModelEvent> again;
  ASSERT_TRUE(Load(&again).ok());
  ASSERT_EQ(again.size(), 1u);
  EXPECT_EQ(again[0].SerializeAsString(), events.back().SerializeAsString());
  EXPECT_EQ(control_.opens, 1);
}

TEST_F(WorkerServiceTest, AFenceEndsTheStreamAndTheNextEpochHasItsOwn) {
  MakeAwake();
  grpc::ClientContext context;
  const auto stream = stub_->Execute(&context);
  v1::StepReply reply;
  ASSERT_TRUE(stream->Write(EmptyStep(1)) && stream->Read(&reply));
  v1::WorkerSnapshot snapshot;
  ASSERT_TRUE(Fence(2, &snapshot).ok());
  EXPECT_EQ(snapshot.state(), "awake");
  EXPECT_EQ(snapshot.last_step_id(), 1);
  ASSERT_TRUE(Join(2).ok());
  grpc::ClientContext next_context;
  const auto next = stub_->Execute(&next_context);
  ASSERT_TRUE(next->Write(EmptyStep(2, 2)) && next->Read(&reply));
  EXPECT_EQ(reply.error_message(), "");
  EXPECT_FALSE(stream->Read(&reply));
  EXPECT_FALSE(stream->Finish().ok());
  next->WritesDone();
  EXPECT_TRUE(next->Finish().ok());
}

// The old stream's step is still under way when the new epoch's stream opens.
TEST_F(WorkerServiceTest, AStreamMayOpenWhileAnOlderOneIsEnding) {
  MakeAwake();
  grpc::ClientContext context;
  const auto stream = stub_->Execute(&context);
  control_.hold_reply = &hold_;
  ASSERT_TRUE(stream->Write(EmptyStep(1)));
  while (control_.steps == 0) absl::SleepFor(absl::Milliseconds(1));
  ASSERT_TRUE(Fence(2).ok()) << "this runner does not wait for replies";
  ASSERT_TRUE(Join(2).ok());
  grpc::ClientContext next_context;
  const auto next = stub_->Execute(&next_context);
  v1::StepReply reply;
  ASSERT_TRUE(next->Write(EmptyStep(2, 2)) && next->Read(&reply));
  EXPECT_EQ(reply.error_message(), "");
  hold_.Notify();
  EXPECT_FALSE(stream->Finish().ok());
  next->WritesDone();
  EXPECT_TRUE(next->Finish().ok());
}

TEST_F(WorkerServiceTest, AStepOfAnotherEpochEndsItsStream) {
  MakeAwake();
  grpc::ClientContext context;
  const auto stream = stub_->Execute(&context);
  v1::StepReply reply;
  ASSERT_TRUE(stream->Write(EmptyStep(1)) && stream->Read(&reply));
  EXPECT_EQ(reply.error_code(), 0);
  EXPECT_EQ(reply.weights_version(), 1);
  ASSERT_TRUE(stream->Write(EmptyStep(2, 7)) && stream->Read(&reply));
  const std::string message = "group_epoch: the request is of epoch 7, this worker is in epoch 1";
  EXPECT_EQ(reply.step_id(), 2);
  EXPECT_EQ(reply.error_code(), static_cast<int>(absl::StatusCode::kFailedPrecondition));
  EXPECT_EQ(reply.error_message(), message);
  EXPECT_FALSE(stream->Read(&reply));
  EXPECT_EQ(FromGrpcStatus(stream->Finish()), absl::FailedPreconditionError(message));
  EXPECT_EQ(worker_.GetStatus().state(), "awake");
}

TEST_F(WorkerServiceTest, CallsOfAnotherEpochAreRefused) {
  ASSERT_TRUE(Fence(5).ok());
  const auto refused =
      absl::FailedPreconditionError("group_epoch: the request is of epoch 4, this worker is in epoch 5");
  {
    grpc::ClientContext context;
    v1::WorkerStatusRequest request;
    request.set_group_epoch(4);
    v1::WorkerStatusResponse response;
    EXPECT_EQ(FromGrpcStatus(stub_->GetStatus(&context, request, &response)), refused);
  }
  {
    grpc::ClientContext context;
    v1::WorkerShutdownRequest request;
    request.set_group_epoch(4);
    v1::WorkerShutdownResponse response;
    EXPECT_EQ(FromGrpcStatus(stub_->Shutdown(&context, request, &response)), refused);
  }
  EXPECT_EQ(Join(4), refused);
  EXPECT_TRUE(absl::IsFailedPrecondition(Fence(4)));
  EXPECT_EQ(shutdowns_, 0);
}

// This rank of two computes a step that the other rank never gets. When the coordinator gives up, this rank
// must not wait for the other rank.
TEST(WorkerServiceGroupTest, CancelledStreamEndsTheCollectiveUnderWay) {
  FakeModelControl controls[2];
  Worker workers[2] = {{{.num_threads = 1}, FakeParts(&controls[0])},
                       {{.num_threads = 1}, FakeParts(&controls[1])}};
  const std::string group = UniqueName();
  std::thread other([&] { EXPECT_TRUE(MakeAwake(workers[1], 1, 2, group).ok()); });
  const absl::Status awake = MakeAwake(workers[0], 0, 2, group);
  other.join();
  ASSERT_TRUE(awake.ok()) << awake;
  const auto service = MakeWorkerService(&workers[0], [] {});
  grpc::ServerBuilder builder;
  builder.RegisterService(service.get());
  const auto server = builder.BuildAndStart();
  const auto stub = v1::WorkerService::NewStub(server->InProcessChannel({}));
  grpc::ClientContext context;
  const auto stream = stub->Execute(&context);
  ASSERT_TRUE(stream->Write(EmptyStep(1)));
  while (controls[0].steps == 0) absl::SleepFor(absl::Milliseconds(1));  // in the collective, or nearly
  EXPECT_EQ(workers[0].GetStatus().state(), "awake");
  context.TryCancel();
  stream->Finish();
  // The collective's own timeout is minutes.
  EXPECT_TRUE(workers[0].WaitIdle(absl::Seconds(20)));
  EXPECT_EQ(workers[0].GetStatus().state(), "failed");
  server->Shutdown();
}

TEST_F(WorkerServiceTest, SleepWakeAndShutdown) {
  MakeAwake();
  v1::PlanRequest plan;
  plan.set_group_epoch(1);
  for (const int level : {1, 0}) {
    *plan.mutable_transition() = TransitionOf(level);
    grpc::ClientContext context;
    v1::PlanResponse planned;
    ASSERT_TRUE(stub_->Plan(&context, plan, &planned).ok());
    EXPECT_EQ(planned.release_bytes_by_tag().size(), level == 1 ? 3u : 0u);
    EXPECT_EQ(planned.map_bytes_by_tag().size(), level == 0 ? 3u : 0u);
    v1::PrepareResponse prepared;
    ASSERT_TRUE(
        Operate(&v1::WorkerService::Stub::Prepare, PrepareOf(TransitionOf(level), 0), &prepared).ok());
    v1::CommitResponse committed;
    ASSERT_TRUE(Operate(&v1::WorkerService::Stub::Commit, CommitOf(last_operation_), &committed).ok());
    EXPECT_EQ(committed.tags().at("kv_cache").resident_bytes(), level == 1 ? 0 : 64 << 16);
    EXPECT_EQ(committed.weights_version(), 1);
  }
  grpc::ClientContext context;
  v1::WorkerShutdownRequest request;
  request.set_group_epoch(1);
  v1::WorkerShutdownResponse response;
  ASSERT_TRUE(stub_->Shutdown(&context, request, &response).ok());
  EXPECT_EQ(shutdowns_, 1);
}

}  // namespace
}  // namespace somnus
