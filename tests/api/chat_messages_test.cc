// The chat template gets a request's messages, tools and other variables.

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "coordinator/http/json_body.h"
#include "tests/api/api_server_fixture.h"
#include "text/jinja/chat_template.h"

namespace somnus {
namespace {

class ChatMessagesTest : public ApiServerTest {
 protected:
  void ServeTemplate(const std::string& source) {
    Start();
    absl::StatusOr<std::unique_ptr<ChatTemplate>> chat_template = ChatTemplate::Compile(source);
    ASSERT_TRUE(chat_template.ok()) << chat_template.status();
    ServedModel model = FakeModel(engine_);
    model.templates.chat = *std::move(chat_template);
    server_->SetModel(std::move(model));
  }

  // Returns the prompt that the messages and these further fields make; the tokens are its bytes.
  std::string Prompt(const std::string& messages, const std::string& fields = "") {
    const HttpReply reply =
        Send("POST", "/tokenize", absl::StrCat(R"({"messages": )", messages, fields, "}"));
    EXPECT_EQ(reply.status, 200) << reply.body;
    const Json body = Json::parse(reply.body);
    std::string prompt;
    for (const Json& token : body.value("tokens", Json::array()))
      prompt += static_cast<char>(token.get<int>());
    return prompt;
  }
};

TEST_F(ApiServerTest, ChatWithoutTemplateIsRefused) {
  Serve();
  const HttpReply reply =
      Send("POST", "/v1/chat/completions", R"({"messages": [{"role": "user", "content": "Hi"}]})");
  EXPECT_EQ(reply.status, 400);
  EXPECT_EQ(Json::parse(reply.body)["error"]["param"], "messages");
}

TEST_F(ApiServerTest, AnAnswerSaysWhyTheTemplateCannotBeUsed) {
  Start();
  ServedModel model = FakeModel(engine_);
  model.templates.chat_problem = "it does not compile: line 3: expected an expression, got '%}'";
  server_->SetModel(std::move(model));
  const HttpReply reply =
      Send("POST", "/v1/chat/completions", R"({"messages": [{"role": "user", "content": "Hi"}]})");
  EXPECT_EQ(reply.status, 400);
  EXPECT_EQ(
      Json::parse(reply.body)["error"]["message"],
      "the model's chat template cannot be used: it does not compile: line 3: expected an expression, got "
      "'%}'; /v1/completions needs none");
}

TEST_F(ChatMessagesTest, RequestsWithToolsHaveTheirOwnTemplate) {
  Start();
  const auto compiled = [](const char* source) { return *ChatTemplate::Compile(source); };
  ServedModel model = FakeModel(engine_);
  model.templates.chat = compiled("chat {{ messages[0].content }}{{ tools is none }}");
  model.templates.tools = compiled("tools {{ messages[0].content }}");
  server_->SetModel(model);
  const char* user = R"([{"role": "user", "content": "x"}])";
  const char* tools = R"(, "tools": [{"type": "function", "function": {"name": "f"}}])";
  EXPECT_EQ(Prompt(user), "chat xTrue");
  EXPECT_EQ(Prompt(user, tools), "tools x");
  model.templates.tools = nullptr;
  server_->SetModel(model);
  EXPECT_EQ(Prompt(user, tools), "chat xFalse");
  model.templates.tools_problem = "line 1";
  server_->SetModel(model);
  EXPECT_EQ(Send("POST", "/tokenize", absl::StrCat(R"({"messages": )", user, tools, "}")).status, 400);
  EXPECT_EQ(Prompt(user), "chat xTrue");
}

// tests/jinja/continued_message_test.cc compares prompts with the prompts of transformers.
TEST_F(ChatMessagesTest, TheFinalMessageIsContinuedWhereItsTextEnds) {
  ServeTemplate("{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}");
  const char* go_on = R"(, "continue_final_message": true, "add_generation_prompt": false)";
  const auto prompt = [&](const std::string& content) {
    return Prompt(absl::StrCat(R"([{"role": "user", "content": "im_end"}, {"role": "assistant", "content": )",
                               content, "}]"),
                  go_on);
  };
  const std::string before = "<|im_start|>user\nim_end<|im_end|>\n<|im_start|>assistant\n";
  for (const std::string text : {"end", "m", "i", "<", "|", "im_end", "d|>", "", " ", "a ", "<|im_end|>"})
    EXPECT_EQ(prompt(absl::StrCat("\"", text, "\"")), before + text);
  EXPECT_EQ(prompt(R"("\n")"), before + "\n");
  // The parts of a message join into a single text.
  EXPECT_EQ(prompt(R"([{"type": "text", "text": "a"}, {"type": "text", "text": "end"}])"), before + "a\nend");
  for (const char* content : {"null", "[]"}) {
    const HttpReply reply =
        Send("POST", "/tokenize",
             absl::StrCat(R"({"messages": [{"role": "assistant", "content": )", content, "}]", go_on, "}"));
    EXPECT_EQ(reply.status, 400) << content;
    EXPECT_EQ(Json::parse(reply.body)["error"]["message"],
              "continue_final_message needs a last message with a text");
  }
}

TEST_F(ChatMessagesTest, AnErrorNamesTheLengthFieldThatWasGiven) {
  ServeTemplate("{{ messages[0].content }}");
  for (const char* field : {"max_tokens", "max_completion_tokens"}) {
    const HttpReply reply =
        Send("POST", "/v1/chat/completions",
             absl::StrCat(R"({"messages": [{"role": "user", "content": "x"}], "min_tokens": 5, ")", field,
                          R"(": 4})"));
    EXPECT_EQ(reply.status, 400);
    EXPECT_EQ(Json::parse(reply.body)["error"]["message"],
              absl::StrCat("min_tokens must be at most ", field));
  }
}

TEST_F(ChatMessagesTest, ContentPartsOfEveryClient) {
  ServeTemplate("{{ messages[0].content }}");
  EXPECT_EQ(Prompt(R"([{"role": "user", "content": [
      {"type": "text", "text": "a"}, {"type": "input_text", "text": "b"}, "c",
      {"type": "output_text", "text": "d"}, {"type": "refusal", "refusal": "e"}]}])"),
            "a\nb\nc\nd\ne");
  for (const char* part : {R"({"type": "input_text"})", R"({"type": "input_image", "text": "a"})", "7",
                           "null", R"({"type": 1, "text": "a"})", R"({"text": "a"})", R"(["a"])"}) {
    const HttpReply reply =
        Send("POST", "/v1/chat/completions",
             absl::StrCat(R"({"messages": [{"role": "user", "content": [)", part, "]}]}"));
    EXPECT_EQ(reply.status, 400) << part;
    EXPECT_EQ(Json::parse(reply.body)["error"]["param"], "messages") << part;
  }
}

TEST_F(ChatMessagesTest, MessagesWithoutContentOrOfUnknownRolesAreRefused) {
  ServeTemplate("{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}");
  const std::string user = R"({"role": "user", "content": "x"})";
  const std::pair<const char*, const char*> bad[] = {
      {R"({"role": "user"})", "messages[1] content is missing"},
      {R"({"role": "assistant"})", "messages[1] content is missing"},
      {R"({"role": "tool", "tool_call_id": "c"})", "messages[1] content is missing"},
      {R"({"role": "wizard", "content": "x"})",
       "messages[1] role must be one of system, developer, user, assistant, tool, function"},
      {R"({"role": "", "content": "x"})",
       "messages[1] role must be one of system, developer, user, assistant, tool, function"},
      {R"({"content": "x"})", "messages[1] role must be a string"},
      {R"("x")", "messages[1] must be an object"},
  };
  for (const auto& [message, problem] : bad) {
    const HttpReply reply =
        Send("POST", "/v1/chat/completions", absl::StrCat(R"({"messages": [)", user, ", ", message, "]}"));
    EXPECT_EQ(reply.status, 400) << message;
    const Json error = Json::parse(reply.body)["error"];
    EXPECT_EQ(error["param"], "messages") << message;
    EXPECT_EQ(error["message"], problem);
  }
  EXPECT_EQ(engine_->num_open(), 0u);
  // An assistant's message may have a tool call and no content.
  EXPECT_EQ(Prompt(absl::StrCat("[", user, R"(, {"role": "assistant", "tool_calls": [
                {"type": "function", "function": {"name": "f", "arguments": "{}"}}]},
                {"role": "tool", "content": "4"}, {"role": "assistant", "content": null}])")),
            "user:x;assistant:;tool:4;assistant:;");
  // For /tokenize vLLM leaves roles to the template.
  EXPECT_EQ(Prompt(R"([{"role": "wizard", "content": "x"}])"), "wizard:x;");
}

// A prompt with sorted keys differs from the prompts that the model was trained on, and from those of other
// servers.
TEST_F(ChatMessagesTest, ObjectsKeepTheirKeysInOrder) {
  ServeTemplate(
      "{% for m in messages %}{% for c in m.tool_calls or [] %}{{ c.function.arguments | tojson }}"
      "{% endfor %}{% endfor %}|{{ tools | tojson }}|{{ documents | tojson }}|{{ extra | tojson }}");
  EXPECT_EQ(Prompt(R"([{"role": "user", "content": "x"},
                       {"content": "", "role": "assistant", "tool_calls": [
                         {"type": "function", "function": {"name": "f", "arguments": "{\"z\": 1, \"a\": [2]}"}},
                         {"type": "function", "function": {"name": "g", "arguments": {"y": {}, "b": null}}}]}])",
                   R"(, "tools": [{"type": "function", "function": {
                         "parameters": {"type": "object", "properties": {"to": {}, "at": {}}}, "name": "f"}}],
                       "documents": [{"title": "t", "body": "b"}],
                       "chat_template_kwargs": {"extra": {"q": 1, "c": 2}})"),
            R"({"z": 1, "a": [2]}{"y": {}, "b": null}|)"
            R"([{"type": "function", "function": {"name": "f", "description": null, )"
            R"("parameters": {"type": "object", "properties": {"to": {}, "at": {}}}}}]|)"
            R"([{"title": "t", "body": "b"}]|{"q": 1, "c": 2})");
}

TEST_F(ChatMessagesTest, AKeyGivenTwiceCountsOnceWithItsLastValue) {
  ServeTemplate("{{ documents | tojson }}");
  EXPECT_EQ(
      Prompt(R"([{"role": "user", "content": "x"}])", R"(, "documents": [{"z": "1", "a": "2", "z": "3"}])"),
      R"([{"z": "3", "a": "2"}])");
}

TEST_F(ChatMessagesTest, MassesOfKeysAreRefused) {
  ServeTemplate("x");
  std::string keys;
  for (int i = 0; i < 200'000; ++i) absl::StrAppend(&keys, i == 0 ? "" : ",", "\"k", i, "\":\"\"");
  const std::string user = R"({"role": "user", "content": "x"})";
  const auto param = [&](const std::string& body) {
    const HttpReply reply = Send("POST", "/tokenize", body);
    EXPECT_EQ(reply.status, 400) << reply.body;
    return Json::parse(reply.body)["error"]["param"];
  };
  EXPECT_EQ(param(absl::StrCat(R"({"messages": [)", user, R"(], "documents": [{)", keys, "}]}")),
            "documents");
  EXPECT_EQ(
      param(absl::StrCat(R"({"messages": [)", user, R"(], "chat_template_kwargs": {"a": {)", keys, "}}}")),
      "chat_template_kwargs");
  EXPECT_EQ(param(absl::StrCat(R"({"messages": [{"role": "assistant", "tool_calls": [{"function": {)", keys,
                               "}}]}]}")),
            "messages");
  // A member after too many others cannot be found any more: the request is refused, the member is not
  // dropped.
  EXPECT_EQ(param(absl::StrCat(R"({"messages": [{)", keys,
                               R"(, "role": "assistant", "tool_calls": [{"function": {}}]}]})")),
            "messages");
}

TEST(ParseInOrderTest, KeepsTheNamedMembersAndTheFirstKeys) {
  const std::string body =
      R"({"b": {"z": NaN, "y": 1, "x": {"w": [1, {"v": 2, "u": 3, "t": 4}]}}, "a": 1, "c": [0]})";
  EXPECT_EQ(ParseInOrder(body, {}, 64).dump(),
            R"({"b":{"z":"NaN","y":1,"x":{"w":[1,{"v":2,"u":3,"t":4}]}},"a":1,"c":[0]})");
  EXPECT_EQ(ParseInOrder(body, {"c", "b"}, 64).dump(),
            R"({"b":{"z":"NaN","y":1,"x":{"w":[1,{"v":2,"u":3,"t":4}]}},"c":[0]})");
  EXPECT_EQ(ParseInOrder(body, {"b"}, 2).dump(), R"({"b":{"z":"NaN","y":1}})");
  EXPECT_EQ(ParseInOrder(R"({"a": {"b": {"c": 1, "d": 2}, "e": {"f": 3, "g": 4}, "h": 5}})", {}, 2).dump(),
            R"({"a":{"b":{"c":1,"d":2},"e":{"f":3,"g":4}}})");
}

TEST(ParseInOrderTest, TakesEveryValueAndLeavesWholeMembersOut) {
  EXPECT_EQ(
      ParseInOrder(R"({"a": [{}, [], -1, 18446744073709551615, 1.5, "\u00e9", true, null], "b": {}})", {}, 8)
          .dump(),
      R"({"a":[{},[],-1,18446744073709551615,1.5,"é",true,null],"b":{}})");
  EXPECT_EQ(ParseInOrder(R"({"x": [[{"a": 1}], {"b": [2]}], "a": [{"x": 1}], "y": 3, "b": 4})", {"a", "b"}, 8)
                .dump(),
            R"({"a":[{"x":1}],"b":4})");
  EXPECT_EQ(ParseInOrder(R"({"a": {"b": 1}, "c": 2, "a": [3]})", {}, 8).dump(), R"({"a":[3],"c":2})")
      << "the last of two values counts, in the place of the first";
  for (const char* wrong : {"[{}]", "1", R"({"a": 1)", R"({"a": [}]})", R"({"a": 1} 2)", ""})
    EXPECT_EQ(ParseInOrder(wrong, {}, 8).dump(), "{}") << wrong;
}

}  // namespace
}  // namespace somnus
