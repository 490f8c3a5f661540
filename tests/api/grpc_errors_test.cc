// Who may call which gRPC service, and what refusals tell a program.

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "proto/error_details.pb.h"
#include "proto/missing_memory.h"
#include "proto/status.h"
#include "tests/api/grpc_services_fixture.h"

namespace somnus {
namespace {

using GrpcErrorsTest = GrpcServicesTest;

// The first detail of `status`, which must be a google.rpc.NAME of `Detail`'s name.
template <typename Detail>
Detail DetailOf(const grpc::Status& status) {
  rpc::Status whole;
  Detail detail;
  EXPECT_TRUE(whole.ParseFromString(status.error_details()));
  EXPECT_EQ(whole.code(), status.error_code());
  EXPECT_EQ(whole.message(), status.error_message());
  if (whole.details_size() != 1) {
    ADD_FAILURE() << whole.details_size() << " details";
    return detail;
  }
  EXPECT_EQ(whole.details(0).type_url(), "type.googleapis.com/google.rpc." + Detail::descriptor()->name());
  EXPECT_TRUE(detail.ParseFromString(whole.details(0).value()));
  return detail;
}

TEST_F(GrpcErrorsTest, ABadFieldIsADetail) {
  v1::GenerateRequest request = Request("abc", 3);
  request.mutable_sampling()->set_top_p(2);
  const grpc::Status status = Refused(request);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  const auto bad = DetailOf<rpc::BadRequest>(status);
  ASSERT_EQ(bad.field_violations_size(), 1);
  EXPECT_EQ(bad.field_violations(0).field(), "top_p");
  EXPECT_TRUE(absl::StrContains(bad.field_violations(0).description(), "top_p"));
}

TEST_F(GrpcErrorsTest, AnUnknownModelIsNamedByEveryCall) {
  v1::GenerateRequest request = Request("abc", 5);
  request.set_model("other");
  const std::string missing = Refused(request).error_message();
  grpc::ClientContext status_context, sleep_context;
  v1::GetStatusRequest status;
  status.set_model("other");
  v1::GetStatusResponse status_response;
  EXPECT_EQ(control_->GetStatus(&status_context, status, &status_response).error_message(), missing);
  v1::SleepRequest sleep;
  sleep.set_model("other");
  v1::SleepResponse sleep_response;
  EXPECT_EQ(control_->Sleep(&sleep_context, sleep, &sleep_response).error_message(), missing);
}

TEST_F(GrpcErrorsTest, AFullQueueSaysWhenToTryAgain) {
  engine_ = std::make_shared<FakeEngine>(absl::Milliseconds(1), /*max_open=*/0);
  Start(ApiLimits());
  const grpc::Status status = Refused(Request("abc", 3));
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(DetailOf<rpc::RetryInfo>(status).retry_delay().seconds(), 1);
}

TEST_F(GrpcErrorsTest, AnEngineThatDoesNotServeSaysInWhichStateItIs) {
  engine_->set_state(EngineState::kDraining);
  const grpc::Status status = Refused(Request("abc", 3));
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  const auto info = DetailOf<rpc::ErrorInfo>(status);
  EXPECT_EQ(info.reason(), "DRAINING");
  EXPECT_EQ(info.domain(), "somnus");
}

TEST_F(GrpcErrorsTest, ARefusalOfASleepingEngineSaysWhyAndWhenToTryAgain) {
  engine_->set_state(EngineState::kAsleep);
  engine_->set_submit_status(absl::FailedPreconditionError("The engine is asleep; requests are refused."));
  const grpc::Status status = Refused(Request("abc", 3));
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  rpc::Status whole;
  ASSERT_TRUE(whole.ParseFromString(status.error_details()));
  ASSERT_EQ(whole.details_size(), 2);
  rpc::ErrorInfo info;
  ASSERT_TRUE(info.ParseFromString(whole.details(0).value()));
  EXPECT_EQ(info.reason(), "ASLEEP");
  rpc::RetryInfo retry;
  ASSERT_TRUE(retry.ParseFromString(whole.details(1).value()));
  EXPECT_EQ(retry.retry_delay().seconds(), 1);
}

TEST_F(GrpcErrorsTest, AWakeUpThatLacksMemorySaysHowMuchAndWorksLater) {
  engine_->set_state(EngineState::kAsleep);
  v1::MissingMemory missing;
  for (int rank = 0; rank < 100; ++rank) {
    v1::MissingMemory::Shortage* shortage = missing.add_shortages();
    shortage->set_rank(rank);
    shortage->set_tag("kv_cache");
    shortage->set_missing_bytes((int64_t{1} << 40) + rank);
  }
  engine_->set_wake_status(WithMissing(absl::ResourceExhaustedError("no memory"), missing));
  const auto wake = [&] {
    grpc::ClientContext context;
    v1::WakeUpResponse response;
    return control_->WakeUp(&context, {}, &response);
  };
  const grpc::Status status = wake();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(status.error_message(), "no memory");
  const v1::MissingMemory shown = MissingOf(FromGrpcStatus(status));
  ASSERT_EQ(shown.shortages_size(), 64) << "a trailer has room for so many";
  EXPECT_EQ(shown.shortages(0).rank(), 36) << "those of which most is missing";
  EXPECT_EQ(shown.shortages(63).rank(), 99);
  EXPECT_EQ(shown.shortages(63).missing_bytes(), (int64_t{1} << 40) + 99);
  rpc::Status whole;
  ASSERT_TRUE(whole.ParseFromString(status.error_details()));
  ASSERT_EQ(whole.details_size(), 2);
  rpc::RetryInfo retry;
  ASSERT_TRUE(retry.ParseFromString(whole.details(1).value()));
  EXPECT_EQ(retry.retry_delay().seconds(), 1);
  engine_->set_wake_status(absl::OkStatus());
  EXPECT_TRUE(wake().ok());
}

TEST_F(GrpcErrorsTest, AModelWithoutRoomSaysWhenToTryAgain) {
  engine_->set_state(EngineState::kAsleep);
  engine_->set_wake_status(absl::UnavailableError("no room within 2m"));
  grpc::ClientContext context;
  v1::WakeUpResponse response;
  const grpc::Status status = control_->WakeUp(&context, {}, &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  rpc::Status whole;
  ASSERT_TRUE(whole.ParseFromString(status.error_details()));
  ASSERT_EQ(whole.details_size(), 2);
  rpc::ErrorInfo info;
  ASSERT_TRUE(info.ParseFromString(whole.details(0).value()));
  EXPECT_EQ(info.reason(), "ASLEEP");
  EXPECT_EQ(whole.details(1).type_url(), "type.googleapis.com/google.rpc.RetryInfo");
}

TEST_F(GrpcErrorsTest, EachServiceIsAtItsOwnListenerAlone) {
  grpc::Status status = CallWithBytes(channel_, "/somnus.v1.ControlService/Sleep", "");
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNIMPLEMENTED);
  status = CallWithBytes(control_channel_, "/somnus.v1.InferenceService/Generate", "");
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNIMPLEMENTED);
  EXPECT_EQ(engine_->state(), EngineState::kAwake);
}

TEST_F(GrpcErrorsTest, EachServiceHasItsOwnKey) {
  options_.api_keys = ApiKeys("clients");
  options_.admin_api_keys = ApiKeys("operators");
  Start(ApiLimits());
  const auto code = [](const char* key, auto call) {
    grpc::ClientContext context;
    if (*key != '\0') context.AddMetadata("authorization", absl::StrCat("Bearer ", key));
    return call(&context).error_code();
  };
  const auto list = [this](grpc::ClientContext* context) {
    v1::ListModelsResponse response;
    return inference_->ListModels(context, v1::ListModelsRequest(), &response);
  };
  const auto sleep = [this](grpc::ClientContext* context) {
    v1::SleepRequest request;
    request.set_level(1);
    v1::SleepResponse response;
    return control_->Sleep(context, request, &response);
  };
  for (const char* key : {"", "operators", "clientsx"}) {
    EXPECT_EQ(code(key, list), grpc::StatusCode::UNAUTHENTICATED) << key;
  }
  for (const char* key : {"", "clients"})
    EXPECT_EQ(code(key, sleep), grpc::StatusCode::UNAUTHENTICATED) << key;
  EXPECT_EQ(engine_->state(), EngineState::kAwake);
  EXPECT_EQ(code("clients", list), grpc::StatusCode::OK);
  EXPECT_EQ(code("operators", sleep), grpc::StatusCode::OK);
}

TEST_F(GrpcErrorsTest, OperatorsMessagesAreSmall) {
  // The listener takes chunks of weights, too; what is larger is not even parsed.
  for (const size_t bytes : {65u << 10, 5u << 20}) {
    v1::WakeUpRequest request;
    request.add_tags(std::string(bytes, 'x'));
    const grpc::Status status =
        CallWithBytes(control_channel_, "/somnus.v1.ControlService/WakeUp", request.SerializeAsString());
    EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED) << bytes;
  }
}

}  // namespace
}  // namespace somnus
