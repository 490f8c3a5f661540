// Operators' gRPC calls that wait, and updates whose clients send nothing more.

#include <thread>
#include <utility>
#include <vector>

#include "tests/api/grpc_services_fixture.h"

namespace somnus {
namespace {

class GrpcLifecycleTest : public GrpcServicesTest {
 protected:
  // A call of UpdateWeights.
  struct UpdateCall {
    explicit UpdateCall(v1::ControlService::Stub* control)
        : writer(control->UpdateWeights(&context, &response)) {}
    bool Begin() {
      v1::UpdateWeightsRequest message;
      message.mutable_begin();
      return writer->Write(message);
    }
    bool Send(const std::string& name, size_t bytes) {
      v1::UpdateWeightsRequest message;
      message.mutable_chunk()->set_name(name);
      message.mutable_chunk()->set_data(std::string(bytes, 'x'));
      return writer->Write(message);
    }
    grpc::ClientContext context;
    v1::UpdateWeightsResponse response;
    std::unique_ptr<grpc::ClientWriter<v1::UpdateWeightsRequest>> writer;
  };

  grpc::Status WakeUp(grpc::ClientContext* context) {
    v1::WakeUpResponse response;
    return control_->WakeUp(context, v1::WakeUpRequest(), &response);
  }
  grpc::Status AbortCall() {
    grpc::ClientContext context;
    v1::AbortCallResponse response;
    return control_->AbortCall(&context, v1::AbortCallRequest(), &response);
  }
  void ExpectOperatorsHaveAWay() {
    v1::SleepResponse slept;
    EXPECT_TRUE(Sleep(1, &slept).ok());
    EXPECT_TRUE(AbortCall().ok());
    grpc::ClientContext context;
    v1::ResumeResponse resumed;
    EXPECT_TRUE(control_->Resume(&context, v1::ResumeRequest(), &resumed).ok());
    grpc::ClientContext other;
    v1::GetStatusResponse status;
    EXPECT_TRUE(control_->GetStatus(&other, v1::GetStatusRequest(), &status).ok());
  }
  void AwaitWaking(int count) {
    while (engine_->num_waking() != count) absl::SleepFor(absl::Milliseconds(1));
  }
};

TEST_F(GrpcLifecycleTest, IdleUpdatesDoNotLockOperatorsOut) {
  std::vector<std::unique_ptr<UpdateCall>> idle;
  for (int i = 0; i < 24; ++i) idle.push_back(std::make_unique<UpdateCall>(control_.get()));
  for (const auto& call : idle) call->Begin();
  ExpectOperatorsHaveAWay();
  EXPECT_EQ(engine_->last_reload().version, 0) << "no engine has heard of one";
  int refused = 0;
  for (const auto& call : idle) {
    call->writer->WritesDone();
    refused += call->writer->Finish().error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED;
  }
  EXPECT_GT(refused, 0) << "those beyond --max-lifecycle-calls, unless others had ended before they came";
  UpdateCall again(control_.get());
  EXPECT_TRUE(again.Begin());
  EXPECT_TRUE(again.Send("a", 7));
  again.writer->WritesDone();
  EXPECT_EQ(again.writer->Finish().error_code(), grpc::StatusCode::CANCELLED) << "there is room again";
}

TEST_F(GrpcLifecycleTest, CallsOfOneKindAreBounded) {
  Start(ApiLimits{.max_lifecycle_calls = 2});
  engine_->HoldWakeUps(true);
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back([this] {
      grpc::ClientContext context;
      EXPECT_TRUE(WakeUp(&context).ok());
    });
  }
  AwaitWaking(2);
  grpc::ClientContext context;
  const grpc::Status third = WakeUp(&context);
  EXPECT_EQ(third.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(third.error_message(),
            "2 calls of WakeUp of fake are under way or wait, and no more may (--max-lifecycle-calls); "
            "status names what "
            "they wait for");
  ExpectOperatorsHaveAWay();
  engine_->HoldWakeUps(false);
  for (std::thread& thread : threads) thread.join();
  grpc::ClientContext other;
  EXPECT_TRUE(WakeUp(&other).ok());
}

TEST_F(GrpcLifecycleTest, AnEngineHearsThatTheClientHasLeft) {
  engine_->HoldWakeUps(true);
  grpc::ClientContext context;
  std::thread call([&] { EXPECT_EQ(WakeUp(&context).error_code(), grpc::StatusCode::CANCELLED); });
  AwaitWaking(1);
  context.TryCancel();
  call.join();
  AwaitWaking(0);
}

TEST_F(GrpcLifecycleTest, AnUpdateBeginsSoonOrNotAtAll) {
  Start(ApiLimits{.header_timeout = absl::Milliseconds(50)});
  UpdateCall call(control_.get());
  EXPECT_EQ(call.writer->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

TEST_F(GrpcLifecycleTest, AnUpdateWhoseTensorsDripIsGivenUp) {
  ApiLimits limits;
  limits.weight_update_timeout = absl::Milliseconds(200);
  limits.min_weight_update_bytes_per_s = int64_t{1} << 30;
  Start(limits);
  UpdateCall call(control_.get());
  EXPECT_TRUE(call.Begin());
  while (call.Send("a", 1)) absl::SleepFor(absl::Milliseconds(5));
  EXPECT_EQ(call.writer->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

TEST_F(GrpcLifecycleTest, WhatAnOperatorEndsTellsItsClient) {
  UpdateCall call(control_.get());
  EXPECT_TRUE(call.Begin());
  EXPECT_TRUE(call.Send("a", 7));
  while (engine_->chunks().empty()) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_TRUE(AbortCall().ok());
  EXPECT_EQ(engine_->num_aborted_calls(), 1);
  while (call.Send("a", 7)) absl::SleepFor(absl::Milliseconds(1));
  const grpc::Status status = call.writer->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::ABORTED);
  EXPECT_EQ(status.error_message(), kEndedByOperator);
}

// A later call of an engine with replicas has its turn once the update is no more.
TEST_F(GrpcLifecycleTest, AnUpdateThatWasEndedIsGoneBeforeItsClientNotices) {
  UpdateCall call(control_.get());
  EXPECT_TRUE(call.Begin());
  EXPECT_TRUE(call.Send("a", 7));
  while (engine_->chunks().empty()) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_EQ(engine_->num_updates(), 1);
  EXPECT_TRUE(AbortCall().ok());
  while (engine_->num_updates() > 0) absl::SleepFor(absl::Milliseconds(1));
  call.Send("a", 7);
  // On a starved machine the client's silence may have lasted for so long that the call was cancelled.
  const grpc::StatusCode code = call.writer->Finish().error_code();
  EXPECT_TRUE(code == grpc::StatusCode::ABORTED || code == grpc::StatusCode::CANCELLED) << code;
}

// A replica that hangs may hold up the end of its update for ever.
TEST_F(GrpcLifecycleTest, ASilentClientOfAnUpdateThatWasEndedIsCancelled) {
  UpdateCall call(control_.get());
  EXPECT_TRUE(call.Begin());
  EXPECT_TRUE(call.Send("a", 7));
  while (engine_->chunks().empty()) absl::SleepFor(absl::Milliseconds(1));
  engine_->HoldUpdateEnds(true);
  EXPECT_TRUE(AbortCall().ok());
  EXPECT_EQ(call.writer->Finish().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_EQ(engine_->num_updates(), 1);
  engine_->HoldUpdateEnds(false);
  while (engine_->num_updates() > 0) absl::SleepFor(absl::Milliseconds(1));
}

TEST_F(GrpcLifecycleTest, TheFirstTensorIsAnnounced) {
  UpdateCall call(control_.get());
  EXPECT_TRUE(call.Begin());
  v1::UpdateWeightsRequest message;
  message.mutable_chunk()->set_name("a");
  message.mutable_chunk()->set_dtype(v1::WEIGHT_DTYPE_BFLOAT16);
  message.mutable_chunk()->add_shape(3);
  message.mutable_chunk()->set_data("123456");
  EXPECT_TRUE(call.writer->Write(message));
  while (engine_->chunks().empty()) absl::SleepFor(absl::Milliseconds(1));
  const std::vector<v1::WeightChunk> tensors = engine_->last_reload().tensors;
  ASSERT_EQ(tensors.size(), 1u);
  message.mutable_chunk()->clear_data();
  EXPECT_EQ(tensors[0].SerializeAsString(), message.chunk().SerializeAsString());
  call.context.TryCancel();
  EXPECT_FALSE(call.writer->Finish().ok());
}

TEST_F(GrpcLifecycleTest, ASleepMayBeForced) {
  grpc::ClientContext context;
  v1::SleepRequest request;
  request.set_level(2);
  request.set_force(true);
  v1::SleepResponse response;
  EXPECT_TRUE(control_->Sleep(&context, request, &response).ok());
  EXPECT_TRUE(engine_->last_sleep().force);
}

}  // namespace
}  // namespace somnus
