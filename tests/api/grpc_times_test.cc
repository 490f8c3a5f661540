// How long a client gives its call over gRPC, and what it is told when the time is over.

#include <chrono>
#include <cmath>
#include <limits>

#include "coordinator/request/expiry.h"
#include "proto/error_details.pb.h"
#include "tests/api/grpc_services_fixture.h"

namespace somnus {
namespace {

using GrpcTimesTest = GrpcServicesTest;

TEST_F(GrpcTimesTest, TheCallsOwnDeadlineAndItsTargetReachTheEngine) {
  grpc::ClientContext context;
  context.AddMetadata("x-slo-ttft-ms", "500000");
  const MonotonicTime before = MonotonicNow();
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(1000));
  ASSERT_TRUE(Drain(inference_->Generate(&context, Request("abc", 3)).get()).ok());
  const MonotonicTime after = MonotonicNow();
  const EngineRequest times = engine_->last_request();
  // The wire has a timeout, and rounds it.
  EXPECT_GE(times.deadline, before + absl::Seconds(990));
  EXPECT_LE(times.deadline, after + absl::Seconds(1010));
  EXPECT_GE(times.first_token_by, before + absl::Seconds(500));
  EXPECT_LE(times.first_token_by, after + absl::Seconds(500));
}

TEST_F(GrpcTimesTest, TheFieldIsATargetToo) {
  v1::GenerateRequest request = Request("abc", 3);
  request.set_ttft_target_s(250.5);
  grpc::ClientContext context;
  context.AddMetadata("x-slo-ttft-ms", "1");  // the field counts
  const MonotonicTime before = MonotonicNow();
  ASSERT_TRUE(Drain(inference_->Generate(&context, request).get()).ok());
  const MonotonicTime first_token_by = engine_->last_request().first_token_by;
  EXPECT_GE(first_token_by, before + absl::Seconds(250.5));
  EXPECT_LE(first_token_by, MonotonicNow() + absl::Seconds(250.5));
}

TEST_F(GrpcTimesTest, AFieldThatIsNoTimeIsNamed) {
  for (const double target : {0.0, -1.0, -std::numeric_limits<double>::infinity(), std::nan("")}) {
    v1::GenerateRequest request = Request("abc", 3);
    request.set_ttft_target_s(target);
    const grpc::Status status = Refused(request);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    rpc::Status whole;
    ASSERT_TRUE(whole.ParseFromString(status.error_details()));
    rpc::BadRequest bad;
    ASSERT_TRUE(bad.ParseFromString(whole.details(0).value()));
    EXPECT_EQ(bad.field_violations(0).field(), "ttft_target_s");
  }
}

TEST_F(GrpcTimesTest, WithoutThemACallHasAllTheTimeItNeeds) {
  EXPECT_EQ(Text(Request("abc", 3)), "abc");
  EXPECT_EQ(engine_->last_request().deadline, absl::InfiniteDuration());
  EXPECT_EQ(engine_->last_request().first_token_by, absl::InfiniteDuration());
}

TEST_F(GrpcTimesTest, TheServersBoundHolds) {
  Start(ApiLimits{.max_request_timeout = absl::Seconds(50)});
  const MonotonicTime before = MonotonicNow();
  EXPECT_EQ(Text(Request("abc", 3)), "abc");
  EXPECT_GE(engine_->last_request().deadline, before + absl::Seconds(50));
  EXPECT_LE(engine_->last_request().deadline, MonotonicNow() + absl::Seconds(50));
}

TEST_F(GrpcTimesTest, AMalformedTargetIsNamed) {
  for (const char* target : {"0", "-1", "inf", "nan", "soon"}) {
    grpc::ClientContext context;
    context.AddMetadata("x-slo-ttft-ms", target);
    const grpc::Status status = inference_->Generate(&context, Request("abc", 3))->Finish();
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    rpc::Status whole;
    ASSERT_TRUE(whole.ParseFromString(status.error_details()));
    ASSERT_EQ(whole.details_size(), 1);
    rpc::BadRequest bad;
    ASSERT_TRUE(bad.ParseFromString(whole.details(0).value()));
    EXPECT_EQ(bad.field_violations(0).field(), "X-SLO-TTFT-Ms");
  }
}

TEST_F(GrpcTimesTest, ACallThatIsNotDoneInTimeSaysSo) {
  engine_->FailAfter(2, ExpiryError(ExpiryCause::kDeadlineRunning));
  EXPECT_EQ(Outcome(Request("abc", 9)), grpc::StatusCode::DEADLINE_EXCEEDED);
}

TEST_F(GrpcTimesTest, ACallThatIsRefusedForItsFirstTokenMayComeAgain) {
  engine_->FailAfter(0, ExpiryError(ExpiryCause::kTtftEstimate));
  const grpc::Status status = Refused(Request("abc", 9));
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  rpc::Status whole;
  ASSERT_TRUE(whole.ParseFromString(status.error_details()));
  ASSERT_EQ(whole.details_size(), 2);
  EXPECT_EQ(whole.details(1).type_url(), "type.googleapis.com/google.rpc.RetryInfo");
}

}  // namespace
}  // namespace somnus
