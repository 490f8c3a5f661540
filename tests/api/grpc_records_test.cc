// InferenceService records its requests.

#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "tests/api/grpc_services_fixture.h"
#include "tests/api/recorded_requests.h"

namespace somnus {
namespace {

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

}  // namespace
}  // namespace somnus
