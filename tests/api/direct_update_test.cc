// ControlService.DirectUpdateWeights over a real channel, above a fake engine.

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/api/grpc_services_fixture.h"

namespace somnus {
namespace {

class DirectUpdateTest : public GrpcServicesTest {
 protected:
  // A call that has begun.
  struct Call {
    explicit Call(v1::ControlService::Stub* stub) : stream(stub->DirectUpdateWeights(&context)) {
      v1::UpdateWeightsRequest message;
      message.mutable_begin()->set_weights_version(5);
      stream->Write(message);
    }
    bool Read() { return stream->Read(&response); }
    bool SendProgress() {
      v1::UpdateWeightsRequest message;
      message.mutable_progress();
      return stream->Write(message);
    }
    // All chunks that the workers of the fake have got have 7 bytes.
    bool Finish(int64_t num_bytes) {
      v1::UpdateWeightsRequest message;
      message.mutable_finish()->mutable_received()->set_num_bytes(num_bytes);
      return stream->Write(message);
    }

    grpc::ClientContext context;
    std::unique_ptr<grpc::ClientReaderWriter<v1::UpdateWeightsRequest, v1::DirectUpdateWeightsResponse>>
        stream;
    v1::DirectUpdateWeightsResponse response;
  };
};

TEST_F(DirectUpdateTest, TheClientIsToldWhereToSend) {
  Call call(control_.get());
  ASSERT_TRUE(call.Read());
  const std::string token = call.response.ports().token();
  EXPECT_EQ(token.size(), 64u);
  ASSERT_EQ(call.response.ports().ports_size(), 1);
  EXPECT_EQ(call.response.ports().ports(0).address(), "for " + token) << "the workers have the same";
  EXPECT_TRUE(call.SendProgress());
  EXPECT_TRUE(call.Finish(7));
  ASSERT_TRUE(call.Read());
  EXPECT_EQ(call.response.done().weights_version(), 5);
  EXPECT_FALSE(call.Read());
  EXPECT_TRUE(call.stream->Finish().ok());
  Call next(control_.get());
  ASSERT_TRUE(next.Read());
  EXPECT_NE(next.response.ports().token(), token) << "each update has its own";
}

TEST_F(DirectUpdateTest, WhatTheClientCannotSendThereComesHere) {
  Call call(control_.get());
  ASSERT_TRUE(call.Read());
  v1::UpdateWeightsRequest message;
  message.mutable_chunk()->set_name("a");
  message.mutable_chunk()->set_data("1234567");
  EXPECT_TRUE(call.stream->Write(message));
  EXPECT_TRUE(call.Finish(7));
  ASSERT_TRUE(call.Read());
  EXPECT_EQ(call.response.done().num_bytes(), 7);
  EXPECT_EQ(engine_->chunks(), std::vector<std::string>{"a"});
}

TEST_F(DirectUpdateTest, WhatHasNotComeIsAnError) {
  Call call(control_.get());
  ASSERT_TRUE(call.Read());
  EXPECT_TRUE(call.Finish(8));
  EXPECT_FALSE(call.Read());
  EXPECT_EQ(call.stream->Finish().error_code(), grpc::StatusCode::DATA_LOSS);
}

TEST_F(DirectUpdateTest, AClientThatLeavesHasNotFinished) {
  Call call(control_.get());
  ASSERT_TRUE(call.Read());
  call.stream->WritesDone();
  EXPECT_FALSE(call.Read());
  EXPECT_EQ(call.stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

TEST_F(DirectUpdateTest, AClientThatIsSilentIsGivenUp) {
  Start(ApiLimits{.weight_update_timeout = absl::Milliseconds(50)});
  Call call(control_.get());
  ASSERT_TRUE(call.Read());
  EXPECT_FALSE(call.Read());
  EXPECT_EQ(call.stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

TEST_F(DirectUpdateTest, ProgressIsOfADirectUpdateAlone) {
  grpc::ClientContext context;
  v1::UpdateWeightsResponse response;
  const auto writer = control_->UpdateWeights(&context, &response);
  v1::UpdateWeightsRequest message;
  message.mutable_begin();
  EXPECT_TRUE(writer->Write(message));
  message.mutable_progress();
  writer->Write(message);
  EXPECT_EQ(writer->Finish().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

}  // namespace
}  // namespace somnus
