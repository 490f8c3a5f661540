// The calls of controllers that were written for vLLM: one address for everything, parameters in bodies.

#include <gtest/gtest.h>

#include <map>

#include "coordinator/metrics/step_trace.h"
#include "tests/api/api_server_fixture.h"

namespace somnus {
namespace {

class ControllersTest : public ApiServerTest {
 protected:
  void SetUp() override {
    Start();
    ServedModel model = FakeModel(engine_);
    model.world_size = 2;
    server_->SetModel(std::move(model));
  }
  // A call that has to succeed.
  Json Call(const std::string& method, const std::string& target, const std::string& body = "") {
    const HttpReply reply = Admin(method, target, body);
    EXPECT_EQ(reply.status, 200) << target << " " << body << ": " << reply.body;
    return Json::parse(reply.body, nullptr, /*allow_exceptions=*/false);
  }
  void ExpectRefused(const std::string& target, const std::string& body, const std::string& param) {
    const HttpReply reply = Admin("POST", target, body);
    EXPECT_EQ(reply.status, 400) << target << " " << body;
    EXPECT_EQ(Json::parse(reply.body)["error"]["param"], param) << reply.body;
  }
};

TEST_F(ControllersTest, OneAddressHasAllRoutes) {
  EXPECT_EQ(Call("GET", "/v1/models")["data"][0]["id"], "fake");
  EXPECT_EQ(Call("GET", "/v1/models/fake")["id"], "fake");
  const char* body = R"({"model": "fake", "prompt": "abc", "max_tokens": 4, "temperature": 0})";
  EXPECT_EQ(Call("POST", "/v1/completions", body)["choices"][0]["text"], "abca");
  EXPECT_EQ(Call("POST", "/tokenize", R"({"prompt": "abc"})")["count"], 3);
  EXPECT_EQ(Call("POST", "/detokenize", R"({"tokens": [97]})")["prompt"], "a");
  Call("GET", "/health");
  Call("POST", "/sleep");
  EXPECT_EQ(Admin("GET", "/health").status, 503);
  EXPECT_EQ(Send("POST", "/sleep").status, 404) << "clients' address has clients' routes alone";
  EXPECT_EQ(Send("GET", "/get_world_size").status, 404);
}

TEST_F(ControllersTest, ParametersMayBeInTheBody) {
  Call("POST", "/sleep", R"({"level": 2, "mode": "wait", "tags": ["kv_cache", "weights"]})");
  EXPECT_EQ(engine_->last_sleep().level, 2);
  EXPECT_EQ(engine_->last_sleep().mode, SleepMode::kWait);
  EXPECT_EQ(engine_->last_sleep().tags, (std::vector<std::string>{"kv_cache", "weights"}));
  EXPECT_EQ(Call("POST", "/wake_up", R"({"tags": ["weights"], "load_weights": false})")["tags_woken"],
            Json::array({"weights"}));
  EXPECT_EQ(engine_->load_weights(), false);
  Call("POST", "/wake_up", R"({"tags": null})");
  Call("POST", "/reset_prefix_cache", R"({"reset_running_requests": true})");
  EXPECT_TRUE(engine_->preempt_running());
  Call("POST", "/pause", R"({"mode": "abort", "clear_cache": false})");
  EXPECT_EQ(engine_->last_pause().mode, SleepMode::kAbort);
  EXPECT_FALSE(engine_->last_pause().clear_cache);
  Call("POST", "/resume", "{}");
  Call("POST", "/roll", R"({"grace_s": 2.5})");
  EXPECT_EQ(engine_->roll_grace(), absl::Seconds(2.5));
  Call("POST", "/reload_weights", R"({"path": "/b", "weight_version": "4"})");
  EXPECT_EQ(engine_->last_reload().path, "/b");
  EXPECT_EQ(engine_->last_reload().version, 4);
}

TEST_F(ControllersTest, TheQueryGoesBeforeTheBody) {
  Call("POST", "/sleep?tags=kv_cache", R"({"level": 2, "tags": ["weights"]})");
  EXPECT_EQ(engine_->last_sleep().level, 2);
  EXPECT_EQ(engine_->last_sleep().tags, std::vector<std::string>{"kv_cache"});
}

// vLLM reads no body there at all.
TEST_F(ControllersTest, WhatNobodyKnowsInABodyIsIgnored) {
  for (const char* body :
       {R"({"timeout": 60, "purge": {"a": [1]}})", "{}", "[1]", "null", "level=2", "{\"level\":"})
    Call("POST", "/sleep", body);
  EXPECT_EQ(engine_->last_sleep().level, 1);
  ExpectRefused("/sleep", R"({"level": 7})", "level");
  ExpectRefused("/sleep", R"({"level": [1]})", "level");
  ExpectRefused("/sleep", R"({"mode": "now"})", "mode");
  ExpectRefused("/sleep", R"({"tags": ["brain"]})", "tags");
  ExpectRefused("/sleep", R"({"tags": {"weights": true}})", "tags");
  ExpectRefused("/wake_up", R"({"tags": [["weights"]]})", "tags");
  ExpectRefused("/reset_prefix_cache", R"({"reset_running_requests": 2})", "reset_running_requests");
  EXPECT_EQ(Admin("POST", "/sleep", R"({"model": "other"})").status, 404);
}

TEST_F(ControllersTest, TagsMayBeAListWithCommasAndABadOneIsNamed) {
  Call("POST", "/sleep?tags=weights,kv_cache&tags=workspace");
  EXPECT_EQ(engine_->last_sleep().tags, (std::vector<std::string>{"weights", "kv_cache", "workspace"}));
  Call("POST", "/wake_up", R"({"tags": "weights, kv_cache"})");
  const Json error = Json::parse(Admin("POST", "/sleep?tags=weights,brain").body)["error"];
  EXPECT_EQ(
      error["message"],
      "tags must be among weights, kv_cache and workspace; there is no \"brain\", and nothing was done");
  EXPECT_EQ(engine_->state(), EngineState::kAwake);
}

TEST_F(ControllersTest, SmallRoutesThatTrainersAsk) {
  EXPECT_EQ(Call("GET", "/get_world_size"), (Json{{"world_size", 2}}));
  EXPECT_EQ(Call("GET", "/get_world_size?include_dp=false"), (Json{{"world_size", 2}}));
  EXPECT_EQ(Admin("GET", "/get_world_size?include_dp=maybe").status, 400);
  EXPECT_EQ(Call("GET", "/weight_info"), (Json{{"weight_version", "1"}}));
  for (const char* target : {"/reset_mm_cache", "/reset_encoder_cache"})
    EXPECT_EQ(Admin("POST", target).body, "") << target;
}

TEST_F(ControllersTest, ALabelIsOfTheWeightsThatThereAre) {
  EXPECT_EQ(Call("POST", "/update_weight_version", R"({"new_version": "v8"})"),
            (Json{{"success", true}, {"new_version", "v8"}}));
  EXPECT_EQ(Call("GET", "/weight_info")["weight_version"], "v8");
  EXPECT_EQ(Call("GET", "/server_info")["weight_version"], 1) << "the number stays";
  ExpectRefused("/update_weight_version", "", "new_version");
  ExpectRefused("/update_weight_version", R"({"new_version": ""})", "new_version");
  ExpectRefused("/update_weight_version?new_version=%ff", "", "new_version");
  ExpectRefused("/update_weight_version", absl::StrCat("{\"new_version\": \"", std::string(129, 'v'), "\"}"),
                "new_version");
  EXPECT_EQ(Call("GET", "/weight_info")["weight_version"], "v8");
  EXPECT_EQ(Call("POST", "/reload_weights")["weight_version"], 2);
  EXPECT_EQ(Call("GET", "/weight_info")["weight_version"], "2")
      << "new weights do not have the label of others";
  Call("POST", "/update_weight_version?new_version=v9");
  Call("POST", "/update_weight_version?new_version=v9b");
  EXPECT_EQ(Call("GET", "/weight_info")["weight_version"], "v9b");
}

TEST(WeightLabels, TheOldestOfManyIsForgotten) {
  WeightLabels labels;
  for (int version = 1; version <= 17; ++version) labels.Set(version, absl::StrCat("v", version));
  EXPECT_EQ(labels.NameOf(1), "1");
  EXPECT_EQ(labels.NameOf(2), "v2");
  EXPECT_EQ(labels.NameOf(17), "v17");
}

TEST_F(ControllersTest, TheTraceShowsTheLastSteps) {
  auto trace = std::make_shared<StepTrace>(nullptr);
  StepEvent step;
  step.step_id = 7;
  step.replica = 1;
  step.num_tokens = 12;
  step.num_sequences = 3;
  step.num_decodes = 2;
  step.num_new = 1;
  step.num_draft_tokens = 6;
  step.num_accepted_tokens = 4;
  step.preempted_by_swap[static_cast<size_t>(PreemptionCause::kPriority)] = 1;
  step.preempted_by_recompute[static_cast<size_t>(PreemptionCause::kNoBlocks)] = 2;
  step.swap_obstacles[static_cast<size_t>(SwapObstacle::kNone)] = 1;
  step.swap_obstacles[static_cast<size_t>(SwapObstacle::kPrice)] = 2;
  step.num_watermark_refusals = 5;
  step.num_cached_tokens = 16;
  step.replied = MonotonicNow();
  step.duration = absl::Milliseconds(5);
  step.sent = step.replied - absl::Milliseconds(8);
  trace->OnStep(step);
  trace->OnRecovered(absl::Milliseconds(300));
  ServedModel model = FakeModel(engine_);
  model.trace = trace;
  server_->SetModel(std::move(model));
  const Json events = Call("GET", "/trace?seconds=60")["traceEvents"];
  std::map<std::string, Json> by_name;
  for (const Json& event : events) {
    if (event["ph"] == "X") by_name[event["name"]] = event;
  }
  ASSERT_EQ(by_name.count("mixed"), 1u) << events.dump();
  EXPECT_EQ(by_name["mixed"]["dur"], 5000);
  EXPECT_EQ(by_name["mixed"]["tid"], 2) << "replica 1 has the row below that of replica 0";
  const Json args = by_name["mixed"]["args"];
  EXPECT_EQ(args["step_id"], 7);
  EXPECT_EQ(args["queued_us"], 3000);
  EXPECT_EQ(args["accepted_draft_tokens"], 4);
  EXPECT_EQ(args["preempted"], 3);
  EXPECT_EQ(args["preempted_by_swap"], (Json{{"priority", 1}}));
  EXPECT_EQ(args["preempted_by_recompute"], (Json{{"no_blocks", 2}}));
  EXPECT_EQ(args["swaps_declined"], (Json{{"price", 2}}));
  EXPECT_EQ(args["watermark_refusals"], 5);
  EXPECT_EQ(args["cached_tokens"], 16);
  EXPECT_EQ(by_name["recovery"]["tid"], 0);
  EXPECT_EQ(by_name["recovery"]["dur"], 300000);
  for (const char* seconds : {"0", "-1", "3601", "nan", "x", ""})
    EXPECT_EQ(Admin("GET", absl::StrCat("/trace?seconds=", seconds)).status, 400) << seconds;
  EXPECT_EQ(Send("GET", "/trace").status, 404) << "it is for operators";
}

}  // namespace
}  // namespace somnus
