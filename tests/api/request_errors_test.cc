// Requests that are refused, or only just accepted: what the error says, and which field it names.

#include <gtest/gtest.h>

#include "absl/strings/str_replace.h"
#include "base/utf8.h"
#include "coordinator/http/api_error.h"
#include "tests/api/api_server_fixture.h"

namespace somnus {
namespace {

// A field, and the parameter that the error names.
constexpr std::pair<const char*, const char*> kFieldErrors[] = {
    {R"("prompt": "")", "prompt"},
    {R"("prompt": [])", "prompt"},
    {R"("prompt": [[]])", "prompt"},
    {R"("prompt": ["a", 5])", "prompt"},
    {R"("prompt": [257])", "prompt"},
    {R"("prompt": [1.5])", "prompt"},
    {R"("max_tokens": 0)", "max_tokens"},
    {R"("max_tokens": 4097)", "max_tokens"},
    {R"("max_tokens": 1e30)", "max_tokens"},
    {R"("n": 0)", "n"},
    {R"("n": 129)", "n"},
    {R"("n": true)", "n"},
    {R"("n": 1000000000)", "n"},
    {R"("temperature": -1)", "temperature"},
    {R"("temperature": NaN)", "temperature"},
    {R"("temperature": 1e999)", "temperature"},
    {R"("top_p": 0)", "top_p"},
    {R"("top_p": Infinity)", "top_p"},
    {R"("top_k": -2)", "top_k"},
    {R"("min_p": 1.5)", "min_p"},
    {R"("presence_penalty": 2.0001)", "presence_penalty"},
    {R"("frequency_penalty": -2.0001)", "frequency_penalty"},
    {R"("repetition_penalty": 0)", "repetition_penalty"},
    {R"("seed": 9223372036854775808)", "seed"},
    {R"("seed": 0.5)", "seed"},
    {R"("min_tokens": -1)", "min_tokens"},
    {R"("min_tokens": 17)", "min_tokens"},
    {R"("stop": "")", "stop"},
    {R"("stop": [1])", "stop"},
    {R"("stop_token_ids": [-1])", "stop_token_ids"},
    {R"("allowed_token_ids": [])", "allowed_token_ids"},
    {R"("allowed_token_ids": [2147483648])", "allowed_token_ids"},
    {R"("logit_bias": {"257": 1})", "logit_bias"},
    {R"("logit_bias": {"1": NaN})", "logit_bias"},
    {R"("bad_words": [""])", "bad_words"},
    {R"("logprobs": 21)", "logprobs"},
    {R"("logprobs": -1)", "logprobs"},
    {R"("prompt_logprobs": 21)", "prompt_logprobs"},
    {R"("stream": true, "prompt_logprobs": 1)", "prompt_logprobs"},
    {R"("stream_options": {"include_usage": true})", "stream_options"},
    {R"("stream": true, "stream_options": {"continuous_usage_stats": "x"})", "stream_options"},
    {R"("suffix": "x")", "suffix"},
    {R"("n": 3, "best_of": 2)", "best_of"},
    {R"("use_beam_search": 2)", "use_beam_search"},
    {R"("use_beam_search": null)", "use_beam_search"},
    {R"("use_beam_search": true, "stream": true)", "stream"},
    {R"("use_beam_search": true, "n": 129)", "n"},
    {R"("use_beam_search": true, "early_stopping": 1)", "early_stopping"},
    {R"("use_beam_search": true, "early_stopping": "soon")", "early_stopping"},
    {R"("use_beam_search": true, "length_penalty": 1e999)", "length_penalty"},
    {R"("use_beam_search": true, "max_tokens": 0, "echo": true)", "max_tokens"},
    {R"("use_beam_search": true, "top_p": 0)", "top_p"},
    {R"("response_format": {"type": "json_object"})", "response_format"},
    {R"("structured_outputs": {"regex": "a"})", "structured_outputs"},
    {R"("cache_salt": "")", "cache_salt"},
    {R"("cache_salt": "a@b")", "cache_salt"},
    {R"("temperature": 2.0001)", "temperature"},
    {R"("stop": ["a", "b", "c", "d", "e"])", "stop"},
    {R"("logprob_token_ids": [1])", "logprob_token_ids"},
    {R"("truncation_side": "middle")", "truncation_side"},
    {R"("stream_interval": 0)", "stream_interval"},
    {R"("priority": 1.5)", "priority"},
    {R"("n": null)", "n"},
    {R"("ignore_eos": null)", "ignore_eos"},
    {R"("session_id": 5)", "session_id"},
    {R"("length_penalty": "x")", "length_penalty"},
    {R"("logprobs": "1")", "logprobs"},
    {R"("bad_words": [" "])", "bad_words"},
    {R"("thinking_token_budget": 5)", "thinking_token_budget"},
    {R"("user": 5)", "user"},
    {R"("model": 5)", "model"},
    {R"("truncate_prompt_tokens": 0)", "truncate_prompt_tokens"},
};

TEST_F(ApiServerTest, ErrorsNameTheField) {
  Serve();
  for (const auto& [field, param] : kFieldErrors) {
    const HttpReply reply = Complete(absl::StrCat(R"({"prompt": "abc", )", field, "}"));
    EXPECT_EQ(reply.status, 400) << field;
    const Json error = Json::parse(reply.body)["error"];
    EXPECT_EQ(error["param"], param) << field;
    EXPECT_EQ(error["type"], "BadRequestError");
    EXPECT_EQ(error["code"], 400);
  }
  for (const char* name : {"nope", ""}) {
    const HttpReply reply = Complete(absl::StrCat(R"({"prompt": "abc", "model": ")", name, "\"}"));
    EXPECT_EQ(reply.status, 404) << name;
    EXPECT_EQ(Json::parse(reply.body)["error"]["param"], "model");
  }
  EXPECT_EQ(engine_->num_open(), 0u);
  ExpectHealthy();
}

TEST_F(ApiServerTest, PromptLogprobsAreBoundedTogether) {
  Serve(ApiServerOptions{.limits = {.max_prompt_logprobs = 20}});
  EXPECT_EQ(Complete(R"({"prompt": ["abcd", "abcd"], "prompt_logprobs": 1})").status, 200);
  const std::pair<const char*, const char*> cases[] = {
      {R"("prompt_logprobs": 2)", "prompt_logprobs"},
      {R"("prompt_logprobs": 1, "n": 2)", "prompt_logprobs"},
      {R"("echo": true, "logprobs": 2)", "logprobs"},
  };
  for (const auto& [fields, param] : cases) {
    const HttpReply reply = Complete(absl::StrCat(R"({"prompt": ["abcd", "abcd"], )", fields, "}"));
    EXPECT_EQ(reply.status, 400) << fields;
    EXPECT_EQ(Json::parse(reply.body)["error"]["param"], param);
  }
}

TEST(CleanMessage, IsShortAndValidUtf8) {
  EXPECT_EQ(CleanMessage("cannot read /a/b: at 0x12ab34"), "cannot read [...] at [...]");
  for (int shift = 0; shift < 4; ++shift) {
    std::string text(shift, 'x');
    for (int i = 0; i < 200; ++i) text += "\xf0\x9f\x98\x80";
    const std::string clean = CleanMessage(text);
    EXPECT_TRUE(IsUtf8(clean)) << shift;
    EXPECT_LE(clean.size(), 704u);
    EXPECT_GE(clean.size(), 690u);
  }
  EXPECT_TRUE(IsUtf8(CleanMessage("\xff\xf0\x9f")));
}

// Fields of other servers that would change the form or the length of the text.
TEST_F(ApiServerTest, FieldsThatWouldChangeTheTextAreRefusedAndNotIgnored) {
  Serve();
  const std::pair<const char*, const char*> refused[] = {{"grammar", R"("root ::= \"a\"")"},
                                                         {"json_schema", "{}"},
                                                         {"json_schema", R"({"type": "object"})"},
                                                         {"ebnf", R"("root ::= x")"},
                                                         {"regex", R"("a+")"},
                                                         {"structural_tag", "{}"},
                                                         {"modalities", R"(["audio"])"},
                                                         {"modalities", R"(["text", "audio"])"},
                                                         {"n_predict", "5"},
                                                         {"guided_json", "{}"},
                                                         {"structured_outputs", R"({"json": {}})"}};
  for (const auto& [field, value] : refused) {
    const HttpReply reply = Complete(absl::StrCat(R"({"prompt": "abc", ")", field, "\": ", value, "}"));
    EXPECT_EQ(reply.status, 400) << field << value;
    EXPECT_EQ(Json::parse(reply.body)["error"]["param"], field);
  }
  for (const char* fine : {R"("grammar": "")", R"("grammar": null)", R"("modalities": ["text"])",
                           R"("modalities": [])", R"("n_predict": 5, "max_tokens": 3)", R"("mirostat": 1)"})
    EXPECT_EQ(Complete(absl::StrCat(R"({"prompt": "abc", )", fine, "}")).status, 200) << fine;
}

// llama.cpp's spelling of a schema.
TEST_F(ApiServerTest, ASchemaOfAJsonObjectIsRefusedAndNotIgnored) {
  Serve();
  const auto message = [this](const char* format) -> std::string {
    const HttpReply reply = Complete(absl::StrCat(R"({"prompt": "abc", "response_format": )", format, "}"));
    EXPECT_EQ(reply.status, 400) << format;
    return Json::parse(reply.body)["error"]["message"];
  };
  EXPECT_TRUE(absl::StrContains(message(R"({"type": "json_object", "schema": {"type": "array"}})"),
                                "response_format.schema goes with no json_object"));
  EXPECT_FALSE(absl::StrContains(message(R"({"type": "json_object", "schema": null})"), "schema goes"));
}

// The tokenizer's tokens are bytes, so each bad word has a single spelling, and may stand anywhere in a text.
TEST_F(ApiServerTest, BadWordsBecomeTextsThatAreNeverCompleted) {
  Serve();
  EXPECT_EQ(Complete(R"({"prompt": "abc", "bad_words": [" ab", "ab ", "ab", "c"]})").status, 200);
  const SamplingParams sampling = engine_->last_sampling();
  ASSERT_EQ(sampling.bad_texts.size(), 2u);
  EXPECT_EQ(sampling.bad_texts[0].num_bytes, 2);
  EXPECT_EQ(sampling.bad_texts[0].pieces, (std::vector<BadText::Piece>{{'a', 0, 1}, {'b', 1, 2}}));
  EXPECT_EQ(sampling.bad_texts[1].pieces, (std::vector<BadText::Piece>{{'c', 0, 1}}));
  EXPECT_TRUE(sampling.bad_words.empty());
}

TEST_F(ApiServerTest, ListsAreBounded) {
  ApiServerOptions options;
  options.limits.max_logit_bias = 3;
  options.limits.max_allowed_token_ids = 2;
  options.limits.max_stop_token_ids = 1;
  options.limits.max_stop_string_bytes = 5;
  options.limits.max_bad_word_tokens = 4;
  options.limits.max_bad_words = 2;
  Serve(options);
  const std::pair<const char*, const char*> most[] = {
      {R"("logit_bias": {"1": 1, "2": 1, "3": 1})", R"("logit_bias": {"1": 1, "2": 1, "3": 1, "4": 1})"},
      {R"("allowed_token_ids": [1, 1])", R"("allowed_token_ids": [1, 1, 1])"},
      {R"("stop_token_ids": [1])", R"("stop_token_ids": [1, 2])"},
      {R"("stop": ["zzzzz"])", R"("stop": ["zzzzzz"])"},
      {R"("bad_words": ["zzz"])", R"("bad_words": ["zzzzz"])"},
      {R"("bad_words": ["a", "b", " b"])", R"("bad_words": ["a", "b", "c"])"},
  };
  for (const auto& [fits, too_many] : most) {
    EXPECT_EQ(Complete(absl::StrCat(R"({"prompt": "abc", )", fits, "}")).status, 200) << fits;
    const HttpReply reply = Complete(absl::StrCat(R"({"prompt": "abc", )", too_many, "}"));
    EXPECT_EQ(reply.status, 400) << too_many;
    const std::string param = Json::parse(reply.body)["error"]["param"];
    EXPECT_EQ(absl::StrCat("\"", param, "\""), std::string(fits, std::string(fits).find(':')));
  }
}

TEST_F(ApiServerTest, LaxWhereVllmIs) {
  Serve();
  for (const char* field :
       {R"("max_tokens": 3.0)", R"("max_tokens": "3")", R"("max_tokens": "3.0")", R"("stream_options": {})",
        R"("max_tokens": null)", R"("stop": null)", R"("logit_bias": null)", R"("whatever": [1, {"x": NaN}])",
        R"("temperature": -0.0)", R"("top_k": 9223372036854775808)", R"("stop_token_ids": ["5"])",
        R"("tools": [])", R"("chat_template": "x")", R"("tool_choice": "none")", R"("stop_token_ids": [])",
        R"("top_k": -1)"}) {
    EXPECT_EQ(Complete(absl::StrCat(R"({"prompt": "abc", )", field, "}")).status, 200) << field;
  }
}

TEST_F(ApiServerTest, BodiesThatAreNoGoodJson) {
  Serve();
  const std::string deep_array(1'000'000, '[');
  const std::string deep_object = absl::StrReplaceAll(std::string(200'000, '['), {{"[", "{\"a\":"}});
  std::string many = R"({"prompt": "a", "x": [)";
  for (int i = 0; i < 1'100'000; ++i) many += "1,";
  many += "1]}";
  for (const std::string& body :
       {std::string("null"), std::string("[]"), std::string("{"), std::string("{} x"),
        std::string(R"({"prompt": "\ud800"})"), std::string("{\"prompt\": \"\xff\"}"),
        std::string(R"({/**/"prompt": "a"})"), deep_array, deep_object, many,
        absl::StrCat(R"({"prompt": "a", "ignored": )", deep_array.substr(0, 100), "}")}) {
    const HttpReply reply = Complete(body);
    EXPECT_EQ(reply.status, 400) << body.substr(0, 40);
  }
  ExpectHealthy();
}

TEST_F(ApiServerTest, WhatDoesNotSayThatItIsJson) {
  Serve();
  const std::pair<const char*, int> cases[] = {
      {"\r\n", 400},                                                         // nothing at all
      {"Content-Length: 0\r\n\r\n", 400},                                    // an empty body
      {"Content-Length: 2\r\n\r\n{}", 400},                                  // no type
      {"Content-Type: application/json\r\nContent-Length: 0\r\n\r\n", 400},  // a type alone
      {"Content-Type: text/plain\r\nContent-Length: 2\r\n\r\n{}", 415},      // another type
      {"Content-Type: text/plain\r\n\r\n", 415},
  };
  for (const char* path : {"/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"}) {
    for (const auto& [rest, status] : cases) {
      HttpClient client(server_->port());
      client.Write(absl::StrCat("POST ", path, " HTTP/1.1\r\nHost: a\r\n", rest));
      const HttpReply reply = client.ReadReply();
      EXPECT_EQ(reply.status, status) << path << rest;
      EXPECT_EQ(Json::parse(reply.body)["error"]["code"], status);
    }
  }
  ExpectHealthy();
}

}  // namespace
}  // namespace somnus
