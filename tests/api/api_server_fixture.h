#pragma once
// The whole HTTP front over real sockets, above a fake engine.

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "coordinator/http_server/api_server.h"
#include "coordinator/metrics/metrics.h"
#include "tests/api/fakes.h"
#include "tests/api/http_client.h"

namespace somnus {

using Json = nlohmann::json;

class ApiServerTest : public ::testing::Test {
 protected:
  void Start(ApiServerOptions options = {}, absl::Duration step = absl::Microseconds(200)) {
    options.port = options.admin_port = 0;
    options.version = "1.2.3";
    engine_ = std::make_shared<FakeEngine>(step);
    absl::StatusOr<std::unique_ptr<ApiServer>> server =
        ApiServer::Start(options, Metrics::Create("fake", 4096));
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  void Serve(ApiServerOptions options = {}, absl::Duration step = absl::Microseconds(200)) {
    Start(std::move(options), step);
    server_->SetModel(FakeModel(engine_));
  }
  HttpReply Send(const std::string& method, const std::string& path, const std::string& body = "",
                 const std::string& headers = "") {
    HttpClient client(server_->port());
    client.Write(RequestText(method, path, body, headers));
    return client.ReadReply();
  }
  HttpReply Admin(const std::string& method, const std::string& path, const std::string& body = "",
                  const std::string& headers = "") {
    HttpClient client(server_->admin_port());
    client.Write(RequestText(method, path, body, headers));
    return client.ReadReply();
  }
  // Posts to /v1/completions.
  HttpReply Complete(const std::string& body) { return Send("POST", "/v1/completions", body); }
  // Waits until the engine has an open request.
  void AwaitOpen() {
    const absl::Time deadline = absl::Now() + absl::Seconds(20);
    while (engine_->num_open() == 0 && absl::Now() < deadline) absl::SleepFor(absl::Milliseconds(1));
    ASSERT_GT(engine_->num_open(), 0u);
  }
  void AwaitState(EngineState state) {
    const absl::Time deadline = absl::Now() + absl::Seconds(20);
    while (engine_->state() != state && absl::Now() < deadline) absl::SleepFor(absl::Milliseconds(1));
    ASSERT_EQ(engine_->state(), state);
  }
  // Starts a streamed response of 4000 tokens for each prompt, and waits until it is open.
  void StartLongStream(HttpClient* client, int prompts, int logprobs) {
    std::string list = "\"abc\"";
    for (int i = 1; i < prompts; ++i) list += ",\"abc\"";
    client->Write(
        RequestText("POST", "/v1/completions",
                    absl::StrCat(R"({"prompt": [)", list,
                                 R"(], "max_tokens": 4000, "stream": true, "logprobs": )", logprobs, "}")));
    AwaitOpen();
  }
  void ExpectHealthy() {
    const HttpReply reply = Complete(R"({"prompt": "abc", "max_tokens": 4, "temperature": 0})");
    ASSERT_EQ(reply.status, 200) << reply.body;
    EXPECT_EQ(Json::parse(reply.body)["choices"][0]["text"], "abca");
  }

  std::shared_ptr<FakeEngine> engine_;
  std::unique_ptr<ApiServer> server_;
};

}  // namespace somnus
