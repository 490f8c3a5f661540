// Adapters over HTTP: as models of clients, and the calls that load and unload adapters.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "coordinator/adapters/adapter_engine.h"
#include "coordinator/adapters/adapter_registry.h"
#include "tests/api/api_server_fixture.h"

namespace somnus {
namespace {

using Json = nlohmann::json;
using testing::HasSubstr;

class AdaptersApiTest : public ApiServerTest {
 protected:
  void SetUp() override {
    Start();
    ServedModel model = FakeModel(engine_);
    name_ = model.name;
    adapters_ = std::make_shared<AdapterRegistry>(
        engine_, AdapterRegistryOptions{.max_adapters = 2, .unload_timeout = absl::ZeroDuration()});
    model.adapters = adapters_;
    model.engine = std::make_shared<AdapterEngine>(engine_, adapters_, QueueLimits(), /*observer=*/nullptr);
    server_->SetModel(std::move(model));
  }
  HttpReply Load(const std::string& body) { return Admin("POST", "/v1/load_lora_adapter", body); }
  HttpReply Unload(const std::string& name) {
    return Admin("POST", "/v1/unload_lora_adapter", Json{{"lora_name", name}}.dump());
  }
  HttpReply Ask(const std::string& model) {
    return Complete(
        Json{{"model", model}, {"prompt", "abc"}, {"max_tokens", 2}, {"cache_salt", "own"}}.dump());
  }

  std::string name_;
  std::shared_ptr<AdapterRegistry> adapters_;
};

TEST_F(AdaptersApiTest, ClientsNameAnAdapterAsAModel) {
  ASSERT_EQ(Load(R"({"lora_name": "poet", "lora_path": "/adapters/poet"})").status, 200);
  const Json cards = Json::parse(Send("GET", "/v1/models").body)["data"];
  ASSERT_EQ(cards.size(), 2u);
  EXPECT_EQ(cards[0]["parent"], nullptr);
  EXPECT_EQ(cards[1]["id"], "poet");
  EXPECT_EQ(cards[1]["root"], "/adapters/poet");
  EXPECT_EQ(cards[1]["parent"], name_);
  EXPECT_EQ(Json::parse(Send("GET", "/v1/models/poet").body)["id"], "poet");

  const HttpReply answer = Ask("poet");
  ASSERT_EQ(answer.status, 200) << answer.body;
  EXPECT_EQ(Json::parse(answer.body)["model"], "poet");
  const EngineRequest request = engine_->last_request();
  ASSERT_NE(request.adapter, nullptr);
  EXPECT_EQ(request.adapter->slot, 1);
  EXPECT_EQ(request.cache_salt, request.adapter->salt + "own");
  ASSERT_EQ(Ask(name_).status, 200);
  EXPECT_EQ(engine_->last_request().adapter, nullptr);
  EXPECT_EQ(engine_->last_request().cache_salt, "own");
  EXPECT_EQ(Ask("nobody").status, 404);
  const HttpReply pin = Send("POST", "/v1/prefixes", R"({"model": "poet", "prompt": "abc"})");
  EXPECT_EQ(pin.status, 400);
  EXPECT_THAT(pin.body, HasSubstr("cannot be pinned"));
}

TEST_F(AdaptersApiTest, TheHealthOfAnAdapterIsThatOfItsModel) {
  ASSERT_EQ(Load(R"({"lora_name": "poet", "lora_path": "/adapters/poet"})").status, 200);
  EXPECT_EQ(Send("GET", "/health?model=poet").status, 200);
  engine_->set_state(EngineState::kAsleep);
  EXPECT_EQ(Send("GET", "/health?model=poet").status, 503);
  EXPECT_EQ(Send("GET", "/health?model=nobody").status, 404);
  engine_->set_state(EngineState::kAwake);
}

TEST_F(AdaptersApiTest, CallsAreForOperatorsAndNameTheFault) {
  EXPECT_EQ(Send("POST", "/v1/load_lora_adapter", R"({"lora_name": "a", "lora_path": "/a"})").status, 404);
  const auto refused = [&](const std::string& body, int status, const std::string& text) {
    const HttpReply reply = Load(body);
    EXPECT_EQ(reply.status, status) << body;
    EXPECT_THAT(reply.body, HasSubstr(text));
  };
  refused(R"({"lora_path": "/a"})", 400, "lora_name");
  refused(R"({"lora_name": "a"})", 400, "lora_path");
  refused(R"({"lora_name": "a", "lora_path": "/a", "load_inplace": "perhaps"})", 400, "load_inplace");
  refused(Json{{"lora_name", name_}, {"lora_path", "/a"}}.dump(), 400, "is a served model");
  ASSERT_EQ(Load(R"({"lora_name": "a", "lora_path": "/a"})").status, 200);
  refused(R"({"lora_name": "a", "lora_path": "/b"})", 400, "load_inplace");
  EXPECT_EQ(Load(R"({"lora_name": "a", "lora_path": "/b", "load_inplace": true})").status, 200);
  EXPECT_EQ(adapters_->List()[0].path, "/b");
  EXPECT_EQ(Load(R"({"lora_name": "b", "lora_path": "/b"})").status, 200);
  EXPECT_EQ(Load(R"({"lora_name": "c", "lora_path": "/c"})").status, 200);
  EXPECT_EQ(Ask("a").status, 200) << "the workers had forgotten this one";
  EXPECT_THAT(Send("GET", "/metrics").body, HasSubstr("somnus:adapter_reads_total"));
  EXPECT_EQ(Unload("c").status, 200);
  EXPECT_EQ(Unload("c").status, 404);
  EXPECT_EQ(Unload("b").status, 200);
  EXPECT_EQ(Ask("b").status, 404);
}

TEST_F(AdaptersApiTest, AnUnloadThatRequestsHoldUpIsA504) {
  ASSERT_EQ(Load(R"({"lora_name": "a", "lora_path": "/a"})").status, 200);
  ASSERT_EQ(Ask("a").status, 200);  // the fake keeps its last request
  EXPECT_EQ(Unload("a").status, 504);
  ASSERT_EQ(Ask("a").status, 200) << "the adapter stays";
  ASSERT_EQ(Ask(name_).status, 200);
  while (Unload("a").status != 200) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_EQ(Ask("a").status, 404);
}

class NoAdaptersApiTest : public ApiServerTest {};

TEST_F(NoAdaptersApiTest, WithoutTheFlagThereAreNone) {
  Serve();
  const HttpReply reply = Admin("POST", "/v1/load_lora_adapter", R"({"lora_name": "a", "lora_path": "/a"})");
  EXPECT_EQ(reply.status, 409);
  EXPECT_THAT(reply.body, HasSubstr("--enable-lora"));
}

}  // namespace
}  // namespace somnus
