// Bad words, beam search and best_of over gRPC, above a fake engine.

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "tests/api/grpc_services_fixture.h"

namespace somnus {
namespace {

// As over HTTP; the tokens of the fixture are bytes.
TEST_F(GrpcServicesTest, BadWordsAreNeverCompletedWhicheverTokensSpellThem) {
  const auto sampling_with = [this](const std::vector<std::vector<int32_t>>& words) {
    v1::GenerateRequest request = Request("abc", 5);
    for (const auto& word : words)
      request.mutable_sampling()->add_bad_words()->mutable_ids()->Add(word.begin(), word.end());
    EXPECT_EQ(Text(request), "abcab");
    return engine_->last_sampling();
  };
  const SamplingParams sampling = sampling_with({{' ', 'a', 'b'}, {'c'}});
  EXPECT_EQ(sampling.bad_words, (std::vector<std::vector<int32_t>>{{' ', 'a', 'b'}, {'c'}}));
  ASSERT_EQ(sampling.bad_texts.size(), 2u);
  EXPECT_EQ(sampling.bad_texts[0].num_bytes, 2) << "white space around a word does not count";
  EXPECT_EQ(sampling.bad_texts[0].pieces, (std::vector<BadText::Piece>{{'a', 0, 1}, {'b', 1, 2}}));
  EXPECT_EQ(sampling.bad_texts[1].pieces, (std::vector<BadText::Piece>{{'c', 0, 1}}));
  // Control tokens, white space and parts of a character spell no word: their ids alone are kept away.
  for (const std::vector<int32_t>& ids :
       std::vector<std::vector<int32_t>>{{ByteTokenizer::kEos}, {'a', ByteTokenizer::kEos}, {' '}, {0xC3}}) {
    const SamplingParams exact = sampling_with({ids});
    EXPECT_EQ(exact.bad_words, std::vector<std::vector<int32_t>>{ids});
    EXPECT_TRUE(exact.bad_texts.empty());
  }
}

TEST_F(GrpcServicesTest, BeamSearch) {
  v1::GenerateRequest request = Request("abcd", 5);
  request.mutable_sampling()->set_use_beam_search(true);
  request.mutable_sampling()->set_n(3);
  request.mutable_sampling()->set_length_penalty(0.5);
  request.mutable_sampling()->set_early_stopping("false");
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
  EXPECT_EQ(sampling.beam_search->length_penalty, 0.5);
  EXPECT_EQ(sampling.beam_search->early_stopping, EarlyStopping::kHeuristic);
  request.mutable_sampling()->set_early_stopping("soon");
  EXPECT_EQ(Refused(request).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(GrpcServicesTest, ABeamSearchRefusesWordsThatItWouldNotKeepAway) {
  v1::GenerateRequest request = Request("abcd", 5);
  request.mutable_sampling()->set_use_beam_search(true);
  request.mutable_sampling()->add_bad_words()->add_ids(65);
  grpc::ClientContext context;
  const auto reader = inference_->Generate(&context, request);
  v1::GenerateResponse response;
  EXPECT_FALSE(reader->Read(&response));
  const grpc::Status status = reader->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_NE(status.error_message().find("bad_words"), std::string::npos) << status.error_message();
}

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
