// GET /requests: what requests there are, and what has happened to one.
#include <future>

#include "absl/strings/str_cat.h"
#include "tests/api/api_server_fixture.h"

namespace somnus {
namespace {

class RequestsRouteTest : public ApiServerTest {
 protected:
  std::future<HttpReply> Begin(const std::string& id, const std::string& user = "") {
    return std::async(std::launch::async, [this, id, user] {
      const std::string body = absl::StrCat(R"({"prompt": "ab", "max_tokens": 4, "user": ")", user, R"("})");
      return Send("POST", "/v1/completions", body, absl::StrCat("X-Request-Id: ", id, "\r\n"));
    });
  }
  Json List(const std::string& query = "") {
    return Json::parse(Admin("GET", absl::StrCat("/requests", query)).body);
  }
  static std::vector<std::string> Ids(const Json& list) {
    std::vector<std::string> ids;
    for (const Json& request : list["data"]) ids.push_back(request["request_id"]);
    return ids;
  }
};

TEST_F(RequestsRouteTest, OpenOnesAndEndedOnesAreListed) {
  Serve();
  engine_->set_state(EngineState::kPaused);
  std::vector<std::future<HttpReply>> replies;
  for (const char* id : {"one", "two", "three"}) {
    replies.push_back(Begin(id, id));
    while (engine_->num_open() < replies.size()) absl::SleepFor(absl::Milliseconds(1));
  }
  const Json open = List();
  EXPECT_EQ(Ids(open), (std::vector<std::string>{"cmpl-one", "cmpl-two", "cmpl-three"}))
      << "the oldest first";
  EXPECT_EQ(open["counts"], (Json{{"waiting", 3}, {"running", 0}, {"preempted", 0}, {"ended", 0}}));
  const auto users = [this](const std::string& query) {
    std::vector<std::string> names;
    const Json list = List(query);
    for (const Json& user : list["users"]) names.push_back(user["user"]);
    return names;
  };
  replies.push_back(Begin("four", "two"));
  while (engine_->num_open() < 4) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_EQ(users(""), (std::vector<std::string>{"two", "one", "three"})) << "the most open requests first";
  EXPECT_EQ(users("?users_sort=name"), (std::vector<std::string>{"one", "three", "two"}));
  EXPECT_EQ(List("?users_sort=wait")["users"][0],
            (Json{{"user", "two"}, {"num_open", 2}, {"num_waiting", 2}, {"num_output_tokens", 0}}));
  const Json& first = open["data"][0];
  EXPECT_EQ(first["state"], "waiting");
  EXPECT_EQ(first["user"], "one");
  EXPECT_EQ(first["num_prompt_tokens"], 2);
  EXPECT_EQ(first["max_tokens"], 4);
  EXPECT_TRUE(first["queue_s"].is_null()) << "it is not scheduled";
  EXPECT_EQ(Ids(List("?limit=1")).size(), 1);
  EXPECT_EQ(Ids(List("?match=two")), (std::vector<std::string>{"cmpl-two", "cmpl-four"})) << "id or user";
  EXPECT_TRUE(Ids(List("?state=running")).empty());
  engine_->set_state(EngineState::kAwake);
  for (std::future<HttpReply>& reply : replies) EXPECT_EQ(reply.get().status, 200);
  EXPECT_TRUE(Ids(List()).empty());
  const Json ended = List("?state=ended");
  EXPECT_EQ(Ids(ended).size(), 4);
  EXPECT_EQ(ended["data"][0]["finish_reason"], "length");
}

TEST_F(RequestsRouteTest, OneIsExplainedFromItsArrivalToItsEnd) {
  Serve();
  EXPECT_EQ(Begin("one").get().status, 200);
  const Json story = Json::parse(Admin("GET", "/requests/cmpl-one").body);
  EXPECT_EQ(story["state"], "ended");
  EXPECT_EQ(story["events"].front()["event"], "queued");
  EXPECT_EQ(story["events"].back()["event"], "ended");
  EXPECT_EQ(story["events"].back()["detail"], "length");
  EXPECT_EQ(story["num_dropped_events"], 0);
  EXPECT_EQ(Admin("GET", "/requests/cmpl-none").status, 404);
}

TEST_F(RequestsRouteTest, TheEndedOnesOfSeveralModelsAreInOneOrder) {
  Start();
  std::vector<ServedModel> models = {FakeModel(engine_), FakeModel(engine_)};
  models[1].name = "second";
  server_->SetModels(std::move(models));
  const std::vector<std::string> names = {"fake", "second", "fake", "second"};
  for (size_t i = 0; i < names.size(); ++i) {
    const std::string body = absl::StrCat(R"({"prompt": "ab", "max_tokens": 1, "model": ")", names[i],
                                          R"(", "request_id": ")", i, R"("})");
    ASSERT_EQ(Complete(body).status, 200);
  }
  EXPECT_EQ(Ids(List("?state=ended&limit=3")), (std::vector<std::string>{"cmpl-3", "cmpl-2", "cmpl-1"}));
}

TEST_F(RequestsRouteTest, ARequestThatTheEngineRefusesIsNotAmongThem) {
  Serve();
  engine_->set_submit_status(absl::ResourceExhaustedError("the queue is full"));
  EXPECT_EQ(Begin("one").get().status, 429);
  EXPECT_TRUE(Ids(List("?state=all")).empty());
}

TEST_F(RequestsRouteTest, AClientThatLeavesEndsItsRequest) {
  Serve();
  {
    HttpClient client(server_->port());
    StartLongStream(&client, 1, 0);
  }
  const absl::Time deadline = absl::Now() + absl::Seconds(20);
  while (List("?state=ended")["data"].empty() && absl::Now() < deadline)
    absl::SleepFor(absl::Milliseconds(5));
  EXPECT_EQ(List("?state=ended")["data"][0]["finish_reason"], "abort");
}

TEST_F(RequestsRouteTest, OnlyOperatorsMayAskAndParametersAreChecked) {
  Serve();
  EXPECT_EQ(Send("GET", "/requests").status, 404);
  EXPECT_EQ(Send("GET", "/requests/cmpl-one").status, 404);
  EXPECT_EQ(Admin("POST", "/requests/cmpl-one", "{}").status, 405);
  for (const char* query :
       {"?state=gone", "?state=", "?sort=size", "?users_sort=age", "?limit=-1", "?limit=1001", "?limit=x"})
    EXPECT_EQ(Admin("GET", absl::StrCat("/requests", query)).status, 400) << query;
  EXPECT_EQ(Admin("GET", "/requests?model=none").status, 404);
  EXPECT_EQ(Admin("GET", "/requests?model=fake").status, 200);
}

TEST_F(RequestsRouteTest, AnAliasIsAsGoodAsTheName) {
  Start();
  ServedModel model = FakeModel(engine_);
  model.aliases = {"short", "gpt-4"};
  server_->SetModel(std::move(model));
  for (const char* name : {"fake", "short", "gpt-4"}) {
    const HttpReply reply =
        Complete(absl::StrCat(R"({"prompt": "ab", "max_tokens": 1, "model": ")", name, R"("})"));
    ASSERT_EQ(reply.status, 200) << reply.body;
    EXPECT_EQ(Json::parse(reply.body)["model"], "fake") << "responses have the first name";
    EXPECT_EQ(Send("GET", absl::StrCat("/v1/models/", name)).status, 200);
  }
  EXPECT_EQ(Json::parse(Send("GET", "/v1/models").body)["data"].size(), 3);
  const HttpReply unknown = Complete(R"({"prompt": "ab", "model": "other"})");
  EXPECT_EQ(unknown.status, 404);
  EXPECT_NE(unknown.body.find("fake, short, gpt-4"), std::string::npos) << unknown.body;
}

}  // namespace
}  // namespace somnus
