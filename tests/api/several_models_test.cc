// Several models behind one API: who gets which request, and whom operators mean.

#include "proto/control.grpc.pb.h"
#include "proto/inference.grpc.pb.h"
#include "tests/api/api_server_fixture.h"
#include "tests/api/grpc_services_fixture.h"

namespace somnus {
namespace {

class SeveralModelsTest : public ApiServerTest {
 protected:
  void SetUp() override {
    Start();
    first_metrics_ = Metrics::Create("first", 4096);
    other_ = std::make_shared<FakeEngine>();
    std::vector<ServedModel> models = {FakeModel(engine_), FakeModel(other_)};
    models[0].name = "first";
    models[0].metrics = first_metrics_;
    models[1].name = "other";
    models[1].metrics = Metrics::Create("other", 4096, first_metrics_.get());
    server_->SetModels(std::move(models));
  }
  // The engine that the last completion reached, by its tokens.
  std::string Served(const std::string& body) {
    const int64_t first = engine_->Stats().generation_tokens, other = other_->Stats().generation_tokens;
    const HttpReply reply = Complete(body);
    if (reply.status != 200) return std::to_string(reply.status);
    const std::string name = Json::parse(reply.body)["model"];
    const bool by_other = other_->Stats().generation_tokens > other;
    EXPECT_NE(engine_->Stats().generation_tokens > first, by_other);
    EXPECT_EQ(name, by_other ? "other" : "first");
    return name;
  }

  std::shared_ptr<Metrics> first_metrics_;
  std::shared_ptr<FakeEngine> other_;
};

TEST_F(SeveralModelsTest, ARequestGoesToTheModelThatItNames) {
  EXPECT_EQ(Served(R"({"prompt": "a", "max_tokens": 2, "model": "other"})"), "other");
  EXPECT_EQ(Served(R"({"model": "first", "prompt": "a", "max_tokens": 2})"), "first");
  EXPECT_EQ(Served(R"({"prompt": "a", "max_tokens": 2})"), "first") << "it names none";
  EXPECT_EQ(Served(R"({"model": "third", "prompt": "a"})"), "404");
  EXPECT_EQ(Served(R"({"model": 7, "prompt": "a"})"), "400");
  EXPECT_EQ(Served(R"({"model": "other", "prompt": )"), "400");
  // Names elsewhere are not the model's, and numbers that JSON does not have are no end.
  EXPECT_EQ(Served(R"({"x": {"model": "other"}, "y": [{"model": "other"}], "prompt": "a", "max_tokens": 2})"),
            "first");
  EXPECT_EQ(Served(R"({"x": NaN, "prompt": "a", "max_tokens": 2, "model": "other"})"), "other");
  EXPECT_EQ(Send("POST", "/detokenize", R"({"model": "other", "tokens": [65]})").status, 200);
  EXPECT_EQ(Send("POST", "/detokenize", R"({"model": "third", "tokens": [65]})").status, 404);
}

TEST_F(SeveralModelsTest, ServerInfoIsOfTheModelThatTheQueryNames) {
  ASSERT_TRUE(other_->ReloadWeights({.version = 5}).ok());
  const auto info = [&](const char* target) { return Json::parse(Admin("GET", target).body); };
  EXPECT_EQ(info("/server_info?model=other")["model"], "other");
  EXPECT_EQ(info("/server_info?model=other")["weight_version"], 5);
  EXPECT_EQ(info("/server_info?model=first")["weight_version"], 1);
  EXPECT_EQ(info("/server_info")["model"], "first") << "who does not know that there are several";
  EXPECT_EQ(Send("GET", "/server_info?model=other").status, 200);
  EXPECT_EQ(Send("GET", "/server_info?model=third").status, 404);
}

TEST_F(SeveralModelsTest, TheListHasAllWithTheirStates) {
  ASSERT_TRUE(other_->Sleep({}).ok());
  const Json list = Json::parse(Send("GET", "/v1/models").body)["data"];
  ASSERT_EQ(list.size(), 2u);
  EXPECT_EQ(list[0]["id"], "first");
  EXPECT_EQ(list[0]["state"], "awake");
  EXPECT_EQ(list[1]["id"], "other");
  EXPECT_EQ(list[1]["state"], "asleep");
  EXPECT_EQ(Json::parse(Send("GET", "/v1/models/other").body)["id"], "other");
  EXPECT_EQ(Send("GET", "/v1/models/third").status, 404);
}

TEST_F(SeveralModelsTest, OperatorsSayWhichModelTheyMean) {
  const HttpReply unnamed = Admin("POST", "/sleep");
  EXPECT_EQ(unnamed.status, 400);
  EXPECT_NE(unnamed.body.find("several models are served (first, other)"), std::string::npos) << unnamed.body;
  EXPECT_EQ(Admin("POST", "/sleep?model=third").status, 404);
  EXPECT_EQ(engine_->state(), EngineState::kAwake);
  EXPECT_EQ(Admin("POST", "/sleep?level=2&model=other").status, 200);
  EXPECT_EQ(engine_->state(), EngineState::kAwake);
  EXPECT_EQ(other_->state(), EngineState::kAsleep);
  EXPECT_EQ(Json::parse(Admin("GET", "/is_sleeping?model=other").body)["is_sleeping"], true);
  EXPECT_EQ(Json::parse(Admin("GET", "/is_sleeping?model=first").body)["is_sleeping"], false);
  EXPECT_EQ(Send("GET", "/readyz").status, 503) << "one of them sleeps";
  EXPECT_EQ(Send("GET", "/readyz?model=first").status, 200);
  EXPECT_EQ(Send("GET", "/readyz?model=other").status, 503);
  EXPECT_EQ(Send("GET", "/readyz?model=third").status, 404);
  EXPECT_EQ(Admin("GET", "/is_sleeping").status, 400);
  EXPECT_EQ(Admin("POST", "/wake_up?model=other").status, 200);
  EXPECT_EQ(other_->state(), EngineState::kAwake);
}

TEST_F(SeveralModelsTest, HealthIsThatOfAllAndLifeThatOfOne) {
  EXPECT_EQ(Send("GET", "/health").status, 200);
  other_->set_state(EngineState::kFailed);
  const HttpReply health = Send("GET", "/health");
  EXPECT_EQ(health.status, 503);
  EXPECT_NE(health.body.find("other: "), std::string::npos) << health.body;
  EXPECT_EQ(Send("GET", "/livez").status, 200);
  engine_->set_state(EngineState::kFailed);
  EXPECT_EQ(Send("GET", "/livez").status, 503);
}

TEST_F(SeveralModelsTest, MetricsHaveTheModelsNames) {
  Served(R"({"model": "other", "prompt": "a", "max_tokens": 3})");
  const std::string text = first_metrics_->Serialize();
  for (const char* model : {"first", "other"}) {
    EXPECT_NE(text.find(std::string("vllm:request_success_total{engine=\"0\",finished_reason=\"length\",") +
                        "model_name=\"" + model + "\"} " + (std::string(model) == "other" ? "1" : "0")),
              std::string::npos)
        << text;
  }
}

class SeveralModelsGrpcTest : public GrpcServicesTest {
 protected:
  void SetUp() override {
    GrpcServicesTest::SetUp();
    services_ = GrpcServices::Create(options_, Metrics::Create("first", 4096));
    Stop();
    std::vector<ServedModel> models = {FakeModel(engine_), FakeModel(other_)};
    models[0].name = "first";
    models[1].name = "other";
    models[1].pinned = true;
    models[1].priority = -3;
    models[1].tpot_target = absl::Milliseconds(50);
    services_->SetModels(std::move(models));
    grpc::ServerBuilder inference, control;
    services_->RegisterInference(&inference);
    services_->RegisterControl(&control);
    inference_ = v1::InferenceService::NewStub(Listen(&inference, &server_));
    control_ = v1::ControlService::NewStub(Listen(&control, &control_server_));
  }

  const std::shared_ptr<FakeEngine> other_ = std::make_shared<FakeEngine>();
};

TEST_F(SeveralModelsGrpcTest, ThePrefixCacheOfTheOneThatIsNamedIsReset) {
  const auto reset = [&](const std::string& model) {
    grpc::ClientContext context;
    v1::ResetPrefixCacheRequest request;
    request.set_model(model);
    request.set_reset_running_requests(true);
    v1::ResetPrefixCacheResponse response;
    return control_->ResetPrefixCache(&context, request, &response).error_code();
  };
  EXPECT_EQ(reset(""), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_FALSE(other_->preempt_running());
  EXPECT_EQ(reset("other"), grpc::StatusCode::OK);
  EXPECT_TRUE(other_->preempt_running());
  EXPECT_FALSE(engine_->preempt_running());
}

TEST_F(SeveralModelsGrpcTest, AWatcherSeesTheOneThatItNames) {
  other_->set_state(EngineState::kAsleep);
  const auto state = [&](const std::string& name) {
    grpc::ClientContext context;
    v1::WatchTransitionRequest request;
    request.set_model(name);
    const auto reader = control_->WatchTransition(&context, request);
    v1::WatchTransitionResponse response;
    while (reader->Read(&response)) {
    }
    EXPECT_EQ(reader->Finish().error_code(),
              name.empty() ? grpc::StatusCode::INVALID_ARGUMENT : grpc::StatusCode::OK);
    return response.state();
  };
  EXPECT_EQ(state("first"), v1::ENGINE_STATE_AWAKE);
  EXPECT_EQ(state("other"), v1::ENGINE_STATE_ASLEEP);
  EXPECT_EQ(state(""), v1::ENGINE_STATE_UNSPECIFIED) << "several are served";
}

TEST_F(SeveralModelsGrpcTest, TheyAreKnownByTheirNames) {
  grpc::ClientContext list_context;
  v1::ListModelsResponse list;
  ASSERT_TRUE(inference_->ListModels(&list_context, {}, &list).ok());
  ASSERT_EQ(list.models_size(), 2);
  EXPECT_EQ(list.models(1).id(), "other");
  const auto sleep = [&](const std::string& model) {
    grpc::ClientContext context;
    v1::SleepRequest request;
    request.set_model(model);
    v1::SleepResponse response;
    return control_->Sleep(&context, request, &response).error_code();
  };
  EXPECT_EQ(sleep(""), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(sleep("third"), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(sleep("other"), grpc::StatusCode::OK);
  EXPECT_EQ(other_->state(), EngineState::kAsleep);
  EXPECT_EQ(engine_->state(), EngineState::kAwake);
  v1::GetStatusRequest request;
  v1::GetStatusResponse status;
  grpc::ClientContext first_context, other_context;
  ASSERT_TRUE(control_->GetStatus(&first_context, request, &status).ok());
  EXPECT_EQ(status.model(), "first");
  request.set_model("other");
  ASSERT_TRUE(control_->GetStatus(&other_context, request, &status).ok());
  EXPECT_EQ(status.state(), v1::ENGINE_STATE_ASLEEP);
  grpc::ClientContext all_context;
  v1::ListModelStatusResponse all;
  ASSERT_TRUE(control_->ListModelStatus(&all_context, {}, &all).ok());
  ASSERT_EQ(all.models_size(), 2);
  EXPECT_EQ(all.models(0).model(), "first");
  EXPECT_EQ(all.models(0).state(), v1::ENGINE_STATE_AWAKE);
  EXPECT_EQ(all.models(0).not_ready_reason(), "");
  EXPECT_EQ(all.models(1).model(), "other");
  EXPECT_EQ(all.models(1).state(), v1::ENGINE_STATE_ASLEEP);
  EXPECT_NE(all.models(1).not_ready_reason(), "");
  EXPECT_EQ(all.models(0).oldest_wait_s(), 0);
  EXPECT_EQ(all.models(1).oldest_wait_s(), 3);
  EXPECT_TRUE(all.models(1).pinned());
  EXPECT_EQ(all.models(1).priority(), -3);
  EXPECT_EQ(all.models(1).ttft_target_s(), 0);
  EXPECT_EQ(all.models(1).tpot_target_s(), 0.05);
  const v1::SchedulingCounters& scheduling = all.models(1).scheduling();
  EXPECT_EQ(scheduling.preemptions_by_swap().at("priority"), 1);
  EXPECT_EQ(scheduling.preemptions_by_recompute().at("priority"), 0);
  EXPECT_EQ(scheduling.queue_s(), 1.5);
}

}  // namespace
}  // namespace somnus
