// Chat answers that are taken apart into reasoning, content and tool calls, whole and streamed. The fake
// engine's answer is the prompt over again, and the template's prompt is the message.

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "coordinator/http/json_body.h"
#include "coordinator/openai/structured_fields.h"
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
    R"("tools": [{"type": "function", "function": {"name": "f"}}, {"type": "function", "function": {"name": "g"}}])";

class ChatAnswersTest : public ApiServerTest {
 protected:
  void SetUp() override {
    Start();
    ServedModel model = FakeModel(engine_);
    model.gate.max_output_depth = 40;  // less than bodies may have
    model.templates.chat = *ChatTemplate::Compile("{{ messages[0].content }}");
    model.turn_format = {FindToolFormat("hermes"), FindReasoningFormat("qwen3")};
    model.grammar_problem = "no end token";
    server_->SetModel(std::move(model));
  }

  std::string Body(const std::string& turn, const std::string& fields) {
    std::string content;
    AppendJsonString(turn, &content);
    return absl::StrCat(R"({"messages": [{"role": "user", "content": )", content,
                        R"(}], "stop": ["END"], "max_tokens": )", turn.size(), ", ", fields, "}");
  }
  Json Answer(const std::string& turn, const std::string& fields) {
    const HttpReply reply = Send("POST", "/v1/chat/completions", Body(turn, fields));
    EXPECT_EQ(reply.status, 200) << reply.body;
    return Json::parse(reply.body);
  }
  // The deltas of a stream's events, and its last finish_reason.
  std::vector<Json> Deltas(const std::string& turn, const std::string& fields, std::string* finish_reason) {
    const HttpReply reply =
        Send("POST", "/v1/chat/completions", Body(turn, absl::StrCat(fields, R"(, "stream": true)")));
    std::vector<Json> deltas;
    for (absl::string_view event : absl::StrSplit(reply.body, "\n\n", absl::SkipEmpty())) {
      if (!absl::ConsumePrefix(&event, "data: ") || event == "[DONE]") continue;
      const Json choice = Json::parse(event)["choices"][0];
      deltas.push_back(choice["delta"]);
      if (choice["finish_reason"].is_string()) *finish_reason = choice["finish_reason"];
    }
    return deltas;
  }
};

TEST_F(ChatAnswersTest, AWholeAnswerHasItsParts) {
  const Json answer = Answer(kTurn, kTools);
  const Json& message = answer["choices"][0]["message"];
  EXPECT_EQ(message["reasoning"], "because");
  EXPECT_EQ(message["reasoning_content"], "because");
  EXPECT_EQ(message["content"], "Hello.");
  ASSERT_EQ(message["tool_calls"].size(), 2u);
  const Json& call = message["tool_calls"][0];
  EXPECT_EQ(call["type"], "function");
  EXPECT_EQ(call["function"], Json({{"name", "f"}, {"arguments", R"({"a": [1]})"}}));
  EXPECT_NE(call["id"], message["tool_calls"][1]["id"]);
  EXPECT_EQ(answer["choices"][0]["finish_reason"], "tool_calls");
  EXPECT_EQ(answer["usage"]["completion_tokens_details"]["reasoning_tokens"], 14)
      << "the reasoning, and the bytes of the end marker but the last";
}

TEST_F(ChatAnswersTest, AStreamHasTheSameParts) {
  std::string finish_reason, reasoning, content;
  std::vector<std::string> names, arguments;
  for (const Json& delta : Deltas(kTurn, kTools, &finish_reason)) {
    reasoning += delta.value("reasoning", "");
    content += delta.value("content", "");
    for (const Json& call : delta.value("tool_calls", Json::array())) {
      const size_t index = call["index"];
      if (call.contains("id")) {
        EXPECT_EQ(index, names.size()) << "calls begin one after the other";
        names.push_back(call["function"]["name"]);
        arguments.emplace_back();
      }
      arguments.at(index) += call["function"]["arguments"].get<std::string>();
    }
  }
  EXPECT_EQ(reasoning, "because");
  EXPECT_EQ(content, "Hello.");
  EXPECT_EQ(names, (std::vector<std::string>{"f", "g"}));
  EXPECT_EQ(arguments, (std::vector<std::string>{R"({"a": [1]})", "{}"}));
  EXPECT_EQ(finish_reason, "tool_calls");
}

TEST_F(ChatAnswersTest, AnIntervalOfAStreamLosesNothing) {
  std::string finish_reason, content;
  size_t num_calls = 0;
  for (const Json& delta :
       Deltas(kTurn, absl::StrCat(kTools, R"(, "stream_interval": 40)"), &finish_reason)) {
    content += delta.value("content", "");
    for (const Json& call : delta.value("tool_calls", Json::array()))
      num_calls += call.contains("id") ? 1 : 0;
  }
  EXPECT_EQ(content, "Hello.");
  EXPECT_EQ(num_calls, 2u);
}

TEST_F(ChatAnswersTest, PartsThatARequestDoesNotWant) {
  const Json hidden =
      Answer(kTurn, absl::StrCat(kTools, R"(, "include_reasoning": false, "parallel_tool_calls": false)"));
  EXPECT_TRUE(hidden["choices"][0]["message"]["reasoning"].is_null());
  EXPECT_EQ(hidden["choices"][0]["message"]["tool_calls"].size(), 1u);
  const Json no_calls = Answer(kTurn, absl::StrCat(kTools, R"(, "tool_choice": "none")"));
  EXPECT_FALSE(no_calls["choices"][0]["message"].contains("tool_calls"));
  EXPECT_EQ(no_calls["choices"][0]["finish_reason"], "stop");
  EXPECT_NE(no_calls["choices"][0]["message"]["content"].get<std::string>().find("<tool_call>"),
            std::string::npos);
}

TEST_F(ChatAnswersTest, ACallThatIsCutIsALengthWithItsArgumentsSoFar) {
  const std::string turn = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"lon";
  const Json choice = Answer(turn, kTools)["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "length");
  EXPECT_EQ(choice["message"]["tool_calls"][0]["function"]["arguments"], R"({"a": "lon)");
  EXPECT_TRUE(choice["message"]["content"].is_null());
}

TEST_F(ChatAnswersTest, NamesOfToolsThatNoCallCanHaveAreRefused) {
  for (const char* name : {"", R"(a\"b)", R"(a\\b)", R"(a\u0007)"}) {
    const HttpReply reply = Send(
        "POST", "/v1/chat/completions",
        Body("x", absl::StrCat(R"("tools": [{"type": "function", "function": {"name": ")", name, R"("}}])")));
    EXPECT_EQ(reply.status, 400) << name;
    EXPECT_EQ(Json::parse(reply.body)["error"]["param"], "tools");
  }
}

TEST_F(ChatAnswersTest, AStopStringWithinACallIsNoEndOfTheCall) {
  const std::string turn = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 12END34}}\n</tool_call>";
  const Json choice = Answer(turn, kTools)["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "stop");
  EXPECT_EQ(choice["stop_reason"], "END");
  EXPECT_EQ(choice["message"]["tool_calls"][0]["function"]["arguments"], R"({"a": 12)");
  std::string finish_reason;
  Deltas(turn, kTools, &finish_reason);
  EXPECT_EQ(finish_reason, "stop");
  // Before the arguments no call is made up.
  const std::string named = "<tool_call>\n{\"name\": \"f\", \"arguments\": END{\"a\": 1}}\n</tool_call>";
  EXPECT_EQ(Answer(named, kTools)["choices"][0]["finish_reason"], "stop");
  // At the marker the call is whole, though the rest of its object lacks.
  const std::string marked = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 12</tool_call>";
  const Json whole = Answer(marked, absl::StrCat(kTools, R"(, "stop": ["</tool_call>"])"))["choices"][0];
  EXPECT_EQ(whole["finish_reason"], "tool_calls");
  EXPECT_EQ(whole["message"]["tool_calls"][0]["function"]["arguments"], R"({"a": 12})");
}

constexpr char kFunctions[] =
    R"("functions": [{"name": "f", "parameters": {"type": "object"}}, {"name": "g"}])";

TEST_F(ChatAnswersTest, OpenAisFirstFormOfToolsHasItsAnswer) {
  const Json choice = Answer(kTurn, kFunctions)["choices"][0];
  EXPECT_EQ(choice["message"]["function_call"], Json({{"name", "f"}, {"arguments", R"({"a": [1]})"}}));
  EXPECT_FALSE(choice["message"].contains("tool_calls")) << "and the second call is left out";
  EXPECT_EQ(choice["message"]["content"], "Hello.");
  EXPECT_EQ(choice["finish_reason"], "function_call");

  std::string finish_reason, name, arguments;
  for (const Json& delta :
       Deltas(kTurn, absl::StrCat(kFunctions, R"(, "function_call": "auto")"), &finish_reason)) {
    EXPECT_FALSE(delta.contains("tool_calls"));
    if (!delta.contains("function_call")) continue;
    name += delta["function_call"].value("name", "");
    arguments += delta["function_call"].value("arguments", "");
  }
  EXPECT_EQ(name, "f");
  EXPECT_EQ(arguments, R"({"a": [1]})");
  EXPECT_EQ(finish_reason, "function_call");

  EXPECT_TRUE(
      Answer(kTurn, absl::StrCat(kFunctions,
                                 R"(, "function_call": "none")"))["choices"][0]["message"]["function_call"]
          .is_null());
}

TEST_F(ChatAnswersTest, AHistoryOfFunctionsIsOneOfTools) {
  ServedModel model = FakeModel(engine_);
  model.templates.chat = *ChatTemplate::Compile(
      "{% for m in messages %}{{ m.role }} {{ m.content }} {{ m.tool_calls | tojson if m.tool_calls }} "
      "{{ m.tool_call_id }};{% endfor %}{{ tools | tojson }}");
  server_->SetModel(std::move(model));
  const HttpReply reply =
      Send("POST", "/v1/chat/completions", R"({"max_tokens": 1, "return_prompt_text": true,
      "functions": [{"name": "f"}], "messages": [{"role": "user", "content": "hi"},
      {"role": "assistant", "content": null, "function_call": {"name": "f", "arguments": "{\"b\": 1, \"a\": 2}"}},
      {"role": "function", "name": "f", "content": "sun"}]})");
  ASSERT_EQ(reply.status, 200) << reply.body;
  const std::string text = Json::parse(reply.body)["prompt_text"];
  EXPECT_NE(text.find(R"("arguments": {"b": 1, "a": 2})"), std::string::npos) << text;
  EXPECT_NE(text.find("tool sun  call_1;"), std::string::npos) << text;
  EXPECT_NE(text.find(R"("type": "function")"), std::string::npos) << text;
}

TEST_F(ChatAnswersTest, FormsOfFunctionsThatAreRefused) {
  const std::pair<std::string, const char*> refused[] = {
      {absl::StrCat(kFunctions, ", ", kTools), "functions"},
      {R"("functions": [{"description": "d"}])", "functions"},
      {R"("function_call": "auto")", "function_call"},
      {absl::StrCat(kFunctions, R"(, "function_call": "always")"), "function_call"},
      {absl::StrCat(kFunctions, R"(, "function_call": {"name": "h"})"), "function_call"},
      {R"("functions": [{"name": "e"}, {"name": "f", "parameters": {"required": ["a"], "properties": {"a":
       {"uniqueItems": true}}}}], "function_call": {"name": "f"})",
       "/functions/1/parameters/properties/a/uniqueItems"}};
  for (const auto& [fields, param] : refused) {
    const HttpReply reply = Send("POST", "/v1/chat/completions", Body("x", fields));
    EXPECT_EQ(reply.status, 400) << fields;
    EXPECT_EQ(Json::parse(reply.body)["error"]["param"], param) << reply.body;
  }
}

TEST_F(ChatAnswersTest, AllowedToolsAreToolsOfTheRequest) {
  const auto refusal = [&](const std::string& allowed) {
    const std::string fields =
        absl::StrCat(kTools, R"(, "tool_choice": {"type": "allowed_tools", "allowed_tools": )", allowed, "}");
    const HttpReply reply = Send("POST", "/v1/chat/completions", Body("x", fields));
    EXPECT_EQ(reply.status, 400);
    return Json::parse(reply.body)["error"];
  };
  const std::string g = R"("tools": [{"type": "function", "function": {"name": "g"}}])";
  // The calls' grammar is what this model lacks: also under "auto", so that no other tool is called.
  for (const char* mode : {"auto", "required"})
    EXPECT_EQ(refusal(absl::StrCat(R"({"mode": ")", mode, "\", ", g, "}"))["param"], "tools") << mode;
  for (const char* wrong :
       {"{}", "7", R"({"mode": "auto", "tools": []})",
        R"({"mode": "auto", "tools": [{"type": "function", "function": {"name": "h"}}]})"})
    EXPECT_EQ(refusal(wrong)["param"], "tool_choice") << wrong;
  EXPECT_EQ(refusal(absl::StrCat(R"({"mode": "never", )", g, "}"))["param"], "tool_choice");
}

TEST_F(ChatAnswersTest, ARefusedSchemaOfAToolIsNamedByItsPlace) {
  const HttpReply reply = Send(
      "POST", "/v1/chat/completions",
      Body(
          "x",
          R"("tools": [{"type": "function", "function": {"name": "f"}}, {"type": "function", "function": {"name":
          "g", "parameters": {"properties": {"a": {"uniqueItems": true}}}}}], "tool_choice": "required")"));
  EXPECT_EQ(reply.status, 400);
  EXPECT_EQ(Json::parse(reply.body)["error"]["param"],
            "/tools/1/function/parameters/properties/a/uniqueItems")
      << reply.body;
}

TEST_F(ChatAnswersTest, ASchemaOfTooManyKeysIsRefusedNotCut) {
  std::string properties = "\"p\": {}";
  for (int i = 1; i <= 4096; ++i) absl::StrAppend(&properties, ", \"p", i, "\": {}");
  const std::string schema = absl::StrCat(R"({"type": "object", "properties": {)", properties, "}}");
  const HttpReply reply = Send(
      "POST", "/v1/chat/completions",
      Body("x", absl::StrCat(
                    R"("response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": )",
                    schema, "}}")));
  EXPECT_EQ(reply.status, 400);
  EXPECT_EQ(Json::parse(reply.body)["error"]["code"], "unsupported_schema") << reply.body;
}

TEST_F(ChatAnswersTest, AFormBesideToolsIsRefusedByItsPointerWhereTheBracketsAroundItAreTooMany) {
  const auto is_refused = [this](int depth, const std::string& more) {
    const std::string schema = absl::StrCat(R"({"const": )", std::string(static_cast<size_t>(depth), '['),
                                            std::string(static_cast<size_t>(depth), ']'), "}");
    const HttpReply reply = Send(
        "POST", "/v1/chat/completions",
        Body("x", absl::StrCat(
                      R"("response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": )",
                      schema, "}}", more)));
    return Json::parse(reply.body)["error"]["code"] == "unsupported_schema";
  };
  int least = 1;
  while (least < 60 && !is_refused(least, "")) ++least;
  ASSERT_LT(least, 60);
  const std::string tools = absl::StrCat(", ", kTools);
  const int levels = kBracketsAroundForm / 2;  // a list takes two brackets
  EXPECT_TRUE(is_refused(least - levels, tools));
  EXPECT_FALSE(is_refused(least - levels - 1, tools));
}

TEST_F(ChatAnswersTest, ChoicesOfToolsThatAreRefused) {
  for (const char* fields :
       {R"("tool_choice": "auto")", R"("tools": [])", R"("tools": [{"type": "function"}])"}) {
    EXPECT_EQ(Send("POST", "/v1/chat/completions", Body("x", fields)).status, 400) << fields;
  }
  for (const char* choice : {R"("always")", R"({"type": "function", "function": {"name": "h"}})", "7"}) {
    const HttpReply reply =
        Send("POST", "/v1/chat/completions", Body("x", absl::StrCat(kTools, R"(, "tool_choice": )", choice)));
    EXPECT_EQ(reply.status, 400);
    EXPECT_EQ(Json::parse(reply.body)["error"]["param"], "tool_choice") << choice;
  }
}

// --enable-auto-tool-choice=false
TEST_F(ChatAnswersTest, WithoutAutoToolChoiceACallHasToBeForced) {
  ServedModel model = FakeModel(engine_);
  model.templates.chat = *ChatTemplate::Compile("{{ messages[0].content }}");
  model.turn_format = {FindToolFormat("hermes"), nullptr};
  model.auto_tool_choice = false;
  model.grammar_problem = "no end token";
  server_->SetModel(std::move(model));
  const auto send = [&](const char* choice) {
    return Send("POST", "/v1/chat/completions", Body("x", absl::StrCat(kTools, choice)));
  };
  for (const char* choice :
       {"", R"(, "tool_choice": "auto")",
        R"(, "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools":
            [{"type": "function", "function": {"name": "f"}}]}})"}) {
    const HttpReply reply = send(choice);
    ASSERT_EQ(reply.status, 400) << choice;
    const Json error = Json::parse(reply.body)["error"];
    EXPECT_EQ(error["param"], "tool_choice") << choice;
    EXPECT_EQ(error["message"], "this server was started with --enable-auto-tool-choice=false") << choice;
  }
  EXPECT_EQ(send(R"(, "tool_choice": "none")").status, 200);
  EXPECT_EQ(Json::parse(send(R"(, "tool_choice": "required")").body)["error"]["message"],
            "this model has no structured outputs: no end token")
      << "a forced call goes on to its grammar";
}

TEST_F(ChatAnswersTest, AModelWithoutGrammarsSaysWhy) {
  const HttpReply reply =
      Send("POST", "/v1/chat/completions", Body("x", absl::StrCat(kTools, R"(, "tool_choice": "required")")));
  EXPECT_EQ(reply.status, 400);
  EXPECT_EQ(Json::parse(reply.body)["error"]["message"],
            "this model has no structured outputs: no end token");
}

// Agents send both: the form is of a text, and a forced call leaves none. Other forms are of the whole
// answer.
TEST_F(ChatAnswersTest, AForcedCallGoesBeforeAResponseFormat) {
  const auto message = [&](const std::string& form) {
    const std::string fields = absl::StrCat(kTools, R"(, "tool_choice": "required", )", form);
    const HttpReply reply = Send("POST", "/v1/chat/completions", Body("x", fields));
    EXPECT_EQ(reply.status, 400);
    return Json::parse(reply.body)["error"]["message"].get<std::string>();
  };
  // The calls' grammar is what this model lacks.
  EXPECT_EQ(message(R"("response_format": {"type": "json_object"})"),
            "this model has no structured outputs: no end token");
  EXPECT_EQ(message(R"("guided_regex": "a")"), "tool_choice forces a call, and guided_regex another form");
}

}  // namespace
}  // namespace somnus
