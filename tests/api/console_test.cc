// The console's pages and files, "/" for programs, and GET /status.

#include <gtest/gtest.h>

#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "coordinator/metrics/latency_sums.h"
#include "coordinator/metrics/step_trace.h"
#include "proto/control.pb.h"
#include "tests/api/api_server_fixture.h"

namespace somnus {
namespace {

constexpr char kBrowser[] = "Accept: text/html,application/xhtml+xml;q=0.9,*/*;q=0.8\r\n";

// The value of a header; empty: there is none.
std::string Header(const HttpReply& reply, const std::string& name) {
  const std::string mark = absl::StrCat("\r\n", name, ": ");
  const size_t at = reply.head.find(mark);
  if (at == std::string::npos) return "";
  const size_t begin = at + mark.size();
  return reply.head.substr(begin, reply.head.find("\r\n", begin) - begin);
}

// The files of the console that a page or a file names.
std::set<std::string> FilesIn(const std::string& text) {
  std::set<std::string> files;
  for (const std::string mark : {"\"console/", "from \"./"}) {
    for (size_t at = text.find(mark); at != std::string::npos; at = text.find(mark, at + 1)) {
      const size_t begin = at + mark.size();
      files.insert(text.substr(begin, text.find('"', begin) - begin));
    }
  }
  return files;
}

class ConsoleTest : public ApiServerTest {
 protected:
  HttpReply Browse(bool admin, const std::string& path, const std::string& headers = "") {
    const std::string all = kBrowser + headers;
    return admin ? Admin("GET", path, "", all) : Send("GET", path, "", all);
  }
  // Follows every name from the page on; returns how many files there are.
  size_t ExpectAllFiles(bool admin) {
    std::set<std::string> known, open = FilesIn(Browse(admin, "/").body);
    while (!open.empty()) {
      const std::string name = *open.begin();
      open.erase(open.begin());
      if (!known.insert(name).second) continue;
      const HttpReply file = Browse(admin, "/console/" + name);
      EXPECT_EQ(file.status, 200) << name;
      open.merge(FilesIn(file.body));
    }
    return known.size();
  }
};

TEST_F(ConsoleTest, ABrowserGetsThePageOfTheListener) {
  Start();
  const HttpReply chat = Browse(false, "/"), operations = Browse(true, "/");
  EXPECT_EQ(chat.status, 200) << "also while the model loads";
  EXPECT_TRUE(absl::StrContains(chat.body, "id=\"composer\""));
  EXPECT_TRUE(absl::StrContains(operations.body, "id=\"trace\""));
  for (const HttpReply& page : {chat, operations}) {
    EXPECT_EQ(Header(page, "Content-Type"), "text/html; charset=utf-8");
    EXPECT_EQ(Header(page, "X-Content-Type-Options"), "nosniff");
    EXPECT_EQ(Header(page, "Referrer-Policy"), "no-referrer");
    const std::string policy = Header(page, "Content-Security-Policy");
    for (const char* part : {"default-src 'none'", "script-src 'self'", "connect-src 'self'",
                             "frame-ancestors 'none'", "form-action 'none'"})
      EXPECT_TRUE(absl::StrContains(policy, part)) << policy;
    EXPECT_FALSE(absl::StrContains(policy, "unsafe")) << policy;
  }
}

TEST_F(ConsoleTest, EveryFileThatAPageNamesIsThere) {
  Start();
  EXPECT_GE(ExpectAllFiles(false), 10u);
  EXPECT_GE(ExpectAllFiles(true), 10u);
  EXPECT_EQ(Browse(false, "/console/operations.html").status, 404) << "it is operators'";
  for (const char* path : {"/console/", "/console/nope.js", "/console/../http/routes.cc", "/console/%2e%2e"})
    EXPECT_EQ(Browse(false, path).status, 404) << path;
  EXPECT_EQ(Header(Browse(false, "/console/chat.js"), "Content-Type"), "text/javascript; charset=utf-8");
  EXPECT_EQ(Header(Browse(false, "/console/style.css"), "Content-Type"), "text/css; charset=utf-8");
}

TEST_F(ConsoleTest, AnUnchangedFileIsNotSentAgain) {
  Start();
  const std::string tag = Header(Browse(false, "/console/style.css"), "ETag");
  ASSERT_FALSE(tag.empty());
  const HttpReply same = Browse(false, "/console/style.css", "If-None-Match: " + tag + "\r\n");
  EXPECT_EQ(same.status, 304);
  EXPECT_EQ(Header(same, "Content-Length"), "");
  const HttpReply other = Browse(false, "/console/style.css", "If-None-Match: \"0\"\r\n");
  EXPECT_EQ(other.status, 200);
  EXPECT_FALSE(other.body.empty());
  const HttpReply head = [&] {
    HttpClient client(server_->port());
    client.Write(RequestText("HEAD", "/console/style.css", ""));
    client.ReadUntil("\r\n\r\n");
    return HttpReply{.head = client.buffered()};
  }();
  EXPECT_EQ(Header(head, "Content-Length"), std::to_string(other.body.size()));
}

TEST_F(ConsoleTest, AProgramIsToldWhereToBegin) {
  Start();
  for (const char* accept : {"", "Accept: */*\r\n", "Accept: application/json\r\n"}) {
    const HttpReply reply = Send("GET", "/", "", accept);
    EXPECT_EQ(reply.status, 404);
    EXPECT_EQ(Json::parse(reply.body)["error"]["code"], 404);
    EXPECT_EQ(Json::parse(reply.body)["chat"], "/v1/chat/completions") << reply.body;
  }
  EXPECT_EQ(Json::parse(Admin("GET", "/").body)["status"], "/status");
  EXPECT_EQ(Send("POST", "/", "{}").status, 405);
}

TEST_F(ConsoleTest, ThePageIsOpenAndItsDataAreNot) {
  Serve(ApiServerOptions{.api_keys = ApiKeys("secret"), .admin_api_keys = ApiKeys("operator")});
  EXPECT_EQ(Browse(false, "/").status, 200);
  EXPECT_EQ(Browse(true, "/").status, 200);
  EXPECT_EQ(Browse(false, "/v1/models").status, 401);
  EXPECT_EQ(Browse(true, "/status").status, 401);
  EXPECT_EQ(Browse(true, "/status", "Authorization: Bearer operator\r\n").status, 200);
  EXPECT_EQ(Browse(false, "/status", "Authorization: Bearer secret\r\n").status, 404) << "it is operators'";
}

TEST_F(ConsoleTest, WithoutTheConsoleThereIsNoPage) {
  Start(ApiServerOptions{.console = false});
  const HttpReply root = Browse(false, "/");
  EXPECT_EQ(Header(root, "Content-Type"), "application/json");
  EXPECT_FALSE(Json::parse(root.body).contains("page"));
  EXPECT_EQ(Browse(false, "/console/chat.js").status, 404);
}

TEST_F(ConsoleTest, AnotherSitesPageReadsNoStatus) {
  Serve();
  EXPECT_EQ(Browse(true, "/status", "Sec-Fetch-Site: cross-site\r\n").status, 403);
  EXPECT_EQ(Browse(true, "/status", "Sec-Fetch-Site: same-origin\r\n").status, 200);
}

TEST_F(ConsoleTest, TheStatusWhileModelsLoad) {
  Start();
  const Json status = Json::parse(Admin("GET", "/status").body);
  EXPECT_EQ(status["version"], "1.2.3");
  EXPECT_TRUE(status["models"].empty());
  EXPECT_TRUE(status["detail"].is_null());
  EXPECT_FALSE(status["state_report"]["line"].get<std::string>().empty());
}

TEST_F(ConsoleTest, TheStatusOfAModel) {
  Start();
  auto trace = std::make_shared<StepTrace>(nullptr);
  trace->OnRecovered(absl::Milliseconds(300));
  auto latencies = std::make_shared<LatencySums>(nullptr);
  latencies->OnTokens({.num_tokens = 2, .has_first = true, .wait = absl::Seconds(1)});
  latencies->OnTokens({.num_tokens = 3, .wait = absl::Seconds(2)});
  ServedModel model = FakeModel(engine_);
  model.trace = trace;
  model.latencies = latencies;
  model.rank_status = [] {
    v1::RankStatus rank;
    rank.set_rank(1);
    (*rank.mutable_bytes_by_tag())["weights"] = 7;
    rank.mutable_transition()->set_phase("copy");
    return std::vector<v1::RankStatus>{rank};
  };
  server_->SetModel(std::move(model));

  const Json status = Json::parse(Admin("GET", "/status?model=fake").body);
  const Json& one = status["models"][0];
  EXPECT_EQ(one["model"], "fake");
  EXPECT_EQ(one["state"], "awake");
  EXPECT_TRUE(one["state_report"].is_null());
  EXPECT_EQ(one["latency"]["num_first_tokens"], 1);
  EXPECT_EQ(one["latency"]["first_token_s"], 1.0);
  EXPECT_EQ(one["latency"]["num_further_tokens"], 4);
  EXPECT_EQ(one["latency"]["further_token_s"], 2.0);
  const Json& detail = status["detail"];
  EXPECT_EQ(detail["ranks"][0]["bytes_by_tag"]["weights"], 7);
  EXPECT_EQ(detail["ranks"][0]["transition"]["phase"], "copy");
  EXPECT_EQ(detail["kv_maps"][0]["cells"], "12c.");
  EXPECT_EQ(detail["requests"][0]["request_id"], "chat-1");
  EXPECT_EQ(detail["requests"][0]["num_prompt_tokens"], 7);
  EXPECT_EQ(detail["requests"][0]["replica"], 0);
  EXPECT_EQ(detail["requests"][1]["request_id"], "chat-2");
  EXPECT_TRUE(detail["requests"][1]["replica"].is_null()) << "no replica has it";
  EXPECT_EQ(detail["kv_maps"].size(), 1u) << "a queue has no blocks";
  EXPECT_EQ(detail["events"][0]["name"], "recovery");
  EXPECT_EQ(detail["events"][0]["seconds"], 0.3);
  EXPECT_EQ(Admin("GET", "/status?model=nope").status, 404);
}

TEST_F(ConsoleTest, ManyWatchersAskTheRanksOnce) {
  Start();
  std::atomic<int> asked{0};
  ServedModel model = FakeModel(engine_);
  model.rank_status = [&asked] {
    ++asked;
    return std::vector<v1::RankStatus>();
  };
  server_->SetModel(std::move(model));
  const absl::Time begin = absl::Now();
  for (int i = 0; i < 20; ++i) EXPECT_EQ(Admin("GET", "/status").status, 200);
  const auto most = static_cast<int>((absl::Now() - begin) / absl::Milliseconds(250)) + 1;
  EXPECT_LE(asked, most) << "an answer serves for a quarter of a second";
}

}  // namespace
}  // namespace somnus
