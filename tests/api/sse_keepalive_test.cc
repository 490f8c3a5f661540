// Streams that are silent: a comment keeps proxies from closing them, and changes nothing of what is said.

#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "tests/api/api_server_fixture.h"

namespace somnus {
namespace {

constexpr char kStream[] =
    R"({"prompt": "abcdef", "max_tokens": 12, "stream": true, "stream_options": {"include_usage": true},
        "request_id": "r"})";
constexpr char kComment[] = ": keep-alive\n\n";
constexpr char kRecovering[] =
    ": waiting: The engine is recovering from the loss of a worker; requests wait until the group is whole "
    "again.\n\n";

ApiServerOptions KeepAlive(absl::Duration duration) {
  ApiServerOptions options{.limits = {.sse_keepalive = duration}};
  return options;
}

TEST_F(ApiServerTest, AStreamThatWaitsForARecoveryGetsComments) {
  Serve(KeepAlive(absl::Milliseconds(5)), absl::Milliseconds(1));
  engine_->LoseAfter(3);
  HttpClient client(server_->port());
  client.Write(RequestText("POST", "/v1/completions", kStream));
  AwaitState(EngineState::kRecovering);
  ASSERT_TRUE(client.ReadUntil(kRecovering));
  engine_->set_state(EngineState::kAwake);
  const HttpReply reply = client.ReadReply();
  EXPECT_EQ(reply.status, 200);
  EXPECT_TRUE(absl::EndsWith(reply.body, "data: [DONE]\n\n"));
  const std::string events = absl::StrReplaceAll(reply.body, {{kComment, ""}, {kRecovering, ""}});
  EXPECT_FALSE(absl::StrContains(events, "keep-alive")) << "comments stand between events";
  EXPECT_FALSE(absl::StrContains(events, "waiting")) << "comments stand between events";
  EXPECT_TRUE(absl::StrContains(events, "\"completion_tokens\":12"));
  EXPECT_FALSE(absl::StrContains(events, "\"error\""));
}

TEST_F(ApiServerTest, AStreamThatIsAcceptedDuringARecoveryGetsItsHeadAtOnce) {
  Serve();  // with comments every 15 s
  engine_->set_state(EngineState::kRecovering);
  HttpClient client(server_->port());
  client.Write(RequestText("POST", "/v1/completions", kStream));
  ASSERT_TRUE(client.ReadUntil(kRecovering));
  engine_->set_state(EngineState::kAwake);
  const HttpReply reply = client.ReadReply();
  EXPECT_EQ(reply.status, 200);
  EXPECT_TRUE(absl::StartsWith(reply.body, kRecovering));
  EXPECT_TRUE(absl::EndsWith(reply.body, "data: [DONE]\n\n"));
}

// A client learns at once that its request is in, and why nothing comes.
TEST_F(ApiServerTest, AStreamThatWaitsForAnOperatorGetsItsHeadAndTheReasonAtOnce) {
  Serve();  // with comments every 15 s
  ASSERT_TRUE(engine_->Pause({}).ok());
  for (const bool chunked : {true, false}) {
    HttpClient client(server_->port());
    std::string request = RequestText("POST", "/v1/completions", kStream, "X-Request-Id: mine\r\n");
    if (!chunked) request = absl::StrReplaceAll(request, {{"HTTP/1.1", "HTTP/1.0"}});
    client.Write(request);
    ASSERT_TRUE(client.ReadUntil(": waiting: The engine is paused; requests wait until it is resumed.\n\n"));
    EXPECT_TRUE(absl::StartsWith(client.buffered(), "HTTP/1.1 200 OK\r\n"));
    EXPECT_TRUE(absl::StrContains(client.buffered(), "X-Request-Id: mine\r\n"));
    client.Close();
    EXPECT_TRUE(engine_->Resume().ok());
    EXPECT_TRUE(engine_->WaitIdle());
    ASSERT_TRUE(engine_->Pause({}).ok());
  }
}

TEST_F(ApiServerTest, WhereTheHeadComesTooEarlyTheLastEventTellsTheVersionOfTheWeights) {
  Serve();
  const auto last_events = [](const std::string& body) {
    std::vector<Json> found;
    for (const absl::string_view event : absl::StrSplit(body, "\n\n", absl::SkipEmpty())) {
      if (!absl::StartsWith(event, "data: {")) continue;
      Json parsed = Json::parse(event.substr(6));
      const bool ends = !parsed["choices"].empty() && !parsed["choices"][0]["finish_reason"].is_null();
      EXPECT_TRUE(ends || !parsed.contains("weight_version")) << event;
      if (ends) found.push_back(std::move(parsed));
    }
    return found;
  };
  const HttpReply usual = Complete(kStream);
  EXPECT_TRUE(absl::StrContains(usual.head, "X-Weight-Version: 1\r\n"));
  for (const Json& event : last_events(usual.body)) EXPECT_FALSE(event.contains("weight_version")) << event;
  ASSERT_TRUE(engine_->ReloadWeights({.version = 7}).ok());
  engine_->set_state(EngineState::kRecovering);
  HttpClient client(server_->port());
  client.Write(
      RequestText("POST", "/v1/completions", R"({"prompt": ["ab", "cd"], "max_tokens": 3, "stream": true})"));
  ASSERT_TRUE(client.ReadUntil(kRecovering));
  engine_->set_state(EngineState::kAwake);
  const HttpReply early = client.ReadReply();
  EXPECT_FALSE(absl::StrContains(early.head, "X-Weight-Version")) << early.head;
  const std::vector<Json> events = last_events(early.body);
  ASSERT_EQ(events.size(), 2u) << early.body;
  for (const Json& event : events) EXPECT_EQ(event["weight_version"], 7) << event;
}

TEST_F(ApiServerTest, AnErrorAfterTheHeadIsAnEvent) {
  Serve(KeepAlive(absl::Milliseconds(1)), absl::Milliseconds(1));
  engine_->FailAfter(0, absl::UnavailableError("the engine failed"));
  engine_->set_state(EngineState::kRecovering);
  HttpClient client(server_->port());
  client.Write(RequestText("POST", "/v1/completions", kStream));
  ASSERT_TRUE(client.ReadUntil(kRecovering));
  engine_->set_state(EngineState::kAwake);
  const HttpReply reply = client.ReadReply();
  EXPECT_EQ(reply.status, 200);
  EXPECT_TRUE(absl::StrContains(reply.body, "data: {\"error\":{\"message\":\"the engine failed\""))
      << reply.body;
  EXPECT_TRUE(absl::EndsWith(reply.body, "data: [DONE]\n\n"));
}

TEST_F(ApiServerTest, AnErrorBeforeTheHeadIsAStatus) {
  Serve();
  engine_->FailAfter(0, absl::UnavailableError("the engine failed"));
  const HttpReply failed = Complete(kStream);
  EXPECT_EQ(failed.status, 503);
  EXPECT_FALSE(absl::StrContains(failed.body, "keep-alive"));
}

TEST_F(ApiServerTest, AResponseThatIsNoStreamGetsNoComment) {
  Serve(KeepAlive(absl::Milliseconds(1)), absl::Milliseconds(1));
  engine_->LoseAfter(3);
  HttpClient client(server_->port());
  client.Write(RequestText("POST", "/v1/completions", R"({"prompt": "abc", "max_tokens": 40})"));
  AwaitState(EngineState::kRecovering);
  engine_->set_state(EngineState::kAwake);
  EXPECT_EQ(Json::parse(client.ReadReply().body)["usage"]["completion_tokens"], 40);
}

TEST_F(ApiServerTest, CommentsCanBeTurnedOff) {
  Serve(KeepAlive(absl::ZeroDuration()), absl::Milliseconds(5));
  const HttpReply reply = Complete(kStream);
  EXPECT_TRUE(absl::EndsWith(reply.body, "data: [DONE]\n\n"));
  EXPECT_FALSE(absl::StrContains(reply.body, "keep-alive"));
}

TEST_F(ApiServerTest, AClientThatLeavesASilentStreamIsAborted) {
  Serve(KeepAlive(absl::Milliseconds(1)), absl::Milliseconds(1));
  engine_->LoseAfter(3);
  HttpClient client(server_->port());
  StartLongStream(&client, 1, 0);
  AwaitState(EngineState::kRecovering);
  client.Reset();
  engine_->set_state(EngineState::kAwake);
  EXPECT_TRUE(engine_->WaitIdle());
  EXPECT_EQ(engine_->num_aborted(), 1);
}

}  // namespace
}  // namespace somnus
