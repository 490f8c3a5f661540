// Routes that do not generate: health, ports, sleep; the methods that a route takes; API keys.

#include <gtest/gtest.h>

#include <future>

#include "coordinator/http/api_key.h"
#include "proto/control.pb.h"
#include "proto/missing_memory.h"
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
  for (const char* path : {"/is_sleeping", "/is_paused"})
    EXPECT_EQ(Admin("GET", path).status, 503) << path << ": workers that sleep may be adopted";
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
    EXPECT_EQ(Json::parse(Admin("GET", "/is_sleeping").body)["is_sleeping"], IsSleeping(state, 0, false));
  }
}

TEST_F(ApiServerTest, HealthSaysWhichStepHangs) {
  Serve();
  engine_->set_stall(absl::UnavailableError("rank 1 (pid 7) has been in step 3 for longer than 1m"));
  const HttpReply reply = Send("GET", "/health");
  EXPECT_EQ(reply.status, 503);
  const std::string message = Json::parse(reply.body)["error"]["message"];
  EXPECT_EQ(message.rfind("rank 1 (pid 7) has been in step 3 for longer than 1m. Why: ", 0), 0u) << message;
  EXPECT_EQ(Send("GET", "/livez").status, 200) << "the step may still end";
}

TEST_F(ApiServerTest, LifecycleRoutesRefuseWhatTheyDoNotUnderstand) {
  Serve();
  const auto refused = [&](const std::string& target, const std::string& body, const std::string& param) {
    const HttpReply reply = Admin("POST", target, body);
    EXPECT_EQ(reply.status, 400) << target << " " << body;
    EXPECT_EQ(Json::parse(reply.body)["error"]["param"], param) << reply.body;
  };
  refused("/sleep?tags=brain", "", "tags");
  refused("/sleep?level=0&tags=kv_cache", "", "tags");
  refused("/sleep?mode=foo", "", "mode");
  refused("/sleep?mode=", "", "mode");
  refused("/sleep?Level=1", "", "Level");
  refused("/sleep?tags=", "", "tags");
  refused("/sleep?tags=kv_cache,", "", "tags");
  refused("/wake_up?level=1", "", "level");
  refused("/reset_prefix_cache?force=1", "", "force");
  refused("/reset_prefix_cache?reset_running_requests=2", "", "reset_running_requests");
  refused("/pause?mode=zzz", "", "mode");
  refused("/pause?clear_cache=perhaps", "", "clear_cache");
  refused("/pause?level=1", "", "level");
  refused("/resume?mode=abort", "", "mode");
  refused("/abort_requests", "", "body");
  refused("/abort_requests", R"({"request_ids": "cmpl-1"})", "request_ids");
  refused("/abort_requests", R"({"ids": []})", "ids");
  refused("/roll?grace_s=-1", "", "grace_s");
  refused("/roll?grace_s=nan", "", "grace_s");
  refused("/roll?grace=5", "", "grace");
  refused("/reload_weights?weight_version=0", "", "weight_version");
  refused("/reload_weights?weight_version=one", "", "weight_version");
  refused("/reload_weights?weight_label=", "", "weight_label");
  refused("/reload_weights?mode=now", "", "mode");
  refused("/reload_weights?model_path=a", "", "model_path");
  refused("/wake_up?load_weights=perhaps", "", "load_weights");
  EXPECT_EQ(engine_->state(), EngineState::kAwake) << "nothing was done in part";
  EXPECT_EQ(Admin("POST", "/sleep?level=1&mode=keep", " {} ").status, 200);
}

TEST_F(ApiServerTest, RoutesAndMethods) {
  Serve();
  EXPECT_EQ(Send("GET", "/").status, 404) << "as of vLLM; the body has the routes to begin with";
  EXPECT_EQ(Send("POST", "/v1/nope", "{}").status, 404);
  EXPECT_EQ(Send("POST", "/v1/models", "{}").status, 405);
  EXPECT_EQ(Send("PUT", "/v1/completions", "{}").status, 405);
  EXPECT_EQ(Send("OPTIONS", "/v1/completions").status, 204);
  EXPECT_EQ(Send("POST", "/ping").status, 200);
  EXPECT_EQ(Send("POST", "/sleep").status, 404) << "operators' routes have their own listener";
  EXPECT_EQ(Json::parse(Send("GET", "/version").body)["version"], "1.2.3");
  EXPECT_EQ(Json::parse(Send("GET", "/load").body)["server_load"], 0);
  EXPECT_EQ(Json::parse(Send("GET", "/v1/models").body)["data"][0]["id"], "fake");
  EXPECT_EQ(Send("GET", "/v1/models/fake").status, 200);
  EXPECT_EQ(Send("GET", "/v1/models/other").status, 404);
  const HttpReply redirect = Send("GET", "/v1/models/");
  EXPECT_EQ(redirect.status, 307);
  EXPECT_TRUE(absl::StrContains(redirect.head, "Location: /v1/models\r\n")) << redirect.head;
  const HttpReply with_query = Admin("POST", "/sleep/?level=2&tags=kv_cache");
  EXPECT_EQ(with_query.status, 307);
  EXPECT_TRUE(absl::StrContains(with_query.head, "Location: /sleep?level=2&tags=kv_cache\r\n"))
      << "else it would be level 1: " << with_query.head;
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

TEST_F(ApiServerTest, SleepAndWake) {
  Serve();
  for (const char* level : {"1.5", "3", "-1", "x", ""}) {
    const HttpReply reply = Admin("POST", absl::StrCat("/sleep?level=", level));
    EXPECT_EQ(reply.status, 400) << level;
    EXPECT_EQ(Json::parse(reply.body)["error"]["message"], "level must be 0, 1 or 2");
  }
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
  const Json woken = Json::parse(Admin("POST", "/wake_up?tags=weights&tags=kv_cache").body);
  EXPECT_EQ(woken["tags_woken"].size(), 2u);
  EXPECT_EQ(woken["tags"], woken["tags_woken"]);
  EXPECT_EQ(Json::parse(Admin("GET", "/is_sleeping").body)["is_sleeping"], false);
  EXPECT_EQ(Json::parse(Admin("POST", "/wake_up").body)["already_resident"], true);
  EXPECT_EQ(Json::parse(Admin("POST", "/reset_prefix_cache").body)["success"], true);
  EXPECT_EQ(Json::parse(Admin("POST", "/roll?grace_s=2.5").body)["status"], "rolled");
  EXPECT_EQ(engine_->roll_grace(), absl::Seconds(2.5));
  engine_->set_roll_status(absl::FailedPreconditionError("the engine has one replica"));
  const HttpReply refused = Admin("POST", "/roll");
  EXPECT_EQ(refused.status, 409) << "another try would be refused, too";
  EXPECT_EQ(refused.head.find("Retry-After"), std::string::npos) << refused.head;
  EXPECT_EQ(engine_->roll_grace(), absl::Seconds(10));
}

TEST_F(ApiServerTest, WhatALifecycleCallLacksIsNoRateLimit) {
  Serve();
  const auto reload = [&](const absl::Status& status) {
    engine_->set_weights_status(status);
    const HttpReply reply = Admin("POST", "/reload_weights");
    EXPECT_EQ(Admin("POST", "/collective_rpc", R"({"method": "reload_weights"})").status, reply.status);
    return reply;
  };
  const HttpReply no_memory = reload(absl::ResourceExhaustedError("5 MiB missing"));
  EXPECT_EQ(no_memory.status, 503);
  EXPECT_EQ(Json::parse(no_memory.body)["error"]["message"], "5 MiB missing");
  EXPECT_NE(no_memory.head.find("Retry-After"), std::string::npos) << no_memory.head;
  EXPECT_EQ(reload(absl::FailedPreconditionError(
                       "the weights sleep; wake them up first (somnus wake-up --no-load-weights)"))
                .status,
            409);
  EXPECT_EQ(reload(absl::UnavailableError("rank 1 was lost")).status, 503);
  engine_->set_state(EngineState::kDraining);
  EXPECT_EQ(reload(absl::FailedPreconditionError("the server is shutting down")).status, 503);
}

TEST_F(ApiServerTest, AWakeUpThatLacksMemorySaysHowMuchAndWorksLater) {
  Serve();
  ASSERT_EQ(Admin("POST", "/sleep?level=1").status, 200);
  v1::MissingMemory missing;
  for (const int rank : {0, 1}) {
    v1::MissingMemory::Shortage* shortage = missing.add_shortages();
    shortage->set_replica(2);
    shortage->set_rank(rank);
    shortage->set_tag("kv_cache");
    shortage->set_needed_bytes(int64_t{5} << 40);
    shortage->set_missing_bytes(7 + rank);
    shortage->set_memory("device");
  }
  engine_->set_wake_status(WithMissing(absl::ResourceExhaustedError("rank 0: no memory"), missing));
  const HttpReply lacking = Admin("POST", "/wake_up");
  EXPECT_EQ(lacking.status, 503);
  const Json error = Json::parse(lacking.body)["error"];
  EXPECT_EQ(error["message"], "rank 0: no memory");
  EXPECT_EQ(error["missing"], Json::parse(R"([
    {"replica": 2, "rank": 0, "tag": "kv_cache", "memory": "device", "needed_bytes": 5497558138880,
     "missing_bytes": 7},
    {"replica": 2, "rank": 1, "tag": "kv_cache", "memory": "device", "needed_bytes": 5497558138880,
     "missing_bytes": 8}])"));
  engine_->set_wake_status(absl::UnavailableError("no room within 2m"));
  const HttpReply no_room = Admin("POST", "/wake_up");
  EXPECT_EQ(no_room.status, 503);
  EXPECT_NE(no_room.head.find("Retry-After: 1\r\n"), std::string::npos) << no_room.head;
  EXPECT_FALSE(Json::parse(no_room.body)["error"].contains("missing"));
  engine_->set_wake_status(absl::OkStatus());
  EXPECT_EQ(Json::parse(Admin("POST", "/wake_up").body)["status"], "awake");
}

TEST_F(ApiServerTest, WeightsAreReloadedAndTheirVersionIsShown) {
  Serve();
  EXPECT_EQ(Json::parse(Admin("GET", "/server_info").body)["weight_version"], 1);
  const Json reply =
      Json::parse(Admin("POST", "/reload_weights?path=/models/b&mode=abort&weight_version=7").body);
  EXPECT_EQ(reply["status"], "reloaded");
  EXPECT_EQ(reply["weight_version"], 7);
  EXPECT_EQ(engine_->last_reload().path, "/models/b");
  EXPECT_EQ(engine_->last_reload().mode, SleepMode::kAbort);
  EXPECT_EQ(Json::parse(Send("GET", "/server_info").body)["weight_version"], 7);
  EXPECT_EQ(Admin("POST", "/reload_weights").status, 200);
  EXPECT_EQ(engine_->last_reload().mode, SleepMode::kWait) << "no response has tokens of two versions";
  EXPECT_EQ(engine_->last_reload().path, "");
  const auto call = [&](const std::string& body) { return Admin("POST", "/collective_rpc", body).status; };
  EXPECT_EQ(call(R"({"method": "reload_weights", "kwargs": {"weights_path": "/c", "mode": "keep"}})"), 200);
  EXPECT_EQ(engine_->last_reload().path, "/c");
  EXPECT_EQ(engine_->last_reload().mode, SleepMode::kKeep);
  EXPECT_EQ(call(R"({"method": "reload_weights", "args": ["/d", "wait", 12]})"), 200);
  EXPECT_EQ(engine_->last_reload().version, 12);
  EXPECT_EQ(call(R"({"method": "reload_weights", "args": ["/d", "wait", "13"]})"), 200);
  EXPECT_EQ(engine_->last_reload().version, 13);
  EXPECT_EQ(engine_->last_reload().label, "");
  EXPECT_EQ(call(R"({"method": "reload_weights", "kwargs": {"weight_label": "step-8"}})"), 200);
  EXPECT_EQ(engine_->last_reload().label, "step-8");
  EXPECT_EQ(call(R"({"method": "reload_weights", "kwargs": {"weight_label": 8}})"), 400);
  EXPECT_EQ(Admin("POST", "/reload_weights?weight_label=step-9").status, 200);
  EXPECT_EQ(engine_->last_reload().label, "step-9");
  EXPECT_EQ(call(R"({"method": "reload_weights", "args": [3]})"), 400);
  EXPECT_EQ(call(R"({"method": "reload_weights", "kwargs": {"weight_version": 0}})"), 400);
  engine_->set_weights_status(absl::InvalidArgumentError("another architecture"));
  EXPECT_EQ(Admin("POST", "/reload_weights").status, 400);
  EXPECT_EQ(Admin("POST", "/wake_up?load_weights=false").status, 200);
  EXPECT_EQ(engine_->load_weights(), false);
  EXPECT_EQ(Admin("POST", "/wake_up").status, 200);
  EXPECT_EQ(engine_->load_weights(), std::nullopt);
}

TEST_F(ApiServerTest, ResponsesSayWhichWeightsBeganThem) {
  Serve();
  const auto has = [](const HttpReply& reply) {
    return reply.head.find("X-Weight-Version: 1\r\n") != std::string::npos;
  };
  EXPECT_TRUE(has(Complete(R"({"prompt": "a"})")));
  EXPECT_TRUE(has(Complete(R"({"prompt": "a", "stream": true})")));
  EXPECT_FALSE(has(Complete(R"({"prompt": ""})"))) << "no weights have computed an error";
}

TEST_F(ApiServerTest, SleepPassesOnTagsAndModeAndTellsWhatItDid) {
  Serve();
  const Json slept = Json::parse(Admin("POST", "/sleep?tags=kv_cache&mode=abort&tags=weights").body);
  EXPECT_EQ(engine_->last_sleep().tags, (std::vector<std::string>{"kv_cache", "weights"}));
  EXPECT_EQ(engine_->last_sleep().mode, SleepMode::kAbort);
  EXPECT_EQ(engine_->last_sleep().level, 1);
  EXPECT_EQ(slept["tag_states"]["weights"], (Json{{"state", "backed_up"}, {"changed", true}})) << slept;
  EXPECT_EQ(slept["ranks"][0]["tags"]["weights"]["freed_bytes"], 7) << slept;
  EXPECT_TRUE(slept["ranks"][0]["seconds"].contains("commit"));
  const Json woken = Json::parse(Admin("POST", "/wake_up").body);
  EXPECT_EQ(woken["ranks"][0]["tags"]["weights"]["mapped_bytes"], 7) << woken;
  Admin("POST", "/sleep?mode=wait");
  EXPECT_EQ(engine_->last_sleep().mode, SleepMode::kWait);
}

TEST_F(ApiServerTest, PauseAndResume) {
  Serve();
  const auto paused = [&] { return Json::parse(Admin("GET", "/is_paused").body)["is_paused"].get<bool>(); };
  EXPECT_FALSE(paused());
  EXPECT_EQ(Json::parse(Admin("POST", "/pause").body)["status"], "paused");
  EXPECT_EQ(engine_->last_pause().mode, SleepMode::kKeep);
  EXPECT_TRUE(engine_->last_pause().clear_cache);
  EXPECT_TRUE(paused());
  EXPECT_EQ(Send("GET", "/health").status, 503);
  EXPECT_EQ(Json::parse(Admin("GET", "/is_sleeping").body)["is_sleeping"], true);
  EXPECT_EQ(Json::parse(Admin("POST", "/resume").body), (Json{{"status", "resumed"}}));
  EXPECT_FALSE(paused());
  EXPECT_EQ(Admin("POST", "/pause?mode=abort&clear_cache=False").status, 200);
  EXPECT_EQ(engine_->last_pause().mode, SleepMode::kAbort);
  EXPECT_FALSE(engine_->last_pause().clear_cache);
  EXPECT_EQ(Admin("POST", "/pause?wait_for_inflight_requests=true").status, 200);
  EXPECT_EQ(engine_->last_pause().mode, SleepMode::kWait);
  const Json again = Json::parse(Admin("POST", "/sleep?level=0&mode=keep").body);
  EXPECT_EQ(again["level"], 0);
  EXPECT_EQ(again["already_asleep"], true);
  EXPECT_FALSE(engine_->last_pause().clear_cache) << "a sleep at level 0 keeps the cache";
  EXPECT_EQ(Json::parse(Admin("POST", "/wake_up?tags=scheduling").body)["status"], "awake");
  engine_->set_pause_status(absl::AbortedError("another call has ended the wait for open requests"));
  EXPECT_EQ(Admin("POST", "/pause?mode=wait").status, 409);
  EXPECT_EQ(Admin("POST", "/reset_prefix_cache?reset_running_requests=true&reset_external=1").status, 200);
  EXPECT_TRUE(engine_->preempt_running());
  EXPECT_EQ(Send("POST", "/pause").status, 404) << "it is on operators' listener alone";
}

TEST_F(ApiServerTest, RequestsAreAbortedByTheIdsOfTheirResponses) {
  Serve();
  engine_->set_state(EngineState::kPaused);
  std::vector<std::future<HttpReply>> replies;
  for (const char* id : {"one", "two", "three"}) {
    replies.push_back(std::async(std::launch::async, [this, id] {
      return Send("POST", "/v1/completions", R"({"prompt": "ab", "max_tokens": 4, "n": 2})",
                  absl::StrCat("X-Request-Id: ", id, "\r\n"));
    }));
  }
  while (engine_->num_open() < 6) absl::SleepFor(absl::Milliseconds(1));
  const auto abort = [&](const std::string& body) {
    return Json::parse(Admin("POST", "/abort_requests", body).body);
  };
  EXPECT_EQ(abort(R"({"request_ids": ["cmpl-two", "cmpl-none"]})"),
            (Json{{"status", "aborted"}, {"aborted", 1}}));
  EXPECT_EQ(abort(R"({"request_ids": []})")["aborted"], 0);
  engine_->set_state(EngineState::kAwake);
  for (size_t i = 0; i < replies.size(); ++i) {
    const HttpReply reply = replies[i].get();
    ASSERT_EQ(reply.status, 200) << reply.body;
    const Json choice = Json::parse(reply.body)["choices"][0];
    EXPECT_EQ(choice["finish_reason"], i == 1 ? "abort" : "length");
    EXPECT_EQ(choice["text"], i == 1 ? "" : "abab");
  }
  EXPECT_EQ(abort("{}")["aborted"], 0) << "none is open any more";
}

TEST_F(ApiServerTest, ARefusalOfASleepingEngineSaysWhenToTryAgain) {
  Serve();
  engine_->set_submit_status(absl::FailedPreconditionError("The engine is asleep; requests are refused."));
  const HttpReply reply = Complete(R"({"prompt": "a"})");
  EXPECT_EQ(reply.status, 503);
  EXPECT_NE(reply.head.find("Retry-After: 1\r\n"), std::string::npos) << reply.head;
  EXPECT_NE(Send("GET", "/metrics").body.find("reason=\"asleep\"} 1\n"), std::string::npos);
}

TEST_F(ApiServerTest, CollectiveRpcKnowsItsMethodsByName) {
  Start();
  ServedModel model = FakeModel(engine_);
  model.rank_status = [] {
    std::vector<v1::RankStatus> ranks(2);
    ranks[1].set_rank(1);
    ranks[1].set_state("awake");
    (*ranks[1].mutable_bytes_by_tag())["weights"] = 5;
    return ranks;
  };
  server_->SetModel(std::move(model));
  const auto call = [&](const std::string& body) { return Admin("POST", "/collective_rpc", body); };
  const Json nulls = {{"results", {nullptr, nullptr}}};
  EXPECT_EQ(Json::parse(call(R"({"method": "sleep", "args": [2], "kwargs": {"mode": "wait"}})").body), nulls);
  EXPECT_EQ(engine_->last_sleep().level, 2);
  EXPECT_EQ(engine_->last_sleep().mode, SleepMode::kWait);
  EXPECT_EQ(Json::parse(call(R"({"method": "sleep", "args": ["1", "keep", "kv_cache"]})").body), nulls)
      << "vLLM hands arguments on as strings";
  EXPECT_EQ(engine_->last_sleep().level, 1);
  EXPECT_EQ(engine_->last_sleep().tags, std::vector<std::string>{"kv_cache"});
  EXPECT_EQ(Json::parse(call(R"({"method": "wake_up", "kwargs": {"tags": ["weights"]}})").body), nulls);
  EXPECT_EQ(engine_->state(), EngineState::kAwake);
  EXPECT_EQ(Json::parse(call(R"({"method": "reset_prefix_cache", "timeout": 5})").body), nulls);
  const Json status = Json::parse(call(R"({"method": "get_status"})").body)["results"];
  EXPECT_EQ(status[1]["state"], "awake");
  EXPECT_EQ(status[1]["bytes_by_tag"], (Json{{"weights", 5}}));
  for (const char* member : {"sleep_level", "weights_version", "host_bytes_by_tag", "transition"})
    EXPECT_TRUE(status[1].contains(member)) << member;
  const HttpReply unknown = call(R"({"method": "os.system", "args": ["true"]})");
  EXPECT_EQ(unknown.status, 404);
  EXPECT_NE(unknown.body.find("get_status, reload_weights, reset_prefix_cache, sleep, wake_up"),
            std::string::npos);
  for (const char* body :
       {"", "[]", "{}", R"({"method": 7})", R"({"method": "sleep", "args": 1})",
        R"({"method": "sleep", "args": [1], "kwargs": {"level": 1}})",
        R"({"method": "sleep", "args": [true]})", R"({"method": "sleep", "kwargs": {"mode": "x"}})",
        R"({"method": "sleep", "kwargs": {"depth": 1}})", R"({"method": "wake_up", "args": ["brain"]})",
        R"({"method": "sleep", "args": ["deep"]})", R"({"method": "wake_up", "args": [["weights"], 1]})",
        R"({"method": "get_status", "args": [1]})"}) {
    EXPECT_EQ(call(body).status, 400) << body;
  }
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
