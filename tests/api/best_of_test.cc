// best_of: more candidates than choices.

#include "coordinator/openai/best_of.h"

#include <gtest/gtest.h>

#include "tests/api/api_server_fixture.h"

namespace somnus {
namespace {

// An output of one token with a log-probability.
ChoiceUpdate Token(int32_t index, int32_t token, float logprob, FinishReason reason = FinishReason::kNone) {
  OutputDelta delta{.text = "t", .token_ids = {token}};
  delta.logprobs.push_back({.token_ids = {token}, .logprobs = {logprob}});
  delta.finish_reason = reason;
  return {index, std::move(delta)};
}

TEST(BestOfTest, TheLikeliestAreTheChoicesOnceAllHaveEnded) {
  BestOf best_of(/*num_prompts=*/2, /*n=*/2, /*best_of=*/3);
  std::vector<ChoiceUpdate> updates;
  // The second prompt has candidates with -1, -3 and -2.
  best_of.Add(Token(3, 30, -0.5f), &updates);
  best_of.Add(Token(4, 40, -3, FinishReason::kLength), &updates);
  best_of.Add(Token(0, 0, -9, FinishReason::kStop), &updates);
  best_of.Add(Token(3, 31, -0.5f, FinishReason::kStop), &updates);
  EXPECT_TRUE(updates.empty()) << "one of each prompt may still become the best";
  const int64_t held = best_of.held_bytes();
  EXPECT_GT(held, 0);
  best_of.Add(Token(5, 50, -2, FinishReason::kLength), &updates);
  ASSERT_EQ(updates.size(), 3u);
  EXPECT_LT(best_of.held_bytes(), held) << "the first prompt's is left";
  EXPECT_EQ(updates[0].index, 2);
  EXPECT_EQ(updates[0].delta.token_ids, std::vector<int32_t>{30});
  EXPECT_EQ(updates[1].index, 2);
  EXPECT_EQ(updates[1].delta.token_ids, std::vector<int32_t>{31});
  EXPECT_EQ(updates[1].delta.finish_reason, FinishReason::kStop);
  EXPECT_EQ(updates[2].index, 3);
  EXPECT_EQ(updates[2].delta.token_ids, std::vector<int32_t>{50});
  updates.clear();
  // Equal ones in the order of their indices.
  best_of.Add(Token(2, 20, -9, FinishReason::kLength), &updates);
  best_of.Add(Token(1, 10, -9, FinishReason::kLength), &updates);
  ASSERT_EQ(updates.size(), 2u);
  EXPECT_EQ(updates[0].delta.token_ids, std::vector<int32_t>{0});
  EXPECT_EQ(updates[1].delta.token_ids, std::vector<int32_t>{10});
  EXPECT_EQ(updates[1].index, 1);
  EXPECT_EQ(best_of.held_bytes(), 0);
}

TEST(BestOfTest, AnErrorIsNotHeldBack) {
  BestOf best_of(1, 1, 3);
  std::vector<ChoiceUpdate> updates;
  best_of.Add(Token(0, 1, -1), &updates);
  ChoiceUpdate failed{2, {}};
  failed.delta.finish_reason = FinishReason::kError;
  failed.delta.error = absl::InternalError("no numbers");
  best_of.Add(failed, &updates);
  ASSERT_EQ(updates.size(), 1u);
  EXPECT_EQ(updates[0].index, 0);
  EXPECT_TRUE(absl::IsInternal(updates[0].delta.error));
}

TEST_F(ApiServerTest, TheBestOfSeveralAreTheChoices) {
  Serve();
  const Json body = Json::parse(Complete(R"({"prompt": ["abcd", "xy"], "max_tokens": 5, "n": 2, "best_of": 3,
                                            "seed": 70, "return_token_ids": true})")
                                    .body);
  ASSERT_EQ(body["choices"].size(), 4u) << body;
  for (int i = 0; i < 4; ++i) {
    const Json& choice = body["choices"][i];
    EXPECT_EQ(choice["index"], i);
    EXPECT_EQ(choice["text"], i < 2 ? "abcda" : "xyxyx");
    EXPECT_EQ(choice["token_ids"].size(), 5u);
    EXPECT_EQ(choice["finish_reason"], "length");
    EXPECT_TRUE(choice["logprobs"].is_null()) << "nobody asked for them";
  }
  EXPECT_EQ(body["usage"]["prompt_tokens"], 6);
  EXPECT_EQ(body["usage"]["completion_tokens"], 2 * 3 * 5) << "of all that were computed";
  EXPECT_EQ(engine_->seeds(), (std::vector<uint64_t>{70, 71, 72, 70, 71, 72}));
  EXPECT_EQ(engine_->last_sampling().num_logprobs, 0);
  EXPECT_TRUE(engine_->WaitIdle());
}

TEST_F(ApiServerTest, WhatCannotBeTheBestOfSeveral) {
  Serve();
  for (const char* fields :
       {R"("n": 3, "best_of": 2)", R"("best_of": 2, "stream": true)", R"("best_of": 2, "temperature": 0)",
        R"("best_of": 1000000000)", R"("n": 2, "best_of": 3, "use_beam_search": true)", R"("best_of": 0)"}) {
    const HttpReply reply = Complete(absl::StrCat(R"({"prompt": "abcd", "max_tokens": 5, )", fields, "}"));
    EXPECT_EQ(reply.status, 400) << fields;
    EXPECT_EQ(Json::parse(reply.body)["error"]["param"], "best_of") << fields << " " << reply.body;
  }
  for (const char* fields :
       {R"("n": 2, "best_of": 2, "stream": true)", R"("best_of": null)",
        R"("n": 2, "best_of": 2, "use_beam_search": true)", R"("best_of": 1, "temperature": 0)"}) {
    const HttpReply reply = Complete(absl::StrCat(R"({"prompt": "abcd", "max_tokens": 5, )", fields, "}"));
    EXPECT_EQ(reply.status, 200) << fields << " " << reply.body;
  }
}

}  // namespace
}  // namespace somnus
