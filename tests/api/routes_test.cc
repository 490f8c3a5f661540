// Routes that do not generate: health, ports, sleep; the methods that a route takes; API keys.

#include <gtest/gtest.h>

#include "coordinator/api/api_key.h"
#include "tests/api/api_server_fixture.h"

namespace somnus {
namespace {

TEST_F(ApiServerTest, HealthIs503UntilThereIsAModel) {
  Start();
  EXPECT_EQ(Send("GET", "/health").status, 503);
  EXPECT_EQ(Complete(R"({"prompt": "a"})").status, 503);
  server_->SetModel(FakeModel(engine_));
  const HttpReply health = Send("GET", "/health");
  EXPECT_EQ(health.status, 200);
  EXPECT_EQ(health.body, "");
  engine_->set_state(EngineState::kFailed);
  EXPECT_EQ(Send("GET", "/health").status, 503);
  EXPECT_EQ(Complete(R"({"prompt": "a"})").status, 503);
}

TEST_F(ApiServerTest, ReadyzIsHealthAndLivezFailsOnlyWhenNothingIsServedAnyMore) {
  Start();
  EXPECT_EQ(Send("GET", "/readyz").status, 503);
  EXPECT_EQ(Send("GET", "/livez").status, 200) << "it is loading";
  server_->SetModel(FakeModel(engine_));
  for (const EngineState state : kEngineStates) {
    engine_->set_state(state);
    const int ready = state == EngineState::kAwake ? 200 : 503;
    const int live = state == EngineState::kFailed ? 503 : 200;
    for (const char* path : {"/health", "/readyz", "/ping"})
      EXPECT_EQ(Send("GET", path).status, ready) << EngineStateName(state);
    EXPECT_EQ(Send("GET", "/livez").status, live) << EngineStateName(state);
    EXPECT_EQ(Admin("GET", "/readyz").status, ready);
    EXPECT_EQ(Admin("GET", "/livez").status, live);
    EXPECT_EQ(Json::parse(Admin("GET", "/is_sleeping").body)["is_sleeping"], IsSleeping(state, 0));
  }
}

TEST_F(ApiServerTest, HealthSaysWhichStepHangs) {
  Serve();
  engine_->set_stall(absl::UnavailableError("rank 1 (pid 7) has been in step 3 for longer than 1m"));
  const HttpReply reply = Send("GET", "/health");
  EXPECT_EQ(reply.status, 503);
  EXPECT_EQ(Json::parse(reply.body)["error"]["message"],
            "rank 1 (pid 7) has been in step 3 for longer than 1m");
  EXPECT_EQ(Send("GET", "/livez").status, 200) << "the step may still end";
}

TEST_F(ApiServerTest, LifecycleRoutesRefuseWhatTheyDoNotUnderstand) {
  Serve();
  const auto refused = [&](const std::string& target, const std::string& body, const std::string& param) {
    const HttpReply reply = Admin("POST", target, body);
    EXPECT_EQ(reply.status, 400) << target << " " << body;
    EXPECT_EQ(Json::parse(reply.body)["error"]["param"], param) << reply.body;
  };
  refused("/sleep?tags=kv_cache", "", "tags");
  refused("/sleep?level=1&tags=kv_cache", "", "tags");
  refused("/sleep?Level=1", "", "Level");
  refused("/sleep", R"({"tags": ["kv_cache"]})", "tags");
  refused("/sleep", R"({"level": 2})", "level");
  refused("/sleep", "[1]", "body");
  refused("/sleep?level=0", "", "level");
  refused("/wake_up?level=1", "", "level");
  refused("/wake_up", R"({"tags": ["weights"]})", "tags");
  refused("/reset_prefix_cache?force=1", "", "force");
  refused("/roll?grace_s=-1", "", "grace_s");
  refused("/roll?grace_s=nan", "", "grace_s");
  refused("/roll?grace=5", "", "grace");
  EXPECT_EQ(engine_->state(), EngineState::kAwake) << "nothing was done in part";
  EXPECT_EQ(Admin("POST", "/sleep?level=1&mode=keep", " {} ").status, 200);
}

TEST_F(ApiServerTest, RoutesAndMethods) {
  Serve();
  EXPECT_EQ(Send("GET", "/").status, 404);
  EXPECT_EQ(Send("POST", "/v1/nope", "{}").status, 404);
  EXPECT_EQ(Send("POST", "/v1/models", "{}").status, 405);
  EXPECT_EQ(Send("PUT", "/v1/completions", "{}").status, 405);
  EXPECT_EQ(Send("OPTIONS", "/v1/completions").status, 405);
  EXPECT_EQ(Send("POST", "/ping").status, 200);
  EXPECT_EQ(Send("POST", "/sleep").status, 404) << "operators' routes have their own listener";
  EXPECT_EQ(Admin("POST", "/v1/completions").status, 404);
  EXPECT_EQ(Json::parse(Send("GET", "/version").body)["version"], "1.2.3");
  EXPECT_EQ(Json::parse(Send("GET", "/load").body)["server_load"], 0);
  EXPECT_EQ(Json::parse(Send("GET", "/v1/models").body)["data"][0]["id"], "fake");
  EXPECT_EQ(Send("GET", "/v1/models/fake").status, 200);
  EXPECT_EQ(Send("GET", "/v1/models/other").status, 404);
  const HttpReply redirect = Send("GET", "/v1/models/");
  EXPECT_EQ(redirect.status, 307);
}

TEST_F(ApiServerTest, AModelsNameInAPathMayHoldAPlus) {
  Start();
  ServedModel model = FakeModel(engine_);
  model.name = "a+b c";
  server_->SetModel(std::move(model));
  EXPECT_EQ(Send("GET", "/v1/models/a+b%20c").status, 200);
  EXPECT_EQ(Send("GET", "/v1/models/a%2bb%20c").status, 200);
  EXPECT_EQ(Send("GET", "/v1/models/a+b+c").status, 404);
}

TEST_F(ApiServerTest, ParametersOfRefusedRequestsAreNotCounted) {
  Serve();
  const auto count = [&] {
    const std::string text = Send("GET", "/metrics").body;
    const size_t line = text.find("\nvllm:request_params_n_count");
    const size_t space = text.find("} ", line);
    return line == std::string::npos ? "none" : text.substr(space + 2, text.find('\n', space) - space - 2);
  };
  ASSERT_EQ(Complete(R"({"prompt": "abc"})").status, 200);
  EXPECT_EQ(count(), "1");
  engine_->set_state(EngineState::kDraining);
  ASSERT_EQ(Complete(R"({"prompt": "abc"})").status, 503);
  EXPECT_EQ(count(), "1");
}

TEST_F(ApiServerTest, ServerInfoTellsAllPorts) {
  ApiServerOptions options;
  options.grpc_port = 50051;
  options.control_port = 50054;
  options.api_key = "secret";
  Start(options);
  Json expected = {{"version", "1.2.3"},
                   {"model", nullptr},
                   {"http_port", server_->port()},
                   {"admin_port", server_->admin_port()},
                   {"grpc_port", 50051},
                   {"control_port", 50054},
                   {"tls", false},
                   {"admin_tls", false}};
  EXPECT_EQ(Json::parse(Admin("GET", "/server_info").body), expected);
  server_->SetModel(FakeModel(engine_));
  expected["model"] = "fake";
  EXPECT_EQ(Send("GET", "/server_info").status, 401);
  const HttpReply reply = Send("GET", "/server_info", "", "Authorization: Bearer secret\r\n");
  EXPECT_EQ(Json::parse(reply.body), expected);
}

TEST_F(ApiServerTest, SleepAndWake) {
  Serve();
  for (const char* level : {"0", "3", "-1", "x", ""}) {
    const HttpReply reply = Admin("POST", absl::StrCat("/sleep?level=", level));
    EXPECT_EQ(reply.status, 400) << level;
    EXPECT_EQ(Json::parse(reply.body)["error"]["message"], "level must be 1 or 2");
  }
  EXPECT_EQ(Admin("POST", "/sleep?mode=abort").status, 400);
  const Json slept = Json::parse(Admin("POST", "/sleep?level=2").body);
  EXPECT_EQ(slept["status"], "sleeping");
  EXPECT_EQ(slept["level"], 2);
  EXPECT_EQ(slept["already_asleep"], false);
  const Json again = Json::parse(Admin("POST", "/sleep?level=1").body);
  EXPECT_EQ(again["level"], 2);
  EXPECT_EQ(again["already_asleep"], true);
  EXPECT_EQ(again["freed_bytes"], Json::object());
  EXPECT_EQ(Json::parse(Admin("GET", "/is_sleeping").body)["is_sleeping"], true);
  engine_->set_state(EngineState::kRecovering);
  EXPECT_EQ(Json::parse(Admin("GET", "/is_sleeping").body)["is_sleeping"], true)
      << "the memory stays released";
  engine_->set_state(EngineState::kAsleep);
  EXPECT_EQ(Admin("POST", "/wake_up?tags=nonsense").status, 400);
  EXPECT_EQ(Json::parse(Admin("POST", "/wake_up?tags=weights&tags=kv_cache").body)["tags"].size(), 2u);
  EXPECT_EQ(Json::parse(Admin("GET", "/is_sleeping").body)["is_sleeping"], false);
  EXPECT_EQ(Json::parse(Admin("POST", "/wake_up").body)["already_resident"], true);
  EXPECT_EQ(Json::parse(Admin("POST", "/reset_prefix_cache").body)["success"], true);
  EXPECT_EQ(Json::parse(Admin("POST", "/roll?grace_s=2.5").body)["status"], "rolled");
  EXPECT_EQ(engine_->roll_grace(), absl::Seconds(2.5));
  engine_->set_roll_status(absl::FailedPreconditionError("the engine has one replica"));
  EXPECT_EQ(Admin("POST", "/roll").status, 503);
  EXPECT_EQ(engine_->roll_grace(), absl::Seconds(10));
}

TEST(RoutesTest, ConstantTimeCompareIsRight) {
  EXPECT_TRUE(EqualInConstantTime("abc", "abc"));
  EXPECT_FALSE(EqualInConstantTime("abd", "abc"));
  EXPECT_FALSE(EqualInConstantTime("abcabc", "abc"));
  EXPECT_FALSE(EqualInConstantTime("", "abc"));
  EXPECT_FALSE(EqualInConstantTime("abc", ""));
}

}  // namespace
}  // namespace somnus
