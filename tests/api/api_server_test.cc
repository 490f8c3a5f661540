// Generating over HTTP: whole responses, streams, the end of the server. Other routes are in routes_test.cc;
// limits and clients that misbehave are in http_limits_test.cc.

#include <gtest/gtest.h>

#include <set>

#include "tests/api/api_server_fixture.h"

namespace somnus {
namespace {

std::vector<Json> Events(const std::string& body, bool* done) {
  std::vector<Json> events;
  *done = false;
  for (size_t at = 0; at < body.size();) {
    const size_t end = body.find("\n\n", at);
    if (end == std::string::npos || body.compare(at, 6, "data: ") != 0) {
      ADD_FAILURE() << "bad SSE framing at " << at;
      return events;
    }
    const std::string data = body.substr(at + 6, end - at - 6);
    EXPECT_FALSE(*done) << "an event after [DONE]";
    if (data == "[DONE]") {
      *done = true;
    } else {
      events.push_back(Json::parse(data));
    }
    at = end + 2;
  }
  return events;
}

TEST_F(ApiServerTest, CompletionHasTextUsageAndReason) {
  Serve();
  const Json body =
      Json::parse(Complete(R"({"model": "fake", "prompt": "abc", "max_tokens": 5, "temperature": 0})").body);
  EXPECT_EQ(body["object"], "text_completion");
  EXPECT_EQ(body["choices"][0]["text"], "abcab");
  EXPECT_EQ(body["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(body["usage"]["prompt_tokens"], 3);
  EXPECT_EQ(body["usage"]["completion_tokens"], 5);
  EXPECT_EQ(body["usage"]["total_tokens"], 8);
}

TEST_F(ApiServerTest, ManyPromptsAndChoices) {
  Serve();
  const Json body =
      Json::parse(Complete(R"({"prompt": ["ab", "xyz"], "max_tokens": 2, "n": 3, "seed": 40})").body);
  ASSERT_EQ(body["choices"].size(), 6u);
  for (int i = 0; i < 6; ++i) {
    EXPECT_EQ(body["choices"][i]["index"], i);
    EXPECT_EQ(body["choices"][i]["text"], i < 3 ? "ab" : "xy");
  }
  EXPECT_EQ(body["usage"]["prompt_tokens"], 5);
  EXPECT_EQ(body["usage"]["completion_tokens"], 12);
  EXPECT_EQ(engine_->seeds(), (std::vector<uint64_t>{40, 41, 42, 40, 41, 42}));
  EXPECT_EQ(engine_->num_samplings(), 1u) << "shared by prompts and choices";
  EXPECT_EQ(engine_->num_prompts(), 2u) << "shared by choices";
}

TEST_F(ApiServerTest, PromptsWithoutASeedHaveNoneInCommon) {
  Serve();
  ASSERT_EQ(Complete(R"({"prompt": ["ab", "ab", "ab"], "max_tokens": 2, "n": 2})").status, 200);
  const std::vector<uint64_t> seeds = engine_->seeds();
  ASSERT_EQ(seeds.size(), 6u);
  EXPECT_EQ(std::set<uint64_t>(seeds.begin(), seeds.end()).size(), 6u);
}

TEST_F(ApiServerTest, StopStringAbortsTheEngine) {
  Serve();
  const Json body = Json::parse(
      Complete(R"({"prompt": "abcdef", "max_tokens": 4000, "stop": ["zz", "de"], "temperature": 0})").body);
  EXPECT_EQ(body["choices"][0]["text"], "abc");
  EXPECT_EQ(body["choices"][0]["stop_reason"], "de");
  EXPECT_EQ(body["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(body["usage"]["completion_tokens"], 5);
  EXPECT_TRUE(engine_->WaitIdle());
  EXPECT_EQ(engine_->num_aborted(), 1);
}

TEST_F(ApiServerTest, EosAndStopTokenIds) {
  Serve();
  const Json eos = Json::parse(Complete(R"({"prompt": [97, 256], "max_tokens": 9, "temperature": 0})").body);
  EXPECT_EQ(eos["choices"][0]["finish_reason"], "stop");
  EXPECT_TRUE(eos["choices"][0]["stop_reason"].is_null());
  EXPECT_EQ(eos["choices"][0]["text"], "a");
  const Json id = Json::parse(
      Complete(R"({"prompt": "abc", "max_tokens": 9, "temperature": 0, "stop_token_ids": [98]})").body);
  EXPECT_EQ(id["choices"][0]["stop_reason"], 98);
  const Json ignored = Json::parse(
      Complete(R"({"prompt": [97, 256], "max_tokens": 3, "temperature": 0, "ignore_eos": true})").body);
  EXPECT_EQ(ignored["choices"][0]["text"], "aa");
  EXPECT_EQ(ignored["usage"]["completion_tokens"], 3);
}

TEST_F(ApiServerTest, EchoAndLogprobs) {
  Serve();
  const Json body = Json::parse(
      Complete(R"({"prompt": "abc", "max_tokens": 1, "temperature": 0, "echo": true, "logprobs": 2})").body);
  const Json& choice = body["choices"][0];
  EXPECT_EQ(choice["text"], "abca");
  EXPECT_EQ(choice["logprobs"]["tokens"], Json::array({"a", "b", "c", "a"}));
  EXPECT_TRUE(choice["logprobs"]["token_logprobs"][0].is_null());
  EXPECT_EQ(choice["logprobs"]["text_offset"], Json::array({0, 1, 2, 3}));
  EXPECT_EQ(choice["logprobs"]["top_logprobs"][1].size(), 2u);
  EXPECT_EQ(choice["prompt_logprobs"].size(), 3u);
  const Json none =
      Json::parse(Complete(R"({"prompt": "abc", "max_tokens": 0, "temperature": 0, "echo": true})").body);
  EXPECT_EQ(none["choices"][0]["text"], "abc");
  EXPECT_EQ(none["usage"]["completion_tokens"], 0);
}

TEST_F(ApiServerTest, StreamsTheSameText) {
  Serve();
  const HttpReply reply = Complete(
      R"({"prompt": "abc", "max_tokens": 7, "temperature": 0, "stream": true, "stream_options": {"include_usage": true}})");
  EXPECT_TRUE(absl::StrContains(reply.head, "text/event-stream"));
  bool done;
  const std::vector<Json> events = Events(reply.body, &done);
  EXPECT_TRUE(done);
  std::string text;
  int reasons = 0;
  for (const Json& event : events) {
    EXPECT_EQ(event["id"], events[0]["id"]);
    for (const Json& choice : event["choices"]) {
      text += choice["text"].get<std::string>();
      reasons += !choice["finish_reason"].is_null();
    }
  }
  EXPECT_EQ(text, "abcabca");
  EXPECT_EQ(reasons, 1);
  EXPECT_EQ(events.back()["choices"].size(), 0u);
  EXPECT_EQ(events.back()["usage"]["completion_tokens"], 7);
  EXPECT_TRUE(events[0]["usage"].is_null());
}

TEST_F(ApiServerTest, AStreamThatFailsSaysSoAndEnds) {
  Serve();
  engine_->FailAfter(2, absl::InternalError("rank 1 died: /tmp/secret at 0xdeadbeef"));
  bool done;
  const std::vector<Json> events =
      Events(Complete(R"({"prompt": "abc", "max_tokens": 9, "stream": true})").body, &done);
  EXPECT_TRUE(done);
  ASSERT_TRUE(events.back().contains("error"));
  const std::string message = events.back()["error"]["message"];
  EXPECT_TRUE(absl::StrContains(message, "rank 1 died"));
  EXPECT_FALSE(absl::StrContains(message, "secret"));
  EXPECT_FALSE(absl::StrContains(message, "beef"));
  EXPECT_EQ(Complete(R"({"prompt": "abc", "max_tokens": 9})").status, 500);
}

TEST_F(ApiServerTest, PrioritiesReachTheEngine) {
  Serve();
  EXPECT_EQ(Complete(R"({"prompt": "abc", "priority": -7})").status, 200);
  EXPECT_EQ(Complete(R"({"prompt": "abc", "priority": 9223372036854775807})").status, 200);
  EXPECT_EQ(engine_->priorities(), (std::vector<int32_t>{-7, 2147483647}));
}

TEST_F(ApiServerTest, TheRequestsIdComesFromItsHeaderOrItsBody) {
  Serve();
  const auto id = [&](const std::string& body, const std::string& header) {
    return Json::parse(Send("POST", "/v1/completions", body, header).body)["id"].get<std::string>();
  };
  EXPECT_EQ(id(R"({"prompt": "abc", "request_id": "mine"})", ""), "cmpl-mine");
  EXPECT_EQ(id(R"({"prompt": "abc", "request_id": "mine"})", "X-Request-Id: \"head\r\n"), "cmpl-\"head");
  const HttpReply refused = Send("POST", "/v1/completions", R"({"prompt": "abc"})",
                                 absl::StrCat("X-Request-Id: ", std::string(1025, 'a'), "\r\n"));
  EXPECT_EQ(refused.status, 400);
  EXPECT_EQ(Json::parse(refused.body)["error"]["param"], "X-Request-Id");
}

TEST_F(ApiServerTest, TruncationKeepsEitherSide) {
  Serve();
  const auto text = [&](const std::string& side) {
    const std::string body = absl::StrCat(
        R"({"prompt": "abcdef", "max_tokens": 2, "temperature": 0, "truncate_prompt_tokens": 2)", side, "}");
    return Json::parse(Complete(body).body)["choices"][0]["text"].get<std::string>();
  };
  EXPECT_EQ(text(""), "ef");
  EXPECT_EQ(text(R"(, "truncation_side": "left")"), "ef");
  EXPECT_EQ(text(R"(, "truncation_side": "right")"), "ab");
}

TEST_F(ApiServerTest, StreamIntervalGathersTokens) {
  Serve();
  const HttpReply reply = Complete(
      R"({"prompt": "abc", "max_tokens": 8, "temperature": 0, "stream": true, "stream_interval": 3,
          "return_token_ids": true, "logprobs": 0})");
  bool done;
  std::vector<size_t> sizes;
  std::string text;
  for (const Json& event : Events(reply.body, &done)) {
    const Json& choice = event["choices"][0];
    text += choice["text"].get<std::string>();
    if (choice["token_ids"].empty()) continue;  // the prompt's event
    sizes.push_back(choice["token_ids"].size());
    EXPECT_EQ(choice["logprobs"]["tokens"].size(), sizes.back());
  }
  EXPECT_TRUE(done);
  EXPECT_EQ(text, "abcabcab");
  EXPECT_EQ(sizes, (std::vector<size_t>{1, 3, 3, 1}));
}

TEST_F(ApiServerTest, TokenizeAndBack) {
  Serve();
  const Json tokens =
      Json::parse(Send("POST", "/tokenize", R"({"prompt": "ab", "return_token_strs": true})").body);
  EXPECT_EQ(tokens["tokens"], Json::array({97, 98}));
  EXPECT_EQ(tokens["count"], 2);
  EXPECT_EQ(tokens["token_strs"], Json::array({"a", "b"}));
  EXPECT_EQ(tokens["max_model_len"], 4096);
  EXPECT_EQ(Json::parse(Send("POST", "/detokenize", R"({"tokens": [97, 98]})").body)["prompt"], "ab");
  EXPECT_EQ(Send("POST", "/detokenize", R"({"tokens": [257]})").status, 400);
}

TEST_F(ApiServerTest, MetricsCountRequests) {
  Serve();
  ExpectHealthy();
  ASSERT_TRUE(engine_->WaitIdle());
  const std::string text = Send("GET", "/metrics").body;
  for (const char* line :
       {"vllm:num_requests_running{engine=\"0\",model_name=\"fake\"} 0",
        "vllm:generation_tokens_total{engine=\"0\",model_name=\"fake\"} 4",
        "vllm:request_success_total{engine=\"0\",finished_reason=\"length\",model_name=\"fake\"} 1"}) {
    EXPECT_TRUE(absl::StrContains(text, line)) << line;
  }
}

// Clients leave streams and whole responses, of one choice and of several.
TEST_F(ApiServerTest, MetricsCountRequestsWhoseClientsLeave) {
  Serve({}, absl::Milliseconds(1));
  const auto count = [this](const char* reason) -> double {
    const std::string mark = absl::StrCat("vllm:request_success_total{engine=\"0\",finished_reason=\"",
                                          reason, "\",model_name=\"fake\"} ");
    const std::string text = Send("GET", "/metrics").body;
    const size_t at = text.find(mark);
    return at == std::string::npos ? 0 : std::atof(text.c_str() + at + mark.size());
  };
  const auto await = [&](double aborted) {
    const absl::Time deadline = absl::Now() + absl::Seconds(20);
    while (count("abort") < aborted && absl::Now() < deadline) absl::SleepFor(absl::Milliseconds(5));
    EXPECT_EQ(count("abort"), aborted);
  };
  double aborted = 0;
  for (const char* fields :
       {R"("stream": true)", R"("stream": false)", R"("stream": true, "n": 3)", R"("n": 2)"}) {
    HttpClient client(server_->port());
    client.Write(RequestText("POST", "/v1/completions",
                             absl::StrCat(R"({"prompt": "abc", "max_tokens": 4000, )", fields, "}")));
    AwaitOpen();
    aborted += engine_->num_open();
    client.Close();
    EXPECT_TRUE(engine_->WaitIdle());
    await(aborted);
  }
  ASSERT_TRUE(engine_->Pause({}).ok());
  HttpClient waits(server_->port());
  waits.Write(RequestText("POST", "/v1/completions", R"({"prompt": "abc", "max_tokens": 4})"));
  AwaitOpen();
  waits.Close();
  await(aborted + 1);  // the request has never run
  ASSERT_TRUE(engine_->Resume().ok());
  EXPECT_TRUE(engine_->WaitIdle());
  engine_->set_submit_status(absl::ResourceExhaustedError("the queue is full"));
  EXPECT_EQ(Complete(R"({"prompt": "abc"})").status, 429);
  engine_->set_submit_status(absl::OkStatus());
  ExpectHealthy();
  EXPECT_EQ(count("abort"), aborted + 1) << "what was refused was never begun";
  EXPECT_EQ(count("length"), 1);
}

TEST_F(ApiServerTest, ATextThatIsCutInACharacterEndsBeforeIt) {
  Serve();
  const auto request = [](int max_tokens, const char* more) {
    return absl::StrCat(R"({"prompt": "a\u00e9\ud83d\ude00b", "temperature": 0, "max_tokens": )", max_tokens,
                        more, "}");
  };
  // a, 2 bytes, 4 bytes, b
  const std::string texts[] = {"a",       "a",       "a\u00e9",           "a\u00e9",
                               "a\u00e9", "a\u00e9", "a\u00e9\U0001f600", "a\u00e9\U0001f600b"};
  for (int n = 1; n <= 8; ++n) {
    for (const char* more : {"", R"(, "logprobs": 1)", R"(, "stop": ["\ufffd"])"}) {
      const Json body = Json::parse(Complete(request(n, more)).body);
      EXPECT_EQ(body["choices"][0]["text"], texts[n - 1]) << n << more;
      EXPECT_EQ(body["choices"][0]["finish_reason"], "length");
      EXPECT_EQ(body["usage"]["completion_tokens"], n);
    }
    const HttpReply stream = Complete(request(n, R"(, "stream": true)"));
    EXPECT_FALSE(absl::StrContains(stream.body, "\ufffd")) << stream.body;
  }
}

TEST_F(ApiServerTest, AFullQueueIs429) {
  Serve();
  engine_->set_state(EngineState::kAwake);
  std::string prompts = "\"a\"";
  for (int i = 1; i < 1000; ++i) prompts += ",\"a\"";
  const HttpReply many = Complete(absl::StrCat(R"({"prompt": [)", prompts, R"(], "n": 2})"));
  EXPECT_EQ(many.status, 400) << "more sequences than one request may have";
  auto small = std::make_shared<FakeEngine>(absl::Microseconds(200), 1);
  absl::StatusOr<std::unique_ptr<ApiServer>> server =
      ApiServer::Start({.port = 0, .admin_port = 0}, Metrics::Create("fake", 4096));
  ASSERT_TRUE(server.ok());
  (*server)->SetModel(FakeModel(small));
  HttpClient client((*server)->port());
  client.Write(RequestText("POST", "/v1/completions", R"({"prompt": ["a", "b"]})"));
  const HttpReply reply = client.ReadReply();
  EXPECT_EQ(reply.status, 429);
  EXPECT_TRUE(absl::StrContains(reply.head, "Retry-After"));
}

TEST_F(ApiServerTest, ShutdownLetsOpenRequestsEnd) {
  Serve({}, absl::Milliseconds(5));
  HttpClient client(server_->port());
  client.Write(RequestText("POST", "/v1/completions", R"({"prompt": "abc", "max_tokens": 40})"));
  AwaitOpen();
  server_->Shutdown(absl::Seconds(20));
  EXPECT_EQ(client.ReadReply().status, 200);
  HttpClient late(server_->port());
  EXPECT_FALSE(late.Fill());
}

TEST_F(ApiServerTest, ShutdownAtOnceAborts) {
  Serve({}, absl::Milliseconds(5));
  HttpClient client(server_->port());
  client.Write(
      RequestText("POST", "/v1/completions", R"({"prompt": "abc", "max_tokens": 4000, "stream": true})"));
  ASSERT_TRUE(client.ReadUntil("data: "));
  server_->Shutdown(absl::ZeroDuration());
  EXPECT_TRUE(engine_->WaitIdle(absl::Seconds(5)));
}

TEST(ApiServerStartTest, APortInUseIsNamed) {
  absl::StatusOr<std::unique_ptr<ApiServer>> first =
      ApiServer::Start({.port = 0, .admin_port = 0}, Metrics::Create("m", 10));
  ASSERT_TRUE(first.ok());
  const absl::StatusOr<std::unique_ptr<ApiServer>> second =
      ApiServer::Start({.port = (*first)->port(), .admin_port = 0}, Metrics::Create("m", 10));
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(absl::StrContains(second.status().message(), absl::StrCat((*first)->port())));
  EXPECT_EQ(ApiServer::Start({.host = "not an address", .port = 0}, Metrics::Create("m", 10)).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace somnus
