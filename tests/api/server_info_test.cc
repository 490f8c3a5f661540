#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "tests/api/api_server_fixture.h"

namespace somnus {
namespace {

TEST_F(ApiServerTest, ServerInfoTellsAllPorts) {
  Start(ApiServerOptions{.grpc_port = 50051, .control_port = 50054, .api_keys = ApiKeys("secret")});
  Json expected = {{"version", "1.2.3"},
                   {"model", nullptr},
                   {"weight_version", nullptr},
                   {"http_port", server_->port()},
                   {"admin_port", server_->admin_port()},
                   {"grpc_port", 50051},
                   {"control_port", 50054},
                   {"tls", false},
                   {"admin_tls", false}};
  Json of_operators = expected;
  of_operators["vllm_config"] = nullptr;
  EXPECT_EQ(Json::parse(Admin("GET", "/server_info").body), of_operators);
  server_->SetModel(FakeModel(engine_));
  expected["model"] = "fake";
  expected["weight_version"] = 1;
  EXPECT_EQ(Send("GET", "/server_info").status, 401);
  const HttpReply reply = Send("GET", "/server_info", "", "Authorization: Bearer secret\r\n");
  EXPECT_EQ(Json::parse(reply.body), expected);
}

TEST_F(ApiServerTest, ServerInfoTellsOperatorsTheSettings) {
  Start();
  ServedModel model = FakeModel(engine_);
  model.engine_config = R"({"model_config": {"model": "/m", "max_model_len": 4096},
                            "cache_config": {"block_size": 16, "enable_prefix_caching": true}})";
  server_->SetModel(std::move(model));
  const auto config = [&](const std::string& query) {
    return Json::parse(Admin("GET", "/server_info" + query).body)["vllm_config"];
  };
  const std::string text = R"(model="/m", max_model_len=4096, block_size=16, enable_prefix_caching=true)";
  EXPECT_EQ(config(""), text);
  EXPECT_EQ(config("?config_format=text"), text);
  const Json json = config("?config_format=json&model=fake");
  EXPECT_EQ(json["model_config"], Json({{"model", "/m"}, {"max_model_len", 4096}}));
  EXPECT_EQ(json["cache_config"]["enable_prefix_caching"], true);
  for (const char* format : {"yaml", "", "JSON"}) {
    const HttpReply reply = Admin("GET", absl::StrCat("/server_info?config_format=", format));
    EXPECT_EQ(reply.status, 400) << format;
    EXPECT_EQ(Json::parse(reply.body)["error"]["param"], "config_format");
    EXPECT_EQ(Json::parse(reply.body)["error"]["message"], "config_format must be text or json");
  }
  EXPECT_FALSE(Json::parse(Send("GET", "/server_info?config_format=json").body).contains("vllm_config"))
      << "paths of this host are none of clients' business";
}

}  // namespace
}  // namespace somnus
