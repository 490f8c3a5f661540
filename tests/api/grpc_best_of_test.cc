// best_of over gRPC, above a fake engine.

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "tests/api/grpc_services_fixture.h"

namespace somnus {
namespace {

v1::GenerateRequest BestOf(v1::GenerateRequest request, int n, int best_of) {
  request.mutable_sampling()->set_n(n);
  request.mutable_sampling()->set_best_of(best_of);
  request.mutable_sampling()->set_seed(70);
  return request;
}

TEST_F(GrpcServicesTest, TheBestOfSeveralAreTheChoices) {
  grpc::ClientContext context;
  const auto reader = inference_->Generate(&context, BestOf(Request("abcd", 400), 2, 3));
  std::map<int, std::string> texts, reasons;
  int num_responses = 0;
  v1::GenerateResponse response, last;
  while (reader->Read(&response)) {
    ++num_responses;
    EXPECT_FALSE(last.has_usage()) << "the last response has the usage";
    EXPECT_LE(response.choices_size(), 256) << "a message has a bound";
    for (const v1::ChoiceDelta& choice : response.choices()) {
      texts[choice.index()] += choice.text();
      reasons[choice.index()] += choice.finish_reason();
      EXPECT_EQ(choice.logprobs_size(), 0) << "nobody asked for them";
    }
    last = response;
  }
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_GE(num_responses, 4) << "of 800 tokens";
  std::string text;
  while (text.size() < 400) text += "abcd";
  EXPECT_EQ(texts, (std::map<int, std::string>{{0, text}, {1, text}}));
  EXPECT_EQ(reasons, (std::map<int, std::string>{{0, "length"}, {1, "length"}}));
  EXPECT_EQ(last.usage().prompt_tokens(), 4);
  EXPECT_EQ(last.usage().completion_tokens(), 3 * 400) << "of all that were computed";
  EXPECT_EQ(engine_->seeds(), (std::vector<uint64_t>{70, 71, 72}));
  EXPECT_EQ(engine_->last_sampling().num_logprobs, 0);
  EXPECT_TRUE(engine_->WaitIdle());
}

TEST_F(GrpcServicesTest, LogprobsOfTheBestWhereTheyAreAskedFor) {
  v1::GenerateRequest request = BestOf(Request("abcd", 3), 1, 2);
  request.mutable_sampling()->set_logprobs(0);
  grpc::ClientContext context;
  const auto reader = inference_->Generate(&context, request);
  v1::GenerateResponse response;
  ASSERT_TRUE(reader->Read(&response));
  ASSERT_EQ(response.choices_size(), 3) << "nothing comes before the last candidate has ended";
  for (const v1::ChoiceDelta& choice : response.choices()) EXPECT_EQ(choice.logprobs_size(), 1);
  EXPECT_FALSE(reader->Read(&response));
  EXPECT_TRUE(reader->Finish().ok());
}

TEST_F(GrpcServicesTest, WhatCannotBeTheBestOfSeveral) {
  const auto expect_refused = [this](const v1::GenerateRequest& request) {
    const grpc::Status status = Refused(request);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << request.ShortDebugString();
    EXPECT_EQ(status.error_message().rfind("best_of", 0), 0u) << status.error_message();
  };
  for (const int best_of : {-1, 0, 2, 1'000'000'000}) expect_refused(BestOf(Request("abcd", 5), 3, best_of));
  v1::GenerateRequest greedy = BestOf(Request("abcd", 5), 1, 2);
  greedy.mutable_sampling()->set_temperature(0);
  expect_refused(greedy);
  v1::GenerateRequest beams = BestOf(Request("abcd", 5), 2, 3);
  beams.mutable_sampling()->set_use_beam_search(true);
  expect_refused(beams);
  EXPECT_TRUE(engine_->seeds().empty()) << "the engine has seen none of them";

  greedy.mutable_sampling()->set_best_of(1);
  EXPECT_EQ(Text(greedy), "abcda");
  EXPECT_EQ(Text(BestOf(Request("abcd", 5), 2, 2)).size(), 10u);
}

TEST_F(GrpcServicesTest, CandidatesThatTakeTooMuchMemoryEnd) {
  Start(ApiLimits{.max_response_bytes = 40'000});
  const grpc::Status status = Refused(BestOf(Request("abcd", 4000), 1, 2));
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(status.error_message().rfind("best_of: ", 0), 0u) << status.error_message();
  EXPECT_TRUE(engine_->WaitIdle());
  EXPECT_EQ(Text(BestOf(Request("abcd", 5), 1, 2)), "abcda") << "what the first one held is free again";
}

}  // namespace
}  // namespace somnus
