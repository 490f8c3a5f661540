// Clients that leave, stall, send too much, or do not use HTTP; API keys.

#include <gtest/gtest.h>

#include "tests/api/api_server_fixture.h"

namespace somnus {
namespace {

TEST_F(ApiServerTest, ClientsThatLeaveAreAborted) {
  Serve({}, absl::Milliseconds(2));
  for (const bool stream : {false, true}) {
    for (const bool reset : {false, true}) {
      HttpClient client(server_->port());
      client.Write(RequestText(
          "POST", "/v1/completions",
          absl::StrCat(R"({"prompt": "abc", "max_tokens": 4000, "stream": )", stream ? "true}" : "false}")));
      AwaitOpen();
      if (stream) {
        ASSERT_TRUE(client.ReadUntil("data: "));
      }
      reset ? client.Reset() : client.Close();
      EXPECT_TRUE(engine_->WaitIdle(absl::Seconds(5))) << stream << reset;
    }
  }
  EXPECT_EQ(engine_->num_aborted(), 4);
}

TEST_F(ApiServerTest, AClientThatLeavesBehindAPipelinedRequestIsAborted) {
  Serve({}, absl::Milliseconds(2));
  HttpClient client(server_->port());
  const std::string request =
      RequestText("POST", "/v1/completions", R"({"prompt": "abc", "max_tokens": 4000})");
  client.Write(request + request);
  AwaitOpen();
  client.Close();
  EXPECT_TRUE(engine_->WaitIdle(absl::Seconds(5)));
}

TEST_F(ApiServerTest, AClientThatDoesNotReadIsBounded) {
  // The engine is still at work when the timeout has passed, however slow the machine is.
  Serve(ApiServerOptions{.limits = {.write_timeout = absl::Milliseconds(300)}}, absl::Microseconds(200));
  HttpClient client(server_->port());
  // Some 30 MB of events: more than sockets buffer.
  StartLongStream(&client, /*prompts=*/60, /*logprobs=*/1);
  EXPECT_TRUE(engine_->WaitIdle(absl::Seconds(30)));
  EXPECT_GT(engine_->num_aborted(), 0);
  ExpectHealthy();
}

TEST_F(ApiServerTest, HeaderLimits) {
  Serve();
  EXPECT_EQ(Send("GET", "/health", "", absl::StrCat("X: ", std::string(100'000, 'a'), "\r\n")).status, 431);
  std::string many;
  for (int i = 0; i < 200; ++i) absl::StrAppend(&many, "X", i, ": 1\r\n");
  EXPECT_EQ(Send("GET", "/health", "", many).status, 431);
  EXPECT_EQ(Send("GET", "/health", "", absl::StrCat("X: ", std::string(8000, 'a'), "\r\n")).status, 200);
}

TEST_F(ApiServerTest, BodyLimits) {
  Serve(ApiServerOptions{.limits = {.max_body_bytes = 10'000}});
  const auto raw = [&](const std::string& text) {
    HttpClient client(server_->port());
    client.Write(text);
    return client.ReadReply().status;
  };
  const std::string head = "POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n";
  EXPECT_EQ(raw(head + "Content-Length: 10001\r\n\r\n"), 413);
  EXPECT_EQ(raw(head + "Content-Length: 9223372036854775808\r\n\r\n"), 413);
  EXPECT_EQ(raw(head + "Content-Length: -1\r\n\r\n"), 400);
  EXPECT_EQ(raw(head + "Content-Length: 99999999999999999999999\r\n\r\n"), 400);
  EXPECT_EQ(raw(head + "Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n{}"), 400);
  EXPECT_EQ(raw(head + "Transfer-Encoding: chunked\r\n\r\nxyz\r\n"), 400);
  EXPECT_EQ(
      raw(head + "Transfer-Encoding: chunked\r\n\r\n2711\r\n" + std::string(10001, 'a') + "\r\n0\r\n\r\n"),
      413);
  ExpectHealthy();
}

TEST_F(ApiServerTest, ChunkedBodyInManyPieces) {
  Serve();
  const std::string body = R"({"prompt": "abc", "max_tokens": 4, "temperature": 0})";
  std::string text =
      "POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nTransfer-Encoding: "
      "chunked\r\n\r\n";
  for (const char c : body) absl::StrAppend(&text, "1\r\n", std::string(1, c), "\r\n");
  HttpClient client(server_->port());
  client.Write(text + "0\r\n\r\n");
  EXPECT_EQ(Json::parse(client.ReadReply().body)["choices"][0]["text"], "abca");
}

TEST_F(ApiServerTest, SlowSendersAreCut) {
  ApiServerOptions options;
  options.limits.header_timeout = options.limits.body_timeout = options.limits.idle_timeout =
      absl::Milliseconds(200);
  Serve(options);
  HttpClient slow_head(server_->port()), slow_body(server_->port()), silent(server_->port());
  slow_head.Write("GET /health HTTP/1.1\r\nHost:");
  slow_body.Write(
      "POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: "
      "100\r\n\r\n{");
  EXPECT_TRUE(slow_head.ReadsEof());
  EXPECT_TRUE(slow_body.ReadsEof());
  EXPECT_TRUE(silent.ReadsEof());
  ExpectHealthy();
}

TEST_F(ApiServerTest, KeepAlivePipeliningAndContinue) {
  Serve();
  HttpClient client(server_->port());
  const std::string request =
      RequestText("POST", "/v1/completions", R"({"prompt": "abc", "max_tokens": 2, "temperature": 0})");
  std::string many;
  for (int i = 0; i < 50; ++i) many += request;
  client.Write(many);
  for (int i = 0; i < 50; ++i) ASSERT_EQ(client.ReadReply().status, 200) << i;
  client.Write(
      "POST /tokenize HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: 15\r\nExpect: "
      "100-continue\r\n\r\n");
  ASSERT_TRUE(client.ReadUntil("100 Continue\r\n\r\n"));
  client.Write(R"({"prompt": "a"})");
  EXPECT_EQ(client.ReadReply().status, 200);
}

TEST_F(ApiServerTest, WhenConnectionsRunOutTheLongestIdleGoes) {
  Serve(ApiServerOptions{.limits = {.max_connections = 3}}, absl::Milliseconds(2));
  HttpClient busy(server_->port());
  busy.Write(
      RequestText("POST", "/v1/completions", R"({"prompt": "abc", "max_tokens": 4000, "stream": true})"));
  ASSERT_TRUE(busy.ReadUntil("data: "));
  HttpClient oldest(server_->port());
  oldest.Write(RequestText("GET", "/health", ""));
  ASSERT_EQ(oldest.ReadReply().status, 200);
  HttpClient newer(server_->port());
  newer.Write("GET /health HTTP/1.1\r\nHo");
  HttpClient newest(server_->port());
  newest.Write(RequestText("GET", "/health", ""));
  EXPECT_EQ(newest.ReadReply().status, 200);
  EXPECT_TRUE(oldest.ReadsEof());
  newer.Write("st: a\r\n\r\n");
  EXPECT_EQ(newer.ReadReply().status, 200);
  EXPECT_EQ(engine_->num_open(), 1u);
}

TEST_F(ApiServerTest, BrokenHttpIsRefused) {
  Serve();
  for (const std::string& text :
       {std::string("\x16\x03\x01\x02garbage\r\n\r\n"), std::string("GET\r\n\r\n"),
        std::string("GET /health\r\n\r\n"),
        absl::StrCat("GET /he", std::string(1, '\0'), "alth HTTP/1.1\r\nHost: a\r\n\r\n"),
        std::string("GET /health HTTP/1.1\r\n\r\n"),
        std::string("GET /health HTTP/1.1\r\nHost: a\r\nX\r\n\r\n")}) {
    HttpClient client(server_->port());
    client.Write(text);
    const int status = client.ReadReply().status;
    EXPECT_TRUE(status == 400 || status == 505) << status << " for " << text;
  }
  ExpectHealthy();
}

TEST_F(ApiServerTest, ApiKeyGuardsEverythingButHealthAndMetrics) {
  Serve(ApiServerOptions{.api_keys = ApiKeys("secret")});
  for (const char* path : {"/v1/models", "/version", "/load", "/nope", "/tokenize", "/v1/completions"}) {
    EXPECT_EQ(Send("GET", path).status, 401) << path;
    EXPECT_EQ(Send("GET", path, "", "Authorization: Bearer secre\r\n").status, 401) << path;
  }
  EXPECT_EQ(Send("GET", "/health").status, 200);
  EXPECT_EQ(Send("GET", "/metrics").status, 200);
  EXPECT_EQ(Send("GET", "/v1/models", "", "Authorization: Bearer secret\r\n").status, 200);
}

TEST_F(ApiServerTest, RefusalsAreCounted) {
  ApiServerOptions options{.api_keys = ApiKeys("secret")};
  options.limits.max_body_bytes = 1000;
  options.limits.header_timeout = absl::Milliseconds(50);
  Serve(options);
  const auto raw = [&](const std::string& text) {
    HttpClient client(server_->port());
    client.Write(text);
    return client.ReadReply().status;
  };
  const std::string key = "Authorization: Bearer secret\r\n";
  EXPECT_EQ(Send("POST", "/v1/completions", std::string(1001, 'a'), key).status, 413);
  EXPECT_EQ(Send("POST", "/v1/completions", "{}").status, 401);
  EXPECT_EQ(Send("GET", "/nope", "", key).status, 404);
  EXPECT_EQ(Send("POST", "/nope", "{}", key).status, 404);
  EXPECT_EQ(Send("BREW", "/v1/models", "", key).status, 405);
  EXPECT_EQ(raw("GET\r\n\r\n"), 400);
  EXPECT_EQ(raw("POST /v1/chat/com"), 0) << "cut after the time for headers";
  const std::string metrics = Send("GET", "/metrics").body;
  for (const char* series : {R"(http_requests_total{handler="/v1/completions",method="POST",status="4xx"} 2)",
                             R"(http_requests_total{handler="none",method="GET",status="4xx"} 1)",
                             R"(http_requests_total{handler="none",method="POST",status="4xx"} 1)",
                             R"(http_requests_total{handler="none",method="none",status="4xx"} 3)"}) {
    EXPECT_TRUE(absl::StrContains(metrics, series)) << series;
  }
  EXPECT_TRUE(absl::StrContains(metrics, R"(reason="http_408"} 1)"));
}

TEST_F(ApiServerTest, OperatorsKeyGuardsEverythingButProbesAndMetrics) {
  Serve(ApiServerOptions{.api_keys = ApiKeys("clients"), .admin_api_keys = ApiKeys("operators")});
  const std::pair<const char*, const char*> guarded[] = {
      {"POST", "/sleep"},         {"POST", "/wake_up"},
      {"GET", "/is_sleeping"},    {"POST", "/reset_prefix_cache"},
      {"GET", "/server_info"},    {"GET", "/version"},
      {"GET", "/load"},           {"GET", "/nope"},
      {"GET", "/v1/models"},      {"GET", "/sleep"},
      {"POST", "/sleep/"},        {"DELETE", "/sleep"},
      {"POST", "/sleep?level=2"}, {"POST", "/v1/completions"},
      {"GET", "/v1/models/fake"}, {"POST", "/tokenize"},
      {"GET", "/get_world_size"}};
  for (const auto& [method, path] : guarded) {
    for (const char* key : {"", "clients", "operator", "operators2"}) {
      const std::string headers = *key == 0 ? "" : absl::StrCat("Authorization: Bearer ", key, "\r\n");
      EXPECT_EQ(Admin(method, path, "", headers).status, 401) << method << path << key;
    }
  }
  EXPECT_EQ(engine_->state(), EngineState::kAwake);
  for (const char* path : {"/livez", "/readyz", "/health", "/ping", "/metrics"}) {
    EXPECT_EQ(Admin("GET", path).status, 200) << path;
  }
  const char* key = "Authorization: Bearer operators\r\n";
  EXPECT_EQ(Admin("POST", "/sleep", "", key).status, 200);
  EXPECT_EQ(Admin("POST", "/wake_up", "", key).status, 200);
  EXPECT_EQ(Send("GET", "/v1/models", "", key).status, 401) << "each listener has its own key";
  EXPECT_EQ(Admin("GET", "/v1/models", "", key).status, 200);
}

TEST_F(ApiServerTest, WhatClientsNeedAKeyForIsNotOpenOnOperatorsListenerWithoutOne) {
  Serve(ApiServerOptions{.api_keys = ApiKeys("clients")});
  const char* key = "Authorization: Bearer clients\r\n";
  for (const char* path : {"/v1/models", "/v1/models/fake"}) {
    EXPECT_EQ(Admin("GET", path).status, 401) << path;
    EXPECT_EQ(Admin("GET", path, "", key).status, 200) << path;
  }
  for (const char* path : {"/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"})
    EXPECT_EQ(Admin("POST", path, "{}").status, 401) << path;
  EXPECT_EQ(Admin("GET", "/is_sleeping").status, 200) << "operators have no key";
}

}  // namespace
}  // namespace somnus
