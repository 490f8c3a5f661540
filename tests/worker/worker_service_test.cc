// The gRPC service of a worker, over an in-process channel and a fake model.

#include "worker/worker_service.h"

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "proto/worker.grpc.pb.h"
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
  }
  ~WorkerServiceTest() override { server_->Shutdown(); }

  grpc::Status Load(std::vector<v1::LoadModelEvent>* events) {
    grpc::ClientContext context;
    auto reader = stub_->LoadModel(&context, LoadRequest());
    v1::LoadModelEvent event;
    while (reader->Read(&event)) events->push_back(event);
    return reader->Finish();
  }
  void MakeAwake() {
    std::vector<v1::LoadModelEvent> events;
    ASSERT_TRUE(Load(&events).ok());
    grpc::ClientContext context;
    v1::AllocateKvCacheRequest request;
    *request.mutable_kv_cache() = KvConfig();
    v1::AllocateKvCacheResponse response;
    ASSERT_TRUE(stub_->AllocateKvCache(&context, request, &response).ok());
  }

  FakeModelControl control_;
  std::atomic<int> shutdowns_{0};
  Worker worker_;
  std::unique_ptr<grpc::Service> service_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<v1::WorkerService::Stub> stub_;
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
  const grpc::Status status = stub_->NewGroup(&context, v1::NewGroupRequest(), &response);
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
        v1::StepRequest request;
        for (int i = 1; i <= kSteps; ++i) {
          request.set_step_id(i);
          EXPECT_TRUE(stream->Write(request));
        }
      });
  v1::StepReply reply;
  for (int i = 1; i <= kSteps; ++i) {
    ASSERT_TRUE(stream->Read(&reply));
    EXPECT_EQ(reply.step_id(), i);
    EXPECT_EQ(reply.error_code(), 0);
    EXPECT_EQ(reply.tokens(0).token_id(), i + 7);
  }
  writer.join();
  // One stream at a time: two coordinators would corrupt each other's batch state.
  grpc::ClientContext second_context;
  auto second = stub_->Execute(&second_context);
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
  v1::StepRequest request;
  v1::StepReply reply;
  for (int i = 1; i <= 3; ++i) {
    request.set_step_id(i);
    ASSERT_TRUE(stream->Write(request));
    ASSERT_TRUE(stream->Read(&reply));
    EXPECT_EQ(reply.step_id(), i);
    EXPECT_EQ(reply.error_code(), static_cast<int>(absl::StatusCode::kInternal));
    EXPECT_EQ(reply.error_message(), "kernel failed");
  }
  stream->WritesDone();
  EXPECT_TRUE(stream->Finish().ok());
  grpc::ClientContext status_context;
  v1::WorkerStatusResponse status;
  ASSERT_TRUE(stub_->GetStatus(&status_context, {}, &status).ok());
  EXPECT_EQ(status.state(), "failed");
}

TEST_F(WorkerServiceTest, CancelledStreamMakesRoomForTheNext) {
  MakeAwake();
  {
    grpc::ClientContext context;
    auto stream = stub_->Execute(&context);
    v1::StepRequest request;
    request.set_step_id(1);
    stream->Write(request);
    context.TryCancel();
    stream->Finish();
  }
  for (int attempt = 0;; ++attempt) {  // the worker learns of the cancellation a moment later
    ASSERT_LT(attempt, 1000);
    grpc::ClientContext context;
    auto stream = stub_->Execute(&context);
    v1::StepRequest request;
    request.set_step_id(2);
    stream->Write(request);
    v1::StepReply reply;
    const bool answered = stream->Read(&reply);
    stream->WritesDone();
    stream->Finish();
    if (answered) break;
    absl::SleepFor(absl::Milliseconds(5));
  }
}

// Of two ranks, this one computes a step that the other never gets. When the coordinator gives up, it must
// not wait for the other rank.
TEST(WorkerServiceGroupTest, CancelledStreamEndsTheCollectiveUnderWay) {
  FakeModelControl controls[2];
  Worker workers[2] = {{{.num_threads = 1}, FakeParts(&controls[0])},
                       {{.num_threads = 1}, FakeParts(&controls[1])}};
  const std::string group = absl::StrCat("service-", getpid(), "-", absl::ToUnixNanos(absl::Now()));
  std::thread other([&] {
    EXPECT_TRUE(workers[1].LoadModel(LoadRequest(1, 2, group), [](int64_t, int64_t) {}).ok());
    EXPECT_TRUE(workers[1].AllocateKvCache(KvConfig()).ok());
  });
  const bool awake = workers[0].LoadModel(LoadRequest(0, 2, group), [](int64_t, int64_t) {}).ok() &&
                     workers[0].AllocateKvCache(KvConfig()).ok();
  other.join();
  ASSERT_TRUE(awake);
  const auto service = MakeWorkerService(&workers[0], [] {});
  grpc::ServerBuilder builder;
  builder.RegisterService(service.get());
  const auto server = builder.BuildAndStart();
  const auto stub = v1::WorkerService::NewStub(server->InProcessChannel({}));
  grpc::ClientContext context;
  const auto stream = stub->Execute(&context);
  v1::StepRequest request;
  request.set_step_id(1);
  ASSERT_TRUE(stream->Write(request));
  while (controls[0].steps == 0) absl::SleepFor(absl::Milliseconds(1));  // it is in the collective, or nearly
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
  grpc::ClientContext sleep_context, wake_context, shutdown_context;
  v1::WorkerSleepRequest sleep;
  sleep.set_level(1);
  v1::WorkerSleepResponse freed;
  ASSERT_TRUE(stub_->Sleep(&sleep_context, sleep, &freed).ok());
  EXPECT_EQ(freed.freed_bytes_by_tag().size(), 3u);
  v1::WorkerWakeUpResponse mapped;
  ASSERT_TRUE(stub_->WakeUp(&wake_context, {}, &mapped).ok());
  EXPECT_EQ(mapped.mapped_bytes_by_tag().at("kv_cache"), 64 << 16);
  v1::WorkerShutdownResponse response;
  ASSERT_TRUE(stub_->Shutdown(&shutdown_context, {}, &response).ok());
  EXPECT_EQ(shutdowns_, 1);
}

}  // namespace
}  // namespace somnus
