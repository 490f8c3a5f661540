// Beam search over gRPC, above a fake engine.

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include "tests/api/grpc_services_fixture.h"

namespace somnus {
namespace {

TEST_F(GrpcServicesTest, BeamSearch) {
  v1::GenerateRequest request = Request("abcd", 5);
  request.mutable_sampling()->set_use_beam_search(true);
  request.mutable_sampling()->set_n(3);
  request.mutable_sampling()->set_length_penalty(0.5);
  request.mutable_sampling()->set_early_stopping("false");
  request.mutable_sampling()->add_bad_words()->add_ids(65);
  grpc::ClientContext context;
  const auto reader = inference_->Generate(&context, request);
  v1::GenerateResponse response;
  ASSERT_TRUE(reader->Read(&response));
  ASSERT_EQ(response.choices_size(), 3) << "all answers come in the last response";
  EXPECT_EQ(response.choices(0).text(), "abcd");
  EXPECT_EQ(response.choices(1).text(), "bcd");
  EXPECT_EQ(response.choices(1).finish_reason(), "stop");
  EXPECT_EQ(response.choices(1).stop_reason(), "256");
  EXPECT_EQ(response.usage().completion_tokens(), 4 + 3 + 2);
  EXPECT_FALSE(reader->Read(&response));
  EXPECT_TRUE(reader->Finish().ok());
  const SamplingParams sampling = engine_->last_sampling();
  EXPECT_TRUE(sampling.bad_words.empty());
  EXPECT_EQ(sampling.beam_search->length_penalty, 0.5);
  EXPECT_EQ(sampling.beam_search->early_stopping, EarlyStopping::kHeuristic);
  request.mutable_sampling()->set_early_stopping("soon");
  EXPECT_EQ(Refused(request).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

}  // namespace
}  // namespace somnus
