// Beam search over HTTP: what reaches the engine, and how its answers become choices.

#include <gtest/gtest.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/api/api_server_fixture.h"

namespace somnus {
namespace {

TEST_F(ApiServerTest, AnswersOfABeamSearchAreTheChoices) {
  Serve();
  const Json body =
      Json::parse(Complete(R"({"prompt": ["abcd", "xy"], "max_tokens": 5, "use_beam_search": true, "n": 3,
                   "return_token_ids": true, "temperature": 0, "stop": "c", "min_tokens": 2})")
                      .body);
  ASSERT_EQ(body["choices"].size(), 6u) << body;
  const char* texts[] = {"abcd", "bcd", "cd", "xy", "y", "y"};
  for (int i = 0; i < 6; ++i) {
    const Json& choice = body["choices"][i];
    EXPECT_EQ(choice["index"], i);
    EXPECT_EQ(choice["text"], texts[i]) << "a stop string changes nothing";
    EXPECT_EQ(choice["token_ids"].size(), std::string(texts[i]).size());
    const bool stopped = i == 1 || i == 4;
    EXPECT_EQ(choice["finish_reason"], stopped ? "stop" : "length");
    EXPECT_EQ(choice["stop_reason"], stopped ? Json(256) : Json());
    EXPECT_TRUE(choice["logprobs"].is_null());
  }
  EXPECT_EQ(body["usage"]["prompt_tokens"], 6);
  EXPECT_EQ(body["usage"]["completion_tokens"], 4 + 3 + 2 + 2 + 1 + 1);
  EXPECT_EQ(engine_->seeds().size(), 2u) << "a search is one request of the engine";
  EXPECT_TRUE(engine_->WaitIdle());
  EXPECT_EQ(engine_->num_aborted(), 0);
}

TEST_F(ApiServerTest, ASearchHasItsOwnParameters) {
  Serve();
  EXPECT_EQ(Complete(R"({"prompt": "abcd", "max_tokens": 3, "use_beam_search": true, "n": 4, "top_p": 0.5,
                         "temperature": 0.7, "min_tokens": 2, "repetition_penalty": 1.5, "logit_bias": {"1": 5},
                         "length_penalty": "0.5", "early_stopping": true, "ignore_eos": true})")
                .status,
            200);
  const SamplingParams sampling = engine_->last_sampling();
  EXPECT_EQ(sampling.temperature, 0);
  EXPECT_EQ(sampling.num_logprobs, 8);
  EXPECT_EQ(sampling.top_p, 1);
  EXPECT_EQ(sampling.min_tokens, 0);
  EXPECT_EQ(sampling.repetition_penalty, 1);
  EXPECT_TRUE(sampling.logit_bias.empty() && sampling.eos_token_ids.empty());
  ASSERT_TRUE(sampling.beam_search.has_value());
  EXPECT_EQ(sampling.beam_search->width, 4);
  EXPECT_EQ(sampling.beam_search->length_penalty, 0.5);
  EXPECT_EQ(sampling.beam_search->early_stopping, EarlyStopping::kAtWidth);
  EXPECT_TRUE(sampling.beam_search->ignore_eos);
  EXPECT_EQ(sampling.beam_search->eos_token_ids, std::vector<int32_t>{256});
  EXPECT_EQ(sampling.beam_search->num_logprobs, -1);
}

// The tokens that these fields forbid never come, so that a search, which would not keep that promise, is
// refused.
TEST_F(ApiServerTest, ASearchPromisesNothingOfTokensThatNeverCome) {
  Serve();
  const auto search = [this](const char* field) {
    return Complete(
        absl::StrCat(R"({"prompt": "a", "max_tokens": 3, "use_beam_search": true, "n": 2, )", field, "}"));
  };
  for (const auto& [field, name] : {std::pair{R"("bad_words": ["b"])", "bad_words"},
                                    std::pair{R"("allowed_token_ids": [97])", "allowed_token_ids"}}) {
    const HttpReply reply = search(field);
    EXPECT_EQ(reply.status, 400) << field;
    EXPECT_EQ(Json::parse(reply.body)["error"]["param"], name);
  }
  EXPECT_EQ(search(R"("bad_words": [])").status, 200);
}

TEST_F(ApiServerTest, EarlyStoppingIsThatOfTransformers) {
  Serve();
  const std::pair<const char*, EarlyStopping> cases[] = {
      {"", EarlyStopping::kNever},
      {R"(, "early_stopping": null)", EarlyStopping::kNever},
      {R"(, "early_stopping": "never")", EarlyStopping::kNever},
      {R"(, "early_stopping": false)", EarlyStopping::kHeuristic},
      {R"(, "early_stopping": true)", EarlyStopping::kAtWidth},
  };
  for (const auto& [field, expected] : cases) {
    ASSERT_EQ(Complete(absl::StrCat(R"({"prompt": "ab", "use_beam_search": true)", field, "}")).status, 200);
    EXPECT_EQ(engine_->last_sampling().beam_search->early_stopping, expected) << field;
  }
}

// The text never has the token that ended an answer; the ids have it where that is asked for.
TEST_F(ApiServerTest, TheEosTokenOfAnAnswer) {
  Serve();
  const Json body = Json::parse(Complete(R"({"prompt": "abcd", "use_beam_search": true, "n": 2,
      "include_stop_str_in_output": true, "return_token_ids": true, "skip_special_tokens": false})")
                                    .body);
  EXPECT_EQ(body["choices"][0]["text"], "abcd");
  EXPECT_EQ(body["choices"][1]["text"], "bcd");
  EXPECT_EQ(body["choices"][1]["token_ids"], Json({98, 99, 100, 256}));
}

TEST_F(ApiServerTest, AnswersHaveLogprobs) {
  Serve();
  const Json body = Json::parse(
      Complete(R"({"prompt": "abcd", "use_beam_search": true, "n": 2, "logprobs": 2, "echo": true})").body);
  for (int i = 0; i < 2; ++i) {
    const Json& logprobs = body["choices"][i]["logprobs"];
    ASSERT_EQ(logprobs["tokens"].size(), static_cast<size_t>(8 - i)) << body;
    EXPECT_TRUE(logprobs["token_logprobs"][3].is_null()) << "of the prompt there are none";
    EXPECT_EQ(logprobs["token_logprobs"][4], -0.25);
    EXPECT_EQ(logprobs["top_logprobs"][4].size(), 2u);
  }
}

// They wait for the end of the search, so that their number is bounded before it begins.
TEST_F(ApiServerTest, LogprobsThatNoResponseHoldsAreRefused) {
  Serve(ApiServerOptions{.limits = {.max_response_bytes = 80 * 120}});
  const auto status = [&](int n, int logprobs) {
    return Complete(
               absl::StrCat(R"({"prompt": ["ab", "cd"], "use_beam_search": true, "max_tokens": 10, "n": )", n,
                            R"(, "logprobs": )", logprobs, "}"))
        .status;
  };
  EXPECT_EQ(status(3, 1), 200);
  EXPECT_EQ(status(3, 2), 400);
  EXPECT_EQ(status(7, 0), 400);
}

TEST_F(ApiServerTest, AStreamOfASearchIsRefused) {
  Serve();
  const HttpReply reply = Complete(R"({"prompt": "ab", "use_beam_search": true, "stream": true})");
  EXPECT_EQ(reply.status, 400);
  EXPECT_EQ(Json::parse(reply.body)["error"]["message"],
            "Streaming is not currently supported with beam search");
}

// Every choice ends, whatever becomes of the search; nothing is left in the engine.
TEST_F(ApiServerTest, ASearchThatFailsOrIsAborted) {
  Serve();
  engine_->FailAfter(3, absl::InternalError("the workers are lost"));
  const HttpReply failed =
      Complete(R"({"prompt": "abcd", "max_tokens": 9, "use_beam_search": true, "n": 3})");
  EXPECT_EQ(failed.status, 500);
  EXPECT_TRUE(engine_->WaitIdle());
  engine_->FailAfter(-1, absl::OkStatus());
  {
    HttpClient client(server_->port());
    client.Write(RequestText("POST", "/v1/completions",
                             R"({"prompt": "abcd", "max_tokens": 4000, "use_beam_search": true, "n": 3})"));
    AwaitOpen();
  }
  EXPECT_TRUE(engine_->WaitIdle());
  EXPECT_EQ(engine_->num_aborted(), 1);
}

}  // namespace
}  // namespace somnus
