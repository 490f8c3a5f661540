// POST /v1/responses, whole and streamed, and the responses that are kept. The fake engine's
// answer is the prompt over again.

#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "coordinator/http/json_body.h"
#include "coordinator/responses/responses_writer.h"
#include "tests/api/api_server_fixture.h"
#include "text/jinja/chat_template.h"
#include "text/tools/tool_format.h"

namespace somnus {
namespace {

constexpr char kTurn[] =
    "<think>because</think>\n\nHello.<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": "
    "[1]}}\n</tool_call>"
    "<tool_call>\n{\"name\": \"g\", \"arguments\": {}}\n</tool_call>END";
constexpr char kTools[] =
    R"("tools": [{"type": "function", "name": "f"}, {"type": "function", "name": "g"}], "stop": ["END"])";
constexpr char kEveryMessage[] = "{% for m in messages %}[{{ m.role }}:{{ m.content }}]{% endfor %}";

// The events of a stream in order.
std::vector<Json> EventsOf(const std::string& body) {
  std::vector<Json> events;
  for (absl::string_view text : absl::StrSplit(body, "\n\n", absl::SkipEmpty())) {
    const std::vector<absl::string_view> lines = absl::StrSplit(text, absl::MaxSplits('\n', 1));
    absl::string_view type = lines[0], data = lines.size() > 1 ? lines[1] : "";
    if (!absl::ConsumePrefix(&type, "event: ") || !absl::ConsumePrefix(&data, "data: ")) {
      ADD_FAILURE() << "no event: " << text;
      continue;
    }
    events.push_back(Json::parse(data));
    EXPECT_EQ(events.back()["type"], std::string(type));
    EXPECT_EQ(events.back()["sequence_number"], events.size() - 1);
  }
  return events;
}

// The types of events without "response.", each once for deltas in a row.
std::string TypesOf(const std::vector<Json>& events) {
  std::vector<std::string> types;
  for (const Json& event : events) {
    std::string type = event["type"];
    type = std::string(absl::StripPrefix(type, "response."));
    if (types.empty() || types.back() != type || !absl::EndsWith(type, ".delta")) types.push_back(type);
  }
  return absl::StrJoin(types, " ");
}

class ResponsesTest : public ApiServerTest {
 protected:
  void ServeTemplate(const char* chat_template, const ApiServerOptions& options = {},
                     absl::Duration step = absl::Microseconds(200)) {
    Start(options, step);
    ServedModel model = FakeModel(engine_);
    model.templates.chat = *ChatTemplate::Compile(chat_template);
    model.turn_format = {FindToolFormat("hermes"), FindReasoningFormat("qwen3")};
    server_->SetModel(std::move(model));
  }
  static std::string Body(const std::string& input, const std::string& fields) {
    std::string text;
    AppendJsonString(input, &text);
    return absl::StrCat(R"({"input": )", text, R"(, "max_output_tokens": )", input.size(), ", ", fields, "}");
  }
  Json Respond(const std::string& body) {
    const HttpReply reply = Send("POST", "/v1/responses", body);
    EXPECT_EQ(reply.status, 200) << reply.body;
    return Json::parse(reply.body);
  }
  // The prompt of the engine's last request.
  std::string LastPrompt() {
    const EngineRequest request = engine_->last_request();
    const std::vector<int32_t>& ids = request.prompt;
    return {ids.begin(), ids.end()};
  }
  std::string ErrorParam(const HttpReply& reply, int status = 400) {
    EXPECT_EQ(reply.status, status) << reply.body;
    return Json::parse(reply.body)["error"]["param"];
  }
};

TEST_F(ResponsesTest, AWholeResponseHasItsItems) {
  ServeTemplate("{{ messages[0].content }}");
  const Json response = Respond(Body(kTurn, kTools));
  EXPECT_EQ(response["object"], "response");
  EXPECT_EQ(response["status"], "completed");
  EXPECT_EQ(response["model"], "fake");
  EXPECT_TRUE(response["incomplete_details"].is_null());
  const Json& output = response["output"];
  ASSERT_EQ(output.size(), 4u) << output;
  EXPECT_EQ(output[0]["type"], "reasoning");
  EXPECT_EQ(output[0]["content"], Json::parse(R"([{"type": "reasoning_text", "text": "because"}])"));
  EXPECT_EQ(output[1]["type"], "message");
  EXPECT_EQ(output[1]["role"], "assistant");
  EXPECT_EQ(output[1]["content"], Json::parse(R"([{"type": "output_text", "text": "Hello.", "annotations": [],
                                                   "logprobs": []}])"));
  EXPECT_EQ(output[2]["type"], "function_call");
  EXPECT_EQ(output[2]["name"], "f");
  EXPECT_EQ(output[2]["arguments"], R"({"a": [1]})");
  EXPECT_EQ(output[3]["arguments"], "{}");
  EXPECT_NE(output[2]["call_id"], output[3]["call_id"]);
  for (const Json& item : output) EXPECT_EQ(item["status"], "completed");
  const Json& usage = response["usage"];
  EXPECT_EQ(usage["output_tokens_details"]["reasoning_tokens"], 14);
  EXPECT_EQ(usage["total_tokens"], usage["input_tokens"].get<int>() + usage["output_tokens"].get<int>());
}

TEST_F(ResponsesTest, AStreamHasOpenAisEventsInOrder) {
  ServeTemplate("{{ messages[0].content }}");
  const HttpReply reply =
      Send("POST", "/v1/responses", Body(kTurn, absl::StrCat(kTools, R"(, "stream": true)")));
  ASSERT_EQ(reply.status, 200);
  const std::vector<Json> events = EventsOf(reply.body);
  EXPECT_EQ(TypesOf(events),
            "created in_progress "
            "output_item.added content_part.added reasoning_text.delta reasoning_text.done "
            "content_part.done output_item.done "
            "output_item.added content_part.added output_text.delta output_text.done "
            "content_part.done output_item.done "
            "output_item.added function_call_arguments.delta function_call_arguments.done output_item.done "
            "output_item.added function_call_arguments.delta function_call_arguments.done output_item.done "
            "completed");
  EXPECT_EQ(events[0]["response"]["status"], "in_progress");
  EXPECT_EQ(events[0]["response"]["output"], Json::array());
  // The deltas of an item make the text of the item, and the items that are done make the response.
  const Json& output = events.back()["response"]["output"];
  std::vector<std::string> texts(output.size());
  std::vector<Json> done;
  for (const Json& event : events) {
    if (event.contains("delta")) texts.at(event["output_index"]) += event["delta"].get<std::string>();
    if (event["type"] == "response.output_item.done") done.push_back(event["item"]);
  }
  EXPECT_EQ(texts, (std::vector<std::string>{"because", "Hello.", R"({"a": [1]})", "{}"}));
  EXPECT_EQ(Json(done), output);
  // The whole response differs in ids and times alone.
  Json whole = Respond(Body(kTurn, kTools));
  ASSERT_EQ(whole["output"].size(), output.size());
  for (size_t i = 0; i < output.size(); ++i) {
    Json same = output[i];
    for (const char* id : {"id", "call_id"}) {
      if (same.contains(id)) same[id] = whole["output"][i][id];
    }
    EXPECT_EQ(same, whole["output"][i]);
  }
  EXPECT_EQ(events.back()["response"]["usage"], whole["usage"]);
}

TEST_F(ResponsesTest, ACutResponseIsIncomplete) {
  ServeTemplate("{{ messages[0].content }}");
  const Json text = Respond(R"({"input": "abcdef", "max_output_tokens": 4})");
  EXPECT_EQ(text["status"], "incomplete");
  EXPECT_EQ(text["incomplete_details"], Json::parse(R"({"reason": "max_output_tokens"})"));
  EXPECT_EQ(text["output"][0]["status"], "incomplete");
  EXPECT_EQ(text["output"][0]["content"][0]["text"], "abcd");
  EXPECT_EQ(text["usage"]["output_tokens"], 4);
  const std::string call = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"lon";
  const HttpReply reply =
      Send("POST", "/v1/responses", Body(call, absl::StrCat(kTools, R"(, "stream": true)")));
  const std::vector<Json> events = EventsOf(reply.body);
  EXPECT_EQ(events.back()["type"], "response.incomplete");
  const Json& item = events.back()["response"]["output"][0];
  EXPECT_EQ(item["status"], "incomplete");
  EXPECT_EQ(item["arguments"], R"({"a": "lon)");
  const Json whole = Respond(Body("<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}", kTools));
  EXPECT_EQ(whole["status"], "incomplete");
  EXPECT_EQ(whole["output"][0]["status"], "completed") << "the length ends the response behind the call";
}

TEST_F(ResponsesTest, LogprobsAreOfTheTextAlone) {
  ServeTemplate("{{ messages[0].content }}");
  const std::string input = "<think>no</think>yes";
  const Json response =
      Respond(Body(input, R"("include": ["message.output_text.logprobs"], "top_logprobs": 1)"));
  const Json& logprobs = response["output"][1]["content"][0]["logprobs"];
  std::string spelled;
  for (const Json& entry : logprobs) {
    spelled += entry["token"].get<std::string>();
    EXPECT_EQ(entry["top_logprobs"].size(), 1u);
  }
  EXPECT_EQ(spelled, "yes");
}

TEST_F(ResponsesTest, AConversationGoesOn) {
  ServeTemplate(kEveryMessage);
  const Json first = Respond(R"({"input": "one", "instructions": "brief", "max_output_tokens": 6})");
  EXPECT_EQ(LastPrompt(), "[system:brief][user:one]");
  const std::string answer = first["output"][0]["content"][0]["text"];
  EXPECT_EQ(answer, "[syste");
  const Json second = Respond(absl::StrCat(
      R"({"input": "two", "max_output_tokens": 3, "previous_response_id": )", first["id"].dump(), "}"));
  EXPECT_EQ(LastPrompt(), "[user:one][assistant:[syste][user:two]") << "instructions are of one request";
  EXPECT_EQ(second["previous_response_id"], first["id"]);
  Respond(absl::StrCat(R"({"input": "three", "max_output_tokens": 3, "previous_response_id": )",
                       second["id"].dump(), "}"));
  EXPECT_EQ(LastPrompt(), "[user:one][assistant:[syste][user:two][assistant:[us][user:three]");
}

TEST_F(ResponsesTest, AResponseIsKeptUntilItIsDeleted) {
  ServeTemplate("{{ messages[0].content }}");
  const Json response = Respond(R"({"input": "abc", "max_output_tokens": 2})");
  const std::string path = absl::StrCat("/v1/responses/", response["id"].get<std::string>());
  const HttpReply got = Send("GET", path);
  EXPECT_EQ(got.status, 200);
  EXPECT_EQ(Json::parse(got.body), response);
  EXPECT_EQ(ErrorParam(Send("GET", path + "?stream=true")), "stream");
  EXPECT_EQ(ErrorParam(Send("POST", path + "/cancel")), "response_id") << "the response has ended";
  const HttpReply deleted = Send("DELETE", path);
  EXPECT_EQ(Json::parse(deleted.body),
            Json({{"id", response["id"]}, {"object", "response"}, {"deleted", true}}));
  for (const char* method : {"GET", "DELETE"}) EXPECT_EQ(ErrorParam(Send(method, path), 404), "response_id");
  EXPECT_EQ(ErrorParam(Send("POST", path + "/cancel"), 404), "response_id");
  EXPECT_EQ(ErrorParam(
                Send("POST", "/v1/responses",
                     absl::StrCat(R"({"input": "x", "previous_response_id": )", response["id"].dump(), "}"))),
            "previous_response_id");
}

TEST_F(ResponsesTest, AResponseThatIsNotToBeKeptIsNot) {
  ServeTemplate("{{ messages[0].content }}");
  const Json response = Respond(R"({"input": "abc", "max_output_tokens": 2, "store": false})");
  EXPECT_EQ(response["store"], false);
  EXPECT_EQ(Send("GET", absl::StrCat("/v1/responses/", response["id"].get<std::string>())).status, 404);
}

TEST_F(ResponsesTest, TheStoreOfAServerIsBounded) {
  ServeTemplate("{{ messages[0].content }}", ApiServerOptions{.limits = {.max_stored_responses = 1}});
  const Json first = Respond(R"({"input": "abc", "max_output_tokens": 2})");
  const Json second = Respond(R"({"input": "abc", "max_output_tokens": 2})");
  EXPECT_EQ(Send("GET", absl::StrCat("/v1/responses/", first["id"].get<std::string>())).status, 404);
  EXPECT_EQ(Send("GET", absl::StrCat("/v1/responses/", second["id"].get<std::string>())).status, 200);
}

TEST_F(ResponsesTest, AResponseUnderWayCanBeCancelled) {
  ServeTemplate("{{ messages[0].content }}", {}, absl::Milliseconds(5));
  HttpClient client(server_->port());
  client.Write(
      RequestText("POST", "/v1/responses", R"({"input": "abc", "max_output_tokens": 4000, "stream": true})"));
  ASSERT_TRUE(client.ReadUntil("response.output_text.delta"));
  const std::string& seen = client.buffered();
  const std::string id = seen.substr(seen.find("resp_"), 5 + 48);
  const std::string path = absl::StrCat("/v1/responses/", id);
  EXPECT_EQ(Json::parse(Send("GET", path).body)["status"], "in_progress");
  EXPECT_EQ(ErrorParam(Send("POST", "/v1/responses",
                            absl::StrCat(R"({"input": "x", "previous_response_id": ")", id, "\"}"))),
            "previous_response_id")
      << "nothing goes on with a response that has not ended";
  const HttpReply cancelled = Send("POST", path + "/cancel");
  EXPECT_EQ(cancelled.status, 200);
  EXPECT_EQ(Json::parse(cancelled.body)["status"], "cancelled");
  const std::vector<Json> events = EventsOf(client.ReadReply().body);
  EXPECT_EQ(events.back()["type"], "response.incomplete");
  EXPECT_EQ(events.back()["response"]["status"], "cancelled");
  EXPECT_EQ(Json::parse(Send("GET", path).body)["status"], "cancelled");
  EXPECT_EQ(Send("POST", path + "/cancel").status, 200) << "again, to no effect";
}

TEST_F(ResponsesTest, AResponseWhoseClientLeavesIsCancelled) {
  ServeTemplate("{{ messages[0].content }}", {}, absl::Milliseconds(5));
  std::string id;
  {
    HttpClient client(server_->port());
    client.Write(RequestText("POST", "/v1/responses",
                             R"({"input": "abc", "max_output_tokens": 4000, "stream": true})"));
    ASSERT_TRUE(client.ReadUntil("response.output_text.delta"));
    id = client.buffered().substr(client.buffered().find("resp_"), 5 + 48);
  }
  const absl::Time deadline = absl::Now() + absl::Seconds(20);
  std::string status;
  do {
    absl::SleepFor(absl::Milliseconds(5));
    status = Json::parse(Send("GET", absl::StrCat("/v1/responses/", id)).body)["status"];
  } while (status == "in_progress" && absl::Now() < deadline);
  EXPECT_EQ(status, "cancelled");
  EXPECT_EQ(ErrorParam(Send("POST", "/v1/responses",
                            absl::StrCat(R"({"input": "x", "previous_response_id": ")", id, "\"}"))),
            "previous_response_id");
}

TEST_F(ResponsesTest, RoutesAndTheirMethods) {
  ServeTemplate("{{ messages[0].content }}");
  EXPECT_EQ(Send("GET", "/v1/responses").status, 405);
  EXPECT_EQ(Send("POST", "/v1/responses/resp_1").status, 405);
  EXPECT_EQ(Send("GET", "/v1/responses/resp_1/cancel").status, 405);
  for (const char* path : {"/v1/responses/resp_1", "/v1/responses//cancel", "/v1/responses/a/b/cancel",
                           "/v1/responses/resp_1/input_items"}) {
    EXPECT_EQ(Send("GET", path).status, 404) << path;
  }
}

TEST_F(ResponsesTest, ErrorsNameFieldsOfThisRoute) {
  ServeTemplate("{{ messages[0].content }}");
  const auto param = [this](const std::string& body, int status = 400) {
    return ErrorParam(Send("POST", "/v1/responses", body), status);
  };
  EXPECT_EQ(param(R"({"input": "x", "max_output_tokens": 100000})"), "max_output_tokens");
  EXPECT_EQ(param(R"({"input": "x", "temperature": 9})"), "temperature");
  EXPECT_EQ(param(R"({"input": "x", "reasoning": {"effort": "much"}})"), "reasoning.effort");
  EXPECT_EQ(param(R"({"input": "x", "tool_choice": "required"})"), "tool_choice");
  EXPECT_EQ(param(R"({"input": "x", "text": {"format": {"type": "json_schema", "name": "n",
                      "schema": {"not": {"type": "integer"}, "type": "number"}}}})"),
            "/not");
  EXPECT_EQ(param(R"({"input": "x", "model": "other"})", 404), "model");
  const HttpReply unknown =
      Send("POST", "/v1/responses", R"({"input": "x", "previous_response_id": "resp_0"})");
  EXPECT_EQ(ErrorParam(unknown), "previous_response_id");
  EXPECT_EQ(Json::parse(unknown.body)["error"]["code"], "previous_response_not_found");
}

// A stream that fails says so in this API's own events.
TEST(ResponsesWriterTest, FailuresOfAStream) {
  const ServedModel model = FakeModel(nullptr);
  GenerateParams params;
  params.chat = params.stream = true;
  params.response_id = "resp_1";
  auto context = std::make_shared<ResponseContext>();
  context->echo = R"("store":false)";
  const ApiError error{503, "gone", ""};
  const std::vector<Json> early = EventsOf(MakeResponsesWriter(params, model, context)->Fail(error));
  ASSERT_EQ(TypesOf(early), "error");
  EXPECT_EQ(early[0]["message"], "gone");
  EXPECT_EQ(early[0]["error"]["message"], "gone") << "for clients that raise an exception for this member";
  const auto writer = MakeResponsesWriter(params, model, context);
  ChoiceUpdate update{0, {}};
  update.delta.text = "He";
  std::string stream = writer->OnUpdate(std::move(update), {});
  stream += writer->Fail(error);
  const std::vector<Json> late = EventsOf(stream);
  EXPECT_EQ(TypesOf(late),
            "created in_progress output_item.added content_part.added output_text.delta output_text.done "
            "content_part.done output_item.done failed");
  EXPECT_EQ(late.back()["response"]["status"], "failed");
  EXPECT_EQ(late.back()["response"]["error"]["message"], "gone");
  EXPECT_EQ(late.back()["response"]["output"][0]["status"], "incomplete");
}

}  // namespace
}  // namespace somnus
