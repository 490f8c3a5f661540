// The time that a client gives a call over gRPC, the call's user, the record of the call; and embeddings.

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <limits>
#include <map>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "coordinator/http/api_key.h"
#include "coordinator/request/expiry.h"
#include "proto/error_details.pb.h"
#include "tests/api/grpc_services_fixture.h"
#include "tests/api/recorded_requests.h"

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
  // The wire has a timeout, which is rounded.
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

using GrpcUserTest = GrpcServicesTest;

TEST_F(GrpcUserTest, TheKeyNamesTheUser) {
  const v1::GenerateRequest request = Request("abc", 2);
  EXPECT_EQ(Text(request), "ab");
  EXPECT_EQ(engine_->last_request().user, "");
  grpc::ClientContext context;
  context.AddMetadata("authorization", "Bearer one");
  EXPECT_TRUE(Drain(inference_->Generate(&context, request).get()).ok());
  EXPECT_EQ(engine_->last_request().user, UserOfKey("Bearer one"));
}

TEST_F(GrpcUserTest, TheFieldNamesTheUserWhoeverCalls) {
  v1::GenerateRequest request = Request("abc", 2);
  request.set_user("two");
  grpc::ClientContext context;
  context.AddMetadata("authorization", "Bearer one");
  EXPECT_TRUE(Drain(inference_->Generate(&context, request).get()).ok());
  EXPECT_EQ(engine_->last_request().user, UserOfField("two"));
}

class GrpcRecordsTest : public GrpcServicesTest {
 protected:
  void SetUp() override {
    options_.recorder = recorded_;
    GrpcServicesTest::SetUp();
  }

  const std::shared_ptr<RecordedRequests> recorded_ = std::make_shared<RecordedRequests>();
};

TEST_F(GrpcRecordsTest, ACallOfGenerate) {
  v1::GenerateRequest request = Request("abc", 5);
  request.set_request_id("mine");
  grpc::ClientContext context;
  context.AddMetadata("traceparent", "00-a");
  context.AddMetadata("x-request-id", "header");
  EXPECT_TRUE(Drain(inference_->Generate(&context, request).get()).ok());
  const RequestRecord record = recorded_->Next();
  EXPECT_EQ(record.protocol, "grpc");
  EXPECT_TRUE(absl::StartsWith(record.client, "127.0.0.1:")) << record.client;
  EXPECT_EQ(record.traceparent, "00-a");
  EXPECT_EQ(record.request_id, "header");
  EXPECT_EQ(record.status, 0);
  EXPECT_TRUE(record.generates);
  ASSERT_TRUE(record.summary.has_value());
  EXPECT_EQ(record.summary->response_id, "mine");
  EXPECT_EQ(record.summary->prompt_tokens, 3);
  EXPECT_EQ(record.summary->completion_tokens, 5);
  EXPECT_EQ(record.summary->finish_reason, "length");
}

TEST_F(GrpcRecordsTest, ARefusedCall) {
  v1::GenerateRequest request = Request("abc", 5);
  request.mutable_sampling()->set_temperature(-1);
  EXPECT_EQ(Outcome(request), grpc::StatusCode::INVALID_ARGUMENT);
  const RequestRecord record = recorded_->Next();
  EXPECT_EQ(record.status, grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_FALSE(record.summary.has_value());
}

class GrpcEmbedTest : public GrpcServicesTest {
 protected:
  static v1::EmbedRequest Texts(const std::vector<std::string>& texts) {
    v1::EmbedRequest request;
    for (const std::string& text : texts) request.add_inputs()->set_text(text);
    request.set_normalize(false);
    return request;
  }
  // The vectors by index; the last response alone has the usage.
  std::map<int32_t, std::vector<float>> Vectors(const v1::EmbedRequest& request, v1::Usage* usage = nullptr) {
    grpc::ClientContext context;
    const auto reader = inference_->Embed(&context, request);
    std::map<int32_t, std::vector<float>> vectors;
    bool ended = false;
    for (v1::EmbedResponse response; reader->Read(&response);) {
      EXPECT_FALSE(ended);
      EXPECT_GT(response.embeddings_size(), 0);
      EXPECT_EQ(response.weights_version(), 1);
      for (const v1::Embedding& one : response.embeddings())
        EXPECT_TRUE(vectors.emplace(one.index(), std::vector<float>(one.values().begin(), one.values().end()))
                        .second);
      ended = response.has_usage();
      if (ended && usage != nullptr) *usage = response.usage();
    }
    const grpc::Status status = reader->Finish();
    EXPECT_TRUE(status.ok()) << status.error_message();
    EXPECT_TRUE(ended);
    return vectors;
  }
  grpc::Status Refused(const v1::EmbedRequest& request) {
    grpc::ClientContext context;
    return inference_->Embed(&context, request)->Finish();
  }
};

TEST_F(GrpcEmbedTest, TextsAndTokens) {
  v1::Usage usage;
  auto vectors = Vectors(Texts({"abc", "d"}), &usage);
  EXPECT_EQ(vectors[0], (std::vector<float>{97, 99, 3, 1}));
  EXPECT_EQ(vectors[1], (std::vector<float>{100, 100, 1, 1}));
  EXPECT_EQ(usage.prompt_tokens(), 4);
  EXPECT_EQ(usage.completion_tokens(), 0);
  v1::EmbedRequest request;
  for (const int32_t id : {3, 4}) request.add_inputs()->mutable_token_ids()->add_ids(id);
  request.set_normalize(false);
  request.set_user("me");
  vectors = Vectors(request);
  EXPECT_EQ(vectors[1], (std::vector<float>{4, 4, 1, 1}));
}

TEST_F(GrpcEmbedTest, ErrorsNameTheField) {
  const auto expect = [&](const v1::EmbedRequest& request, const std::string& field) {
    const grpc::Status status = Refused(request);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << status.error_message();
    EXPECT_NE(status.error_message().find(field), std::string::npos) << status.error_message();
  };
  expect({}, "input");
  v1::EmbedRequest request = Texts({"abc"});
  request.add_inputs();
  expect(request, "inputs");
  request = Texts({"abc"});
  request.add_inputs()->mutable_token_ids()->add_ids(5);
  expect(request, "inputs");
  request = Texts(std::vector<std::string>(1025, "a"));
  expect(request, "inputs");
  request = Texts({"abc"});
  request.set_dimensions(2);
  expect(request, "dimensions");
  request = Texts({"abc"});
  request.set_model("other");
  EXPECT_EQ(Refused(request).error_code(), grpc::StatusCode::NOT_FOUND);
}

TEST_F(GrpcEmbedTest, ManyInputsComeInSeveralMessages) {
  const auto vectors = Vectors(Texts(std::vector<std::string>(500, "abc")));
  EXPECT_EQ(vectors.size(), 500u);
}

}  // namespace
}  // namespace somnus
