// Anthropic's Messages API over HTTP: whole messages and streams, errors, keys, counts. The fake engine's
// answer is the prompt over again, and the template's prompt is the message.

#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "coordinator/http/json_body.h"
#include "tests/api/api_server_fixture.h"
#include "text/jinja/chat_template.h"
#include "text/tools/tool_format.h"

namespace somnus {
namespace {

constexpr char kPath[] = "/v1/messages";
constexpr char kTurn[] =
    "<think>because</think>\n\nHello.<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": "
    "[1]}}\n</tool_call>"
    "<tool_call>\n{\"name\": \"g\", \"arguments\": {}}\n</tool_call>END";
constexpr char kTools[] =
    R"("tools": [{"name": "f", "input_schema": {"type": "object"}},
                 {"name": "g", "input_schema": {"type": "object"}}])";
constexpr char kThinking[] = R"("thinking": {"type": "adaptive"})";

class MessagesTest : public ApiServerTest {
 protected:
  void ServeTurns(ApiServerOptions options = {}) {
    Start(std::move(options));
    ServedModel model = FakeModel(engine_);
    model.templates.chat = *ChatTemplate::Compile("{{ messages[0].content }}");
    model.turn_format = {FindToolFormat("hermes"), FindReasoningFormat("qwen3")};
    server_->SetModel(std::move(model));
  }

  static std::string Body(const std::string& turn, const std::string& fields) {
    std::string content;
    AppendJsonString(turn, &content);
    return absl::StrCat(R"({"messages": [{"role": "user", "content": )", content,
                        R"(}], "stop_sequences": ["END"], "max_tokens": )", turn.size(), ", ", fields, "}");
  }
  Json Answer(const std::string& turn, const std::string& fields) {
    const HttpReply reply = Send("POST", kPath, Body(turn, fields), "X-Request-Id: r1\r\n");
    EXPECT_EQ(reply.status, 200) << reply.body;
    return Json::parse(reply.body);
  }
  // The events of a stream, each of the type that its line says.
  static std::vector<Json> Events(const std::string& body) {
    std::vector<Json> events;
    for (absl::string_view event : absl::StrSplit(body, "\n\n", absl::SkipEmpty())) {
      if (absl::StartsWith(event, ":")) continue;
      const std::pair<absl::string_view, absl::string_view> lines =
          absl::StrSplit(event, absl::MaxSplits("\ndata: ", 1));
      events.push_back(Json::parse(lines.second));
      EXPECT_EQ(lines.first, absl::StrCat("event: ", events.back()["type"].get<std::string>()));
    }
    return events;
  }
  std::vector<Json> Stream(const std::string& turn, const std::string& fields) {
    return Events(
        Send("POST", kPath, Body(turn, absl::StrCat(fields, R"(, "stream": true)")), "X-Request-Id: r1\r\n")
            .body);
  }
  void ExpectError(const HttpReply& reply, int status, const std::string& type) {
    EXPECT_EQ(reply.status, status) << reply.body;
    const Json body = Json::parse(reply.body);
    EXPECT_EQ(body["type"], "error");
    EXPECT_EQ(body["error"]["type"], type);
    EXPECT_FALSE(body["error"]["message"].get<std::string>().empty());
    EXPECT_EQ(body["error"].size(), 2u);
  }
};

// A message as Anthropic's clients put it together from the events of a stream.
Json Accumulate(const std::vector<Json>& events) {
  Json message;
  std::string input;
  for (const Json& event : events) {
    const std::string type = event["type"];
    if (type == "message_start") message = event["message"];
    if (type == "content_block_start") {
      EXPECT_EQ(event["index"], message["content"].size()) << "blocks come one after the other";
      message["content"].push_back(event["content_block"]);
      input.clear();
    }
    if (type == "content_block_delta") {
      Json& block = message["content"].at(event["index"].get<size_t>());
      for (const char* name : {"text", "thinking", "signature"}) {
        if (event["delta"].contains(name))
          block[name] = block[name].get<std::string>() + event["delta"][name].get<std::string>();
      }
      input += event["delta"].value("partial_json", "");
    }
    if (type == "content_block_stop" && !input.empty())
      message["content"].back()["input"] = Json::parse(input);
    if (type == "message_delta") {
      message.update(event["delta"]);
      message["usage"].update(event["usage"]);
    }
  }
  return message;
}

// A message without the random ids of its calls.
Json WithoutIds(Json message) {
  for (Json& block : message["content"]) block.erase("id");
  return message;
}

std::string Types(const std::vector<Json>& events) {
  std::string types;
  for (const Json& event : events) {
    const std::string type = event["type"];
    if (type != "content_block_delta" || !absl::EndsWith(types, type)) absl::StrAppend(&types, " ", type);
  }
  return types;
}

TEST_F(MessagesTest, AWholeMessageHasItsBlocks) {
  ServeTurns();
  const Json message = Answer(kTurn, absl::StrCat(kTools, ", ", kThinking));
  EXPECT_EQ(message["id"], "msg_r1");
  EXPECT_EQ(message["type"], "message");
  EXPECT_EQ(message["role"], "assistant");
  EXPECT_EQ(message["model"], "fake");
  ASSERT_EQ(message["content"].size(), 4u) << message;
  EXPECT_NE(message["content"][2]["id"], message["content"][3]["id"]);
  EXPECT_EQ(WithoutIds(message)["content"], Json::parse(R"([
      {"type": "thinking", "thinking": "because", "signature": "msg_r1"},
      {"type": "text", "text": "Hello."},
      {"type": "tool_use", "name": "f", "input": {"a": [1]}},
      {"type": "tool_use", "name": "g", "input": {}}])"));
  EXPECT_EQ(message["stop_reason"], "tool_use");
  EXPECT_TRUE(message["stop_sequence"].is_null());
  const size_t bytes = std::string(kTurn).size();
  EXPECT_EQ(message["usage"], Json({{"input_tokens", bytes},
                                    {"output_tokens", bytes},
                                    {"cache_read_input_tokens", 0},
                                    {"cache_creation_input_tokens", 0}}));
}

TEST_F(MessagesTest, AStreamMakesTheSameMessage) {
  ServeTurns();
  const std::string fields = absl::StrCat(kTools, ", ", kThinking);
  const std::vector<Json> events = Stream(kTurn, fields);
  EXPECT_EQ(Types(events),
            " message_start content_block_start content_block_delta content_block_stop"
            " content_block_start content_block_delta content_block_stop"
            " content_block_start content_block_delta content_block_stop"
            " content_block_start content_block_delta content_block_stop message_delta message_stop");
  EXPECT_EQ(events[0]["message"]["content"], Json::array());
  EXPECT_TRUE(events[0]["message"]["stop_reason"].is_null());
  EXPECT_EQ(events[0]["message"]["usage"]["input_tokens"], std::string(kTurn).size());
  EXPECT_EQ(WithoutIds(Accumulate(events)), WithoutIds(Answer(kTurn, fields)));
}

TEST_F(MessagesTest, WithoutThinkingThereIsNoBlockOfThinking) {
  ServeTurns();
  const Json message = Answer(kTurn, kTools);
  ASSERT_EQ(message["content"].size(), 3u);
  EXPECT_EQ(message["content"][0], Json({{"type", "text"}, {"text", "Hello."}}));
  EXPECT_EQ(WithoutIds(Accumulate(Stream(kTurn, kTools))), WithoutIds(message));
}

TEST_F(MessagesTest, ReasonsToStop) {
  ServeTurns();
  const Json stopped = Answer("abcEND", R"("temperature": 0)");
  EXPECT_EQ(stopped["content"], Json::parse(R"([{"type": "text", "text": "abc"}])"));
  EXPECT_EQ(stopped["stop_reason"], "stop_sequence");
  EXPECT_EQ(stopped["stop_sequence"], "END");
  EXPECT_EQ(Accumulate(Stream("abcEND", R"("temperature": 0)")), stopped);
  EXPECT_EQ(Answer("abc", R"("temperature": 0)")["stop_reason"], "max_tokens");
  const std::string cut = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"b\": 2, \"a\": \"lon";
  const Json message = Answer(cut, kTools);
  EXPECT_EQ(message["stop_reason"], "max_tokens");
  EXPECT_EQ(message["content"][0]["input"], Json::parse(R"({"b": 2})")) << "what is complete";
  const Json within = Answer(cut + "END", kTools);
  EXPECT_EQ(within["stop_reason"], "stop_sequence");
  EXPECT_EQ(within["stop_sequence"], "END");
  EXPECT_EQ(within["content"][0]["input"], Json::parse(R"({"b": 2})"));
}

TEST_F(MessagesTest, AModelWithoutPartsAnswersInText) {
  Start();
  ServedModel model = FakeModel(engine_);
  model.templates.chat = *ChatTemplate::Compile("{{ messages[0].content }}");
  server_->SetModel(std::move(model));
  const Json message = Answer("ab<think>END", R"("thinking": {"type": "enabled", "budget_tokens": 1024})");
  EXPECT_EQ(message["content"], Json::parse(R"([{"type": "text", "text": "ab<think>"}])"));
  EXPECT_EQ(Accumulate(Stream("ab<think>END", kThinking)), message);
}

TEST_F(MessagesTest, OneCallWhereTheRequestForbidsMore) {
  ServeTurns();
  const Json message = Answer(
      kTurn, absl::StrCat(kTools, R"(, "tool_choice": {"type": "auto", "disable_parallel_tool_use": true})"));
  ASSERT_EQ(message["content"].size(), 2u) << message;
  EXPECT_EQ(message["content"][1]["name"], "f");
}

TEST_F(MessagesTest, Counts) {
  ServeTurns();
  const HttpReply reply =
      Send("POST", "/v1/messages/count_tokens", R"({"messages": [{"role": "user", "content": "Hello"}]})");
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(Json::parse(reply.body), Json::parse(R"({"input_tokens": 5})"));
  const std::string longer(5000, 'a');  // than the context
  const HttpReply long_reply =
      Send("POST", "/v1/messages/count_tokens",
           absl::StrCat(R"({"messages": [{"role": "user", "content": ")", longer, R"("}]})"));
  EXPECT_EQ(Json::parse(long_reply.body), Json::parse(R"({"input_tokens": 5000})"));
  ExpectError(Send("POST", "/v1/messages/count_tokens", "{}"), 400, "invalid_request_error");
}

TEST_F(MessagesTest, ErrorsHaveAnthropicsShape) {
  Start(ApiServerOptions{.limits = {.max_body_bytes = 4000}});
  ExpectError(Send("POST", kPath, Body("a", kThinking)), 503, "overloaded_error");
  server_->SetModel(FakeModel(engine_));
  const HttpReply no_template = Send("POST", kPath, Body("a", kThinking));
  ExpectError(no_template, 400, "invalid_request_error");
  EXPECT_TRUE(absl::StartsWith(Json::parse(no_template.body)["error"]["message"].get<std::string>(),
                               "messages: the model has no chat template"))
      << no_template.body;
  ExpectError(Send("POST", kPath, Body("a", R"("model": "other")")), 404, "not_found_error");
  ExpectError(Send("POST", "/v1/messages/batches", "{}"), 404, "not_found_error");
  ExpectError(Send("GET", kPath), 405, "invalid_request_error");
  ExpectError(Send("POST", kPath, std::string(4001, 'a')), 413, "request_too_large");
  ExpectError(Send("POST", kPath, "{"), 400, "invalid_request_error");
}

// Other servers take the form of a text in fields of their own.
TEST_F(MessagesTest, FormsOfOtherServersAreRefusedAndNotIgnored) {
  ServeTurns();
  for (const char* field : {R"("grammar": "root ::= x")", R"("json_schema": {})", R"("ebnf": "root ::= x")",
                            R"("regex": "a+")", R"("structural_tag": {})"})
    ExpectError(Send("POST", kPath, Body("a", field)), 400, "invalid_request_error");
  EXPECT_EQ(Send("POST", kPath, Body("a", R"("grammar": "", "json_schema": null)")).status, 200);
}

// What chooses tokens reaches the engine, and is checked as on the chat route.
TEST_F(MessagesTest, FieldsThatChooseTokensAreNotIgnored) {
  ServeTurns();
  EXPECT_EQ(Send("POST", kPath, Body("a", R"("allowed_token_ids": [97, 98], "min_p": 0.5)")).status, 200);
  EXPECT_EQ(engine_->last_sampling().allowed_token_ids, (std::vector<int32_t>{97, 98}));
  EXPECT_EQ(engine_->last_sampling().min_p, 0.5f);
  for (const char* field : {R"("allowed_token_ids": [])", R"("allowed_token_ids": [257])", R"("min_p": 2)",
                            R"("bad_words": 7)", R"("response_format": {"type": "json_object"})"})
    ExpectError(Send("POST", kPath, Body("a", field)), 400, "invalid_request_error");
}

TEST_F(MessagesTest, ErrorsOfTheEngine) {
  ServeTurns();
  engine_->set_submit_status(absl::ResourceExhaustedError("the queue is full"));
  ExpectError(Send("POST", kPath, Body("a", kThinking)), 429, "rate_limit_error");
  engine_->set_submit_status(absl::OkStatus());
  engine_->FailAfter(0, absl::InternalError("broken"));
  ExpectError(Send("POST", kPath, Body("abcd", kThinking)), 500, "api_error");
  engine_->FailAfter(2, absl::InternalError("broken"));
  const std::vector<Json> events = Stream("abcd", kThinking);
  EXPECT_EQ(events.front()["type"], "message_start");
  EXPECT_EQ(events.back()["type"], "error");
  EXPECT_EQ(events.back()["error"]["type"], "api_error");
}

TEST_F(MessagesTest, AnAnswerThatAnOperatorAbortsIsAnError) {
  ServeTurns();
  for (const bool streams : {false, true}) {
    ASSERT_TRUE(engine_->WaitIdle());
    engine_->set_state(EngineState::kPaused);
    HttpClient client(server_->port());
    const std::string body =
        Body("abc", absl::StrCat(kThinking, R"(, "stream": )", streams ? "true" : "false"));
    client.Write(RequestText("POST", kPath, body));
    AwaitOpen();
    EXPECT_EQ(Admin("POST", "/abort_requests", "{}").status, 200);
    engine_->set_state(EngineState::kAwake);
    const HttpReply reply = client.ReadReply();
    if (!streams) {
      ExpectError(reply, 503, "overloaded_error");
      continue;
    }
    const std::vector<Json> events = Events(reply.body);
    ASSERT_FALSE(events.empty()) << reply.body;
    EXPECT_EQ(events.back()["type"], "error");
    EXPECT_EQ(events.back()["error"]["type"], "overloaded_error");
  }
}

TEST_F(MessagesTest, KeysInEitherHeader) {
  ServeTurns(ApiServerOptions{.api_keys = ApiKeys("secret")});
  const auto status = [&](const std::string& path, const std::string& headers) {
    return Send("POST", path, Body("abcEND", kThinking), headers).status;
  };
  EXPECT_EQ(status(kPath, "x-api-key: secret\r\n"), 200);
  EXPECT_EQ(status(kPath, "Authorization: Bearer secret\r\n"), 200);
  EXPECT_EQ(status(kPath, "Authorization: Bearer other\r\nx-api-key: secret\r\n"), 200);
  EXPECT_EQ(status("/v1/messages/count_tokens", "x-api-key: secret\r\n"), 200);
  EXPECT_EQ(status(kPath, "x-api-key: other\r\n"), 401);
  EXPECT_EQ(status("/v1/messages/count_tokens", "x-api-key: other\r\n"), 401);
  EXPECT_EQ(status(kPath, "x-api-key: \r\n"), 401);
  EXPECT_EQ(status("/v1/chat/completions", "x-api-key: secret\r\n"), 401) << "OpenAI's clients show a bearer";
  ExpectError(Send("POST", kPath, Body("abc", kThinking)), 401, "authentication_error");
}

}  // namespace
}  // namespace somnus
