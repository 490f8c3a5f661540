// /v1/prefixes: pinning, listing and unpinning, and whom errors name.

#include <set>

#include "tests/api/api_server_fixture.h"
#include "text/jinja/chat_template.h"

namespace somnus {
namespace {

constexpr char kBlock[] = "0123456789abcdef";  // of 16 tokens, which are bytes

class PrefixesTest : public ApiServerTest {
 protected:
  Json Pin(const std::string& body) {
    const HttpReply reply = Send("POST", "/v1/prefixes", body);
    EXPECT_EQ(reply.status, 200) << reply.body;
    return Json::parse(reply.body);
  }
  std::set<std::string> Ids() {
    std::set<std::string> ids;
    const Json list = Json::parse(Send("GET", "/v1/prefixes").body);
    EXPECT_EQ(list["object"], "list");
    for (const Json& prefix : list["data"]) ids.insert(prefix["id"]);
    return ids;
  }
};

TEST_F(PrefixesTest, APinCanBeReadAndEnded) {
  Serve();
  const Json pinned = Pin(absl::StrCat(R"({"model": "fake", "prompt": ")", kBlock, kBlock, R"(xyz"})"));
  EXPECT_EQ(pinned["object"], "prefix");
  EXPECT_EQ(pinned["model"], "fake");
  EXPECT_EQ(pinned["tokens"], 32);
  EXPECT_EQ(pinned["blocks"], 2);
  EXPECT_EQ(pinned["held_blocks"], 0) << "the fake engine has no cache";
  EXPECT_GT(pinned["created"], 1'600'000'000);
  const std::string id = pinned["id"];
  EXPECT_EQ(Json::parse(Send("GET", "/v1/prefixes/" + id).body), pinned);
  EXPECT_EQ(Json::parse(Send("GET", "/v1/prefixes").body)["data"], Json::array({pinned}));
  EXPECT_EQ(engine_->Stats().generation_tokens, 1) << "one request has computed it";
  // The same full blocks are pinned once.
  EXPECT_EQ(Pin(absl::StrCat(R"({"prompt": ")", kBlock, kBlock, R"("})"))["id"], id);
  const Json salted = Pin(absl::StrCat(R"({"cache_salt": "s", "prompt": ")", kBlock, kBlock, R"("})"));
  EXPECT_EQ(Ids(), (std::set<std::string>{id, salted["id"]}));
  const HttpReply deleted = Send("DELETE", "/v1/prefixes/" + id);
  EXPECT_EQ(deleted.status, 200);
  EXPECT_EQ(Json::parse(deleted.body), (Json{{"id", id}, {"object", "prefix"}, {"deleted", true}}));
  EXPECT_EQ(Send("DELETE", "/v1/prefixes/" + id).status, 404);
  EXPECT_EQ(Send("GET", "/v1/prefixes/" + id).status, 404);
  EXPECT_EQ(Ids(), std::set<std::string>{salted["id"]});
}

TEST_F(PrefixesTest, TokenIdsAndMessagesArePrompts) {
  Start();
  ServedModel model = FakeModel(engine_);
  absl::StatusOr<std::unique_ptr<ChatTemplate>> chat_template = ChatTemplate::Compile(
      "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
      "{% if add_generation_prompt %}<assistant and much more>{% endif %}");
  ASSERT_TRUE(chat_template.ok()) << chat_template.status();
  model.templates.chat = *std::move(chat_template);
  server_->SetModel(std::move(model));
  std::string ids = "65";
  for (int i = 1; i < 20; ++i) absl::StrAppend(&ids, ",", 65 + i);
  EXPECT_EQ(Pin(absl::StrCat(R"({"prompt": [)", ids, "]}"))["tokens"], 16);
  // 8 for <system>, and 24.
  const std::string messages = R"("messages": [{"role": "system", "content": "You are a helpful robot."}])";
  EXPECT_EQ(Pin(absl::StrCat("{", messages, "}"))["tokens"], 32);
  EXPECT_EQ(Pin(absl::StrCat("{", messages, R"(, "add_generation_prompt": true})"))["tokens"], 48)
      << "what begins an answer is not pinned unless it is asked for";
}

TEST_F(PrefixesTest, ErrorsNameTheirFields) {
  Serve();
  const auto refused = [&](const std::string& body, int status, const Json& param) {
    const HttpReply reply = Send("POST", "/v1/prefixes", body);
    EXPECT_EQ(reply.status, status) << body << " " << reply.body;
    EXPECT_EQ(Json::parse(reply.body)["error"]["param"], param) << reply.body;
  };
  refused("{", 400, nullptr);
  refused("{}", 400, "prompt");
  refused(R"({"prompt": "short"})", 400, "prompt");
  refused(R"({"prompt": ["0123456789abcdef", "0123456789abcdef"]})", 400, "prompt");
  refused(R"({"prompt": 7})", 400, "prompt");
  refused(R"({"prompt": "0123456789abcdef", "messages": []})", 400, "messages");
  refused(R"({"messages": [{"role": "system", "content": "a"}]})", 400, "messages");
  refused(R"({"prompt": "0123456789abcdef", "cache_salt": "a/b"})", 400, "cache_salt");
  refused(R"({"prompt": "0123456789abcdef", "model": "other"})", 404, "model");
  EXPECT_EQ(Send("GET", "/v1/prefixes?model=other").status, 404);
  EXPECT_EQ(Ids(), std::set<std::string>());
}

TEST_F(PrefixesTest, PinsAreBounded) {
  Serve();  // 256 of the fake engine's 1024 blocks
  const std::string many(16 * 200, 'a'), more(16 * 200, 'b');
  const std::string id = Pin(absl::StrCat(R"({"prompt": ")", many, R"("})"))["id"];
  const std::string other = absl::StrCat(R"({"prompt": ")", more, R"("})");
  const HttpReply full = Send("POST", "/v1/prefixes", other);
  EXPECT_EQ(full.status, 429) << full.body;
  EXPECT_EQ(Json::parse(full.body)["error"]["message"],
            "200 blocks cannot be pinned: 200 are, and of the 1024 of the KV cache 256 may be "
            "(--max-pinned-prefix-share, and one sequence of 4096 tokens must have room beside them)");
  EXPECT_EQ(Send("DELETE", "/v1/prefixes/" + id).status, 200);
  EXPECT_EQ(Send("POST", "/v1/prefixes", other).status, 200);
}

TEST_F(PrefixesTest, WhereThePromptIsNotComputedNothingIsPinned) {
  Serve();
  const std::string body = absl::StrCat(R"({"prompt": ")", kBlock, R"("})");
  engine_->set_submit_status(absl::ResourceExhaustedError("the queue is full"));
  EXPECT_EQ(Send("POST", "/v1/prefixes", body).status, 429);
  EXPECT_EQ(Ids(), std::set<std::string>());
  engine_->set_submit_status(absl::OkStatus());
  engine_->FailAfter(0, absl::InternalError("bad logits"));
  EXPECT_EQ(Send("POST", "/v1/prefixes", body).status, 500);
  EXPECT_EQ(Ids(), std::set<std::string>());
}

TEST_F(PrefixesTest, AClientThatLeavesAndAnAbortTakeThePinBack) {
  Serve();
  engine_->set_state(EngineState::kPaused);  // requests wait
  const std::string body = absl::StrCat(R"({"prompt": ")", kBlock, R"("})");
  {
    HttpClient client(server_->port());
    client.Write(RequestText("POST", "/v1/prefixes", body));
    AwaitOpen();
    EXPECT_EQ(Ids().size(), 1u) << "it is listed while it is computed";
  }
  const absl::Time deadline = absl::Now() + absl::Seconds(20);
  while (!Ids().empty() && absl::Now() < deadline) absl::SleepFor(absl::Milliseconds(2));
  EXPECT_EQ(Ids(), std::set<std::string>());
  engine_->set_state(EngineState::kAwake);
  EXPECT_TRUE(engine_->WaitIdle());
  engine_->set_state(EngineState::kPaused);
  HttpClient client(server_->port());
  client.Write(RequestText("POST", "/v1/prefixes", body));
  AwaitOpen();
  EXPECT_EQ(Admin("POST", "/abort_requests", "{}").status, 200);
  engine_->set_state(EngineState::kAwake);
  EXPECT_EQ(client.ReadReply().status, 409);
  EXPECT_EQ(Ids(), std::set<std::string>());
}

TEST_F(PrefixesTest, MethodsAndKeys) {
  Serve(ApiServerOptions{.api_keys = ApiKeys("secret")});
  const std::string key = "Authorization: Bearer secret\r\n";
  EXPECT_EQ(Send("GET", "/v1/prefixes").status, 401);
  EXPECT_EQ(Send("DELETE", "/v1/prefixes/a").status, 401);
  EXPECT_EQ(Send("GET", "/v1/prefixes", "", key).status, 200);
  EXPECT_EQ(Send("GET", "/v1/prefixes/a", "", key).status, 404);
  EXPECT_EQ(Send("GET", "/v1/prefixes/", "", key).status, 307);
  EXPECT_EQ(Send("GET", "/v1/prefixesx", "", key).status, 404);
  const HttpReply put = Send("PUT", "/v1/prefixes", "", key), post = Send("POST", "/v1/prefixes/a", "", key);
  EXPECT_EQ(put.status, 405);
  EXPECT_TRUE(absl::StrContains(put.head, "Allow: GET, HEAD, POST, OPTIONS\r\n")) << put.head;
  EXPECT_EQ(post.status, 405);
  EXPECT_TRUE(absl::StrContains(post.head, "Allow: GET, HEAD, DELETE, OPTIONS\r\n")) << post.head;
}

TEST_F(PrefixesTest, OfSeveralModelsEachHasItsOwn) {
  Start();
  const auto other = std::make_shared<FakeEngine>();
  std::vector<ServedModel> models = {FakeModel(engine_), FakeModel(other)};
  models[1].name = "other";
  server_->SetModels(std::move(models));
  const std::string prompt = absl::StrCat(R"("prompt": ")", kBlock, R"(")");
  const Json first = Pin(absl::StrCat("{", prompt, "}"));
  const Json second = Pin(absl::StrCat(R"({"model": "other", )", prompt, "}"));
  EXPECT_EQ(first["model"], "fake");
  EXPECT_EQ(second["model"], "other");
  EXPECT_EQ(Ids().size(), 2u);
  EXPECT_EQ(Json::parse(Send("GET", "/v1/prefixes?model=other").body)["data"], Json::array({second}));
  const std::string id = second["id"];
  EXPECT_EQ(Send("GET", "/v1/prefixes/" + id).status, 200);
  EXPECT_EQ(Send("GET", "/v1/prefixes/" + id + "?model=fake").status, 404);
  EXPECT_EQ(Send("DELETE", "/v1/prefixes/" + id).status, 200);
  EXPECT_EQ(Ids(), std::set<std::string>{first["id"]});
}

}  // namespace
}  // namespace somnus
