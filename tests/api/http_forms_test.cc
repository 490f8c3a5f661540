// Less usual forms of HTTP: HEAD, OPTIONS, absolute targets, compressed bodies, ids of requests.

#include <gtest/gtest.h>
#include <zlib.h>

#include "absl/strings/match.h"
#include "absl/strings/str_replace.h"
#include "coordinator/http/content_coding.h"
#include "coordinator/http/request_target.h"
#include "tests/api/api_server_fixture.h"

namespace somnus {
namespace {

constexpr char kCompletion[] = R"({"prompt": "abc", "max_tokens": 2, "temperature": 0})";
constexpr int kGzip = 15 + 16, kZlib = 15, kBare = -15;

std::string Deflated(const std::string& text, int window) {
  z_stream stream{};
  ::deflateInit2(&stream, Z_BEST_COMPRESSION, Z_DEFLATED, window, 9, Z_DEFAULT_STRATEGY);
  std::string out(::deflateBound(&stream, text.size()) + 64, 0);
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = text.size();
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = out.size();
  EXPECT_EQ(::deflate(&stream, Z_FINISH), Z_STREAM_END);
  out.resize(stream.total_out);
  ::deflateEnd(&stream);
  return out;
}

class HttpFormsTest : public ApiServerTest {
 protected:
  HttpReply Coded(const std::string& coding, const std::string& body,
                  const std::string& path = "/v1/completions") {
    return Send("POST", path, body, absl::StrCat("Content-Encoding: ", coding, "\r\n"));
  }
  std::string Text(const HttpReply& reply) {
    EXPECT_EQ(reply.status, 200) << reply.body;
    return Json::parse(reply.body)["choices"][0]["text"];
  }
};

TEST_F(HttpFormsTest, HeadIsGetWithoutItsBody) {
  Serve(ApiServerOptions{.limits = {.sse_keepalive = absl::Seconds(1)}});
  for (const char* path : {"/health", "/readyz", "/livez", "/ping", "/version", "/v1/models",
                           "/v1/models/fake", "/v1/prefixes", "/v1/models/other", "/server_info"}) {
    HttpClient client(server_->port());
    client.Write(RequestText("HEAD", path, "") + RequestText("GET", path, ""));
    ASSERT_TRUE(client.ReadUntil("\r\n\r\n")) << path;
    const std::string head = client.buffered().substr(0, client.buffered().find("\r\n\r\n") + 4);
    const HttpReply get = Send("GET", path);
    EXPECT_EQ(head, get.head) << path;
    EXPECT_TRUE(client.ReadUntil(head + get.head + get.body))
        << path << ": the next response follows at once";
  }
  HttpClient client(server_->port());
  client.Write(RequestText("HEAD", "/v1/completions", ""));
  ASSERT_TRUE(client.ReadUntil("\r\n\r\n"));
  EXPECT_TRUE(absl::StartsWith(client.buffered(), "HTTP/1.1 405 "))
      << "there is no GET: " << client.buffered();
}

TEST_F(HttpFormsTest, OptionsAndWrongMethodsNameTheMethods) {
  Serve();
  const std::pair<const char*, const char*> allowed[] = {{"/v1/completions", "POST, OPTIONS"},
                                                         {"/v1/models", "GET, HEAD, OPTIONS"},
                                                         {"/ping", "GET, HEAD, POST, OPTIONS"},
                                                         {"/v1/prefixes", "GET, HEAD, POST, OPTIONS"},
                                                         {"/v1/prefixes/a", "GET, HEAD, DELETE, OPTIONS"}};
  for (const auto& [path, methods] : allowed) {
    const std::string header = absl::StrCat("Allow: ", methods, "\r\n");
    const HttpReply options = Send("OPTIONS", path);
    EXPECT_EQ(options.status, 204) << path;
    EXPECT_TRUE(absl::StrContains(options.head, header)) << options.head;
    const HttpReply wrong = Send("PATCH", path);
    EXPECT_EQ(wrong.status, 405) << path;
    EXPECT_TRUE(absl::StrContains(wrong.head, header)) << wrong.head;
    EXPECT_EQ(Json::parse(wrong.body)["error"]["message"],
              absl::StrCat(path, " does not take PATCH, but ", methods, "."));
  }
  EXPECT_EQ(Send("OPTIONS", "*").status, 204);
  EXPECT_EQ(Send("OPTIONS", "/nope").status, 404);
}

TEST_F(HttpFormsTest, ErrorsNameWhatIsMissing) {
  Serve();
  const auto message = [](const HttpReply& reply) -> std::string {
    return Json::parse(reply.body)["error"]["message"];
  };
  EXPECT_EQ(message(Send("POST", "/v1/nope?key=secret", "{}")),
            "There is no route POST /v1/nope. GET /openapi.json lists the routes.");
  EXPECT_EQ(message(Send("POST", "/chat/completions", "{}")),
            "There is no route POST /chat/completions; there is /v1/chat/completions.");
  EXPECT_EQ(message(Send("POST", "/v1/v1/completions", "{}")),
            "There is no route POST /v1/v1/completions; there is /v1/completions.");
  EXPECT_EQ(message(Send("GET", "/v1/version")), "There is no route GET /v1/version; there is /version.");
  EXPECT_EQ(message(Send("GET", "/a%00b\xff")),
            "There is no route GET /a%00b%FF. GET /openapi.json lists the routes.");
  EXPECT_EQ(message(Send("POST", "/sleep?level=1")),
            absl::StrCat("There is no route POST /sleep here: it is one of operators, on their port ",
                         server_->admin_port(), " (--admin-port)."));
  EXPECT_EQ(message(Admin("POST", "/sleeep")),
            "There is no route POST /sleeep. GET /openapi.json lists the routes.");
  const std::string missing = "The model `other` does not exist. The server has: fake.";
  EXPECT_EQ(message(Complete(R"({"prompt": "a", "model": "other"})")), missing);
  for (const char* target : {"/v1/models/other", "/v1/prefixes?model=other", "/health?model=other",
                             "/readyz?model=other", "/ping?model=other", "/server_info?model=other"}) {
    const HttpReply reply = Send("GET", target);
    EXPECT_EQ(reply.status, 404) << target;
    EXPECT_EQ(message(reply), missing) << target;
  }
  EXPECT_EQ(message(Admin("POST", "/sleep?model=other")), missing);
  EXPECT_EQ(message(Admin("GET", "/is_sleeping?model=other")), missing);
}

TEST_F(HttpFormsTest, TargetsInTheirOtherForms) {
  Serve();
  for (const char* target : {"http://test/v1/models", "HTTPS://user@test:1234/v1/models", "/v1/%6dodel%73"})
    EXPECT_EQ(Send("GET", target).status, 200) << target;
  EXPECT_EQ(Send("GET", "http://test").status, 404);
  EXPECT_EQ(Text(Send("POST", "http://test/v1/completions?x=http://y/z", kCompletion)), "ab");
  const std::pair<const char*, std::pair<const char*, const char*>> cases[] = {
      {"/a?b=%41", {"", "/a?b=%41"}},
      {"http://h:1/a?b", {"h:1", "/a?b"}},
      {"http://h?b", {"h", "/?b"}},
      {"http://u:p@h/", {"h", "/"}},
      {"/%2e%2E/%41%2f%25%7e", {"", "/../A%2f%25~"}},
      {"*", {"", "*"}},
      {"/a%4", {"", "/a%4"}},
      {"http://", {"", "/"}}};
  for (const auto& [target, parts] : cases) {
    EXPECT_EQ(ParseTarget(target).authority, parts.first) << target;
    EXPECT_EQ(ParseTarget(target).path_and_query, parts.second) << target;
  }
}

TEST_F(HttpFormsTest, PathsMayBeginAsAProxyHasLeftThem) {
  ApiServerOptions options;
  options.root_path = "/llm";
  options.api_keys = ApiKeys("secret");
  Serve(options);
  const std::string key = "Authorization: Bearer secret\r\n";
  for (const char* target :
       {"/v1/models", "/llm/v1/models", "/llm/v1/models?x", "http://test/llm/v1/models"}) {
    EXPECT_EQ(Send("GET", target, "", key).status, 200) << target;
    EXPECT_EQ(Send("GET", target).status, 401) << target;
  }
  EXPECT_EQ(Text(Send("POST", "/llm/v1/completions", kCompletion, key)), "ab");
  for (const char* target : {"/llm", "/llmv1/models", "/llm/llm/v1/models", "/x/v1/models", "/llm/sleep"})
    EXPECT_EQ(Send("GET", target, "", key).status, 404) << target;
  EXPECT_EQ(Send("GET", "/llm/", "", "Accept: text/html\r\n").status, 200);
  EXPECT_EQ(Send("GET", "/llm/console/api.js").status, 200);
  EXPECT_EQ(Admin("GET", "/llm/is_sleeping").status, 200);
  const Json document = Json::parse(Send("GET", "/llm/openapi.json", "", key).body);
  EXPECT_EQ(document["servers"], Json::parse(R"([{"url": "/llm"}])"));
}

TEST_F(HttpFormsTest, CompressedBodies) {
  Serve();
  EXPECT_EQ(Text(Coded("gzip", Deflated(kCompletion, kGzip))), "ab");
  EXPECT_EQ(Text(Coded("X-GZIP", Deflated(kCompletion, kGzip))), "ab");
  EXPECT_EQ(Text(Coded("deflate", Deflated(kCompletion, kZlib))), "ab");
  EXPECT_EQ(Text(Coded("deflate", Deflated(kCompletion, kBare))), "ab");
  EXPECT_EQ(Text(Coded("identity", kCompletion)), "ab");
  const std::string two = Deflated(std::string(kCompletion).substr(0, 20), kGzip) +
                          Deflated(std::string(kCompletion).substr(20), kGzip);
  EXPECT_EQ(Text(Coded("gzip", two)), "ab") << "members follow each other";
  for (const char* coding : {"br", "zstd", "gzip, gzip", "gzip;q=1", "compress"}) {
    const HttpReply reply = Coded(coding, kCompletion);
    EXPECT_EQ(reply.status, 415) << coding;
    EXPECT_TRUE(absl::StrContains(reply.head, "Accept-Encoding: gzip, deflate\r\n")) << reply.head;
  }
  const std::string whole = Deflated(kCompletion, kGzip);
  for (const std::string& bad : {std::string(kCompletion), whole.substr(0, whole.size() - 9), whole + "x",
                                 Deflated(kCompletion, kZlib)}) {
    const HttpReply reply = Coded("gzip", bad);
    EXPECT_EQ(reply.status, 400);
    EXPECT_TRUE(absl::StrContains(reply.body, "Content-Encoding")) << reply.body;
  }
  EXPECT_EQ(Send("GET", "/v1/models", "", "Content-Encoding: br\r\n").status, 200) << "nothing is compressed";
  ExpectHealthy();
}

TEST_F(HttpFormsTest, ABombGrowsNoFurtherThanTheBody) {
  ApiServerOptions options{.limits = {.max_body_bytes = 1 << 20}};
  Serve(options);
  const std::string bomb = Deflated(std::string(64 << 20, ' '), kGzip);
  ASSERT_LT(bomb.size(), 1u << 17);
  EXPECT_EQ(Coded("gzip", bomb).status, 413);
  EXPECT_EQ(Text(Coded("gzip", Deflated(kCompletion + std::string(900'000, ' '), kGzip))), "ab");
  options.limits.max_body_bytes = 32 << 20;
  options.limits.max_buffered_body_bytes = 1 << 20;
  Serve(options);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(Coded("gzip", bomb).status, 503);
  EXPECT_EQ(Text(Coded("gzip", Deflated(kCompletion + std::string(900'000, ' '), kGzip))), "ab")
      << "what was refused is given back";
}

TEST(ContentCodingTest, EveryPieceIsReservedBeforeItIsKept) {
  std::string body = Deflated(std::string(1 << 20, 'x'), kGzip);
  int64_t reserved = 0;
  const auto error = DecodeContent(
      ContentCoding::kGzip, 1 << 20,
      [&](int64_t bytes) {
        reserved += bytes;
        return reserved <= 300'000;
      },
      &body);
  ASSERT_TRUE(error.has_value());
  EXPECT_EQ(error->status, 503);
  EXPECT_LT(reserved, 400'000);
  EXPECT_FALSE(DecodeContent(
                   ContentCoding::kGzip, 1 << 20, [](int64_t) { return true; }, &body)
                   .has_value());
  EXPECT_EQ(body, std::string(1 << 20, 'x'));
}

TEST_F(HttpFormsTest, RequestIdsComeBack) {
  Serve(ApiServerOptions{.api_keys = ApiKeys("k")});
  const std::string key = "Authorization: Bearer k\r\n", id = "X-Request-Id: trace 7/a\r\n";
  for (const HttpReply& reply :
       {Send("GET", "/health", "", id), Send("GET", "/v1/models", "", id),
        Send("POST", "/nope", "{}", id + key), Send("POST", "/v1/completions", "{}", id + key),
        Send("POST", "/v1/completions", kCompletion, id + key),
        Send("POST", "/v1/completions", R"({"prompt": "a", "max_tokens": 1, "stream": true})", id + key)})
    EXPECT_TRUE(absl::StrContains(reply.head, "\r\n" + id)) << reply.head;
  for (const std::string& unsafe : {std::string("\x01"), std::string("a\xc3\xa9"), std::string(2000, 'a')})
    EXPECT_FALSE(absl::StrContains(Send("GET", "/health", "", "X-Request-Id: " + unsafe + "\r\n").head,
                                   "X-Request-Id"));
  EXPECT_FALSE(absl::StrContains(Send("GET", "/health").head, "X-Request-Id"));
}

TEST_F(HttpFormsTest, ByAFlagEveryResponseHasAnId) {
  Serve(ApiServerOptions{.request_id_headers = true});
  const auto id_of = [](const HttpReply& reply) {
    const size_t at = reply.head.find("X-Request-Id: ");
    return at == std::string::npos ? "" : reply.head.substr(at + 14, reply.head.find('\r', at) - at - 14);
  };
  const std::string first = id_of(Send("GET", "/nope")), second = id_of(Send("GET", "/nope"));
  EXPECT_EQ(first.size(), 32u);
  EXPECT_NE(first, second);
  const HttpReply reply = Complete(kCompletion);
  EXPECT_EQ(Json::parse(reply.body)["id"], "cmpl-" + id_of(reply));
}

}  // namespace
}  // namespace somnus
