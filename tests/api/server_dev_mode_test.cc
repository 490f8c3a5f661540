// Operators' routes on clients' listener (--server-dev-mode): there under operators' rules, and only when
// asked.

#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/api/api_server_fixture.h"

namespace somnus {
namespace {

constexpr char kCompletion[] = R"({"prompt": "abc", "max_tokens": 2})";

ApiServerOptions DevMode() {
  ApiServerOptions options;
  options.operators_on_port = true;
  return options;
}

std::string Bearer(const char* key) { return absl::StrCat("Authorization: Bearer ", key, "\r\n"); }

TEST_F(ApiServerTest, InDevModeOnePortSleepsWakesAndServes) {
  Serve(DevMode());
  const auto is_sleeping = [&] { return Json::parse(Send("GET", "/is_sleeping").body)["is_sleeping"]; };
  EXPECT_EQ(Send("POST", "/sleep?level=1").status, 200);
  EXPECT_EQ(is_sleeping(), true);
  EXPECT_EQ(Send("POST", "/wake_up").status, 200);
  EXPECT_EQ(is_sleeping(), false);
  EXPECT_EQ(Complete(kCompletion).status, 200);
  EXPECT_EQ(Send("GET", "/sleep").status, 405);
  EXPECT_EQ(Send("POST", "/sleep/").status, 307);
  EXPECT_EQ(Send("POST", "/nope").status, 404);
  EXPECT_TRUE(Json::parse(Send("GET", "/openapi.json").body)["paths"].contains("/sleep"));
  EXPECT_EQ(Admin("POST", "/sleep").status, 200) << "operators' listener is as it was";
}

TEST_F(ApiServerTest, InDevModeOperatorsRoutesWantOperatorsKey) {
  ApiServerOptions options = DevMode();
  options.api_keys = ApiKeys("clients");
  options.admin_api_keys = ApiKeys("operators");
  Serve(options);
  const struct {
    const char *method, *path, *opens, *not_opens;
  } cases[] = {{"POST", "/sleep", "operators", "clients"},
               {"POST", "/wake_up", "operators", "clients"},
               {"GET", "/status", "operators", "clients"},
               {"GET", "/requests/none", "operators", "clients"},
               {"GET", "/v1/models", "clients", "operators"}};
  for (const auto& one : cases) {
    EXPECT_EQ(Send(one.method, one.path).status, 401) << one.path;
    EXPECT_EQ(Send(one.method, one.path, "", Bearer(one.not_opens)).status, 401) << one.path;
    EXPECT_NE(Send(one.method, one.path, "", Bearer(one.opens)).status, 401) << one.path;
  }
}

TEST_F(ApiServerTest, InDevModeAPageReachesNoRouteOfOperators) {
  ApiServerOptions options = DevMode();
  options.cors.allowed_origins = {"*"};
  Serve(options);
  const std::string page = "Origin: https://evil.example\r\n";
  const HttpReply reply = Send("POST", "/sleep", "", page);
  EXPECT_EQ(reply.status, 403);
  EXPECT_FALSE(absl::StrContains(reply.head, "Access-Control")) << reply.head;
  EXPECT_EQ(Send("OPTIONS", "/sleep", "", page + "Access-Control-Request-Method: POST\r\n").status, 403);
  EXPECT_EQ(Json::parse(Send("GET", "/is_sleeping").body)["is_sleeping"], false);
  EXPECT_EQ(Send("POST", "/v1/completions", kCompletion, page).status, 200) << "as the flag of CORS says";
}

}  // namespace
}  // namespace somnus
