// The rights of web pages: CORS on clients' listener, and nothing on operators' listener without a key.

#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "absl/strings/str_replace.h"
#include "coordinator/http/cors.h"
#include "coordinator/http/web_page_guard.h"
#include "tests/api/api_server_fixture.h"

namespace somnus {
namespace {

constexpr char kPage[] = "https://chat.example";
constexpr char kCompletion[] = R"({"prompt": "abc", "max_tokens": 2})";

ApiServerOptions Allowing(std::vector<std::string> origins) {
  ApiServerOptions options{.cors = {.allowed_origins = std::move(origins)}};
  return options;
}

// Sends a request with exactly this head and no body.
HttpReply Raw(uint16_t port, const std::string& head) {
  HttpClient client(port);
  client.Write(head + "\r\n");
  return client.ReadReply();
}

class CorsTest : public ApiServerTest {
 protected:
  HttpReply FromPage(const std::string& method, const std::string& path, const std::string& body = "",
                     const std::string& more = "") {
    return Send(method, path, body, absl::StrCat("Origin: ", kPage, "\r\n", more));
  }
  HttpReply Preflight(const std::string& method = "POST") {
    return FromPage("OPTIONS", "/v1/chat/completions", "",
                    absl::StrCat("Access-Control-Request-Method: ", method,
                                 "\r\nAccess-Control-Request-Headers: authorization, content-type\r\n"));
  }
};

TEST_F(CorsTest, WithoutTheFlagNoPageMayReadAnything) {
  Serve();
  const HttpReply reply = FromPage("POST", "/v1/completions", kCompletion);
  EXPECT_EQ(reply.status, 200);
  EXPECT_FALSE(absl::StrContains(reply.head, "Access-Control")) << reply.head;
  EXPECT_FALSE(absl::StrContains(Preflight().head, "Access-Control")) << "browsers send nothing then";
}

TEST_F(CorsTest, APageThatIsAllowedReadsResponsesErrorsAndStreams) {
  Serve(Allowing({kPage, "http://localhost:3000"}));
  const std::string allowed = absl::StrCat("Access-Control-Allow-Origin: ", kPage, "\r\n");
  for (const HttpReply& reply :
       {FromPage("GET", "/v1/models"), FromPage("POST", "/v1/completions", kCompletion),
        FromPage("POST", "/v1/completions", "{}"), FromPage("POST", "/nope", "{}"),
        FromPage("POST", "/v1/completions", R"({"prompt": "abc", "max_tokens": 2, "stream": true})")}) {
    EXPECT_TRUE(absl::StrContains(reply.head, allowed)) << reply.head;
    EXPECT_TRUE(absl::StrContains(reply.head, "Vary: Origin\r\n")) << reply.head;
    EXPECT_FALSE(absl::StrContains(reply.head, "Allow-Credentials")) << reply.head;
  }
  for (const char* other : {"https://evil.example", "null", "https://chat.example.evil.example"}) {
    const HttpReply reply = Send("GET", "/v1/models", "", absl::StrCat("Origin: ", other, "\r\n"));
    EXPECT_FALSE(absl::StrContains(reply.head, "Access-Control-Allow-Origin")) << other;
    EXPECT_TRUE(absl::StrContains(reply.head, "Vary: Origin\r\n")) << "a cache must know";
  }
}

TEST_F(CorsTest, PreflightsAreAnsweredWithoutAKey) {
  ApiServerOptions options = Allowing({kPage});
  options.api_keys = ApiKeys("secret");
  Serve(options);
  const HttpReply reply = Preflight();
  EXPECT_EQ(reply.status, 200) << reply.body;
  for (const char* header :
       {"Access-Control-Allow-Origin: https://chat.example\r\n",
        "Access-Control-Allow-Headers: authorization, content-type\r\n", "Access-Control-Max-Age: 600\r\n",
        "Access-Control-Allow-Methods: DELETE, GET, HEAD, OPTIONS, POST\r\n"})
    EXPECT_TRUE(absl::StrContains(reply.head, header)) << reply.head;
  const HttpReply refused = FromPage("POST", "/v1/completions", kCompletion);
  EXPECT_EQ(refused.status, 401);
  EXPECT_TRUE(absl::StrContains(refused.head, "Access-Control-Allow-Origin: https://chat.example\r\n"))
      << "the page can tell that the key is wrong";
  EXPECT_EQ(FromPage("POST", "/v1/completions", kCompletion, "Authorization: Bearer secret\r\n").status, 200);
  EXPECT_EQ(Send("OPTIONS", "/v1/completions").status, 401) << "this is no preflight";
}

TEST_F(CorsTest, EveryOriginAndCredentials) {
  Serve(Allowing({"*"}));
  EXPECT_TRUE(absl::StrContains(FromPage("GET", "/v1/models").head, "Access-Control-Allow-Origin: *\r\n"));
  EXPECT_FALSE(absl::StrContains(FromPage("GET", "/v1/models").head, "Vary"));
  ApiServerOptions options = Allowing({"*"});
  options.cors.allow_credentials = true;
  Serve(options);
  const HttpReply reply = FromPage("GET", "/v1/models");
  EXPECT_TRUE(absl::StrContains(reply.head, "Access-Control-Allow-Origin: https://chat.example\r\n"));
  EXPECT_TRUE(absl::StrContains(reply.head, "Access-Control-Allow-Credentials: true\r\n"));
}

TEST_F(CorsTest, WhatAPreflightAsksForInVain) {
  ApiServerOptions options = Allowing({"https://other.example"});
  Serve(options);
  EXPECT_EQ(Preflight().status, 400);
  EXPECT_TRUE(absl::StrContains(Preflight().body, "--allowed-origins"));
  options = Allowing({kPage});
  options.cors.allowed_methods = {"GET"};
  Serve(options);
  EXPECT_EQ(Preflight("GET").status, 200);
  EXPECT_EQ(Preflight("POST").status, 400);
  options.cors.allowed_methods = {"*"};
  options.cors.allowed_headers = {"X-Mine"};
  Serve(options);
  EXPECT_EQ(Preflight().status, 400) << "authorization is not allowed";
  options.cors.allowed_headers = {"Authorization"};
  Serve(options);
  EXPECT_EQ(Preflight().status, 200) << "content-type needs no permission";
}

// The flag allows all origins on clients' listener, and none on operators' listener.
TEST_F(CorsTest, OperatorsListenerHasNone) {
  Serve(Allowing({"*"}));
  const HttpReply reply = Admin("OPTIONS", "/sleep", "",
                                "Origin: https://chat.example\r\nAccess-Control-Request-Method: POST\r\n");
  EXPECT_EQ(reply.status, 403);
  EXPECT_FALSE(absl::StrContains(reply.head, "Access-Control")) << reply.head;
}

TEST_F(ApiServerTest, APageCannotPutAKeylessServerToSleep) {
  Serve();
  for (const char* mark :
       {"Origin: https://evil.example\r\n", "Origin: null\r\n", "Origin: http://localhost:3000\r\n",
        "Sec-Fetch-Site: cross-site\r\n", "Sec-Fetch-Site: same-site\r\n",
        "Referer: https://evil.example/a/page?x=http://test/#y\r\n", "Referer: http://localhost:3000/\r\n",
        "Referer: http://test.evil.example/\r\n", "Referer: about:blank\r\n"}) {
    for (const char* path : {"/sleep", "/collective_rpc", "/abort_requests", "/nope"}) {
      const HttpReply reply = Admin("POST", path, "", mark);
      EXPECT_EQ(reply.status, 403) << mark << path;
      EXPECT_TRUE(absl::StrContains(reply.body, "--admin-api-key")) << reply.body;
    }
    EXPECT_EQ(Admin("GET", "/v1/models", "", mark).status, 403) << mark;
    EXPECT_EQ(Admin("GET", "/server_info", "", mark).status, 403) << mark;
    EXPECT_EQ(Admin("POST", "/v1/completions", kCompletion, mark).status, 403) << mark;
    EXPECT_EQ(Admin("GET", "/readyz", "", mark).status, 200) << mark;
  }
  EXPECT_EQ(engine_->state(), EngineState::kAwake);
  EXPECT_EQ(Admin("POST", "/sleep", "", "Sec-Fetch-Site: none\r\n").status, 200) << "typed by the operator";
  EXPECT_EQ(Admin("POST", "/wake_up", "", "Origin: http://test\r\nSec-Fetch-Site: same-origin\r\n").status,
            200);
  EXPECT_EQ(Admin("POST", "/sleep", "", "Referer: http://test/console/?a=b\r\n").status, 200);
  EXPECT_EQ(Admin("POST", "/wake_up", "", "Referer: http://TEST\r\n").status, 200);
}

TEST_F(ApiServerTest, ANameThatLeadsHereIsNotThisServersName) {
  Serve();
  const uint16_t port = server_->admin_port();
  const auto sleep_at = [port](const std::string& host, const std::string& target = "/sleep") {
    return Raw(port, absl::StrCat("POST ", target, " HTTP/1.1\r\nHost: ", host, "\r\nContent-Length: 0\r\n"));
  };
  for (const std::string& host : {std::string("evil.example"), std::string("evil.example:8001"),
                                  std::string("127.0.0.1.evil.example:8001"),
                                  std::string("localhost.evil.example"), std::string("EVIL.example.")}) {
    const HttpReply reply = sleep_at(host);
    EXPECT_EQ(reply.status, 403) << host;
    EXPECT_TRUE(absl::StrContains(reply.body, "--admin-allowed-hosts")) << reply.body;
  }
  EXPECT_EQ(sleep_at("localhost", "http://evil.example:8001/sleep").status, 403) << "it replaces the header";
  EXPECT_EQ(engine_->state(), EngineState::kAwake);
  for (const std::string& host :
       {absl::StrCat("127.0.0.1:", port), absl::StrCat("localhost:", port), std::string("[::1]:8001"),
        std::string("[fe80::1%25eth0]"), std::string("10.1.2.3:8001"), std::string("LocalHost."),
        std::string("node7:8001"), std::string("somnus.team.svc.cluster.local:8001")})
    EXPECT_EQ(sleep_at(host).status, 200) << host;
  EXPECT_EQ(Raw(port, "POST /sleep HTTP/1.0\r\n").status, 200) << "no browser speaks HTTP/1.0";
  EXPECT_EQ(Raw(port, "GET /livez HTTP/1.1\r\nHost: probe.example\r\n").status, 200);
  EXPECT_EQ(Raw(port, "GET /metrics HTTP/1.1\r\nHost: somnus.example:8001\r\n").status, 200);
}

TEST_F(ApiServerTest, HostsThatAFlagListsAreKnown) {
  ApiServerOptions options{.admin_allowed_hosts = {"gpu.example", "Other.Example:8001"}};
  Serve(options);
  const auto status = [this](const char* host) {
    return Raw(server_->admin_port(), absl::StrCat("GET /is_sleeping HTTP/1.1\r\nHost: ", host, "\r\n"))
        .status;
  };
  EXPECT_EQ(status("gpu.example:1"), 200);
  EXPECT_EQ(status("other.example"), 200);
  EXPECT_EQ(status("third.example"), 403);
  options.admin_allowed_hosts = {"*"};
  Serve(options);
  EXPECT_EQ(status("third.example"), 200);
}

// A web page has no key, so a listener with a key needs no guard of host names and origins.
TEST_F(ApiServerTest, WithAKeyAnyNameWillDo) {
  Serve(ApiServerOptions{.admin_api_keys = ApiKeys("secret")});
  const std::string head = "POST /sleep HTTP/1.1\r\nHost: gpu.example\r\nOrigin: https://panel.example\r\n";
  EXPECT_EQ(Raw(server_->admin_port(), head).status, 401);
  EXPECT_EQ(Raw(server_->admin_port(), head + "Authorization: Bearer secret\r\n").status, 200);
}

TEST(WebPageGuardTest, HostNames) {
  const std::pair<const char*, const char*> cases[] = {{"a.example:80", "a.example"},
                                                       {"A.Example.", "a.example"},
                                                       {"[::1]:80", "::1"},
                                                       {"::1", "::1"},
                                                       {"[fe80::1%eth0]", "fe80::1"},
                                                       {"", ""},
                                                       {"host", "host"},
                                                       {"1.2.3.4:5", "1.2.3.4"}};
  for (const auto& [given, name] : cases) EXPECT_EQ(HostName(given), name);
}

}  // namespace
}  // namespace somnus
