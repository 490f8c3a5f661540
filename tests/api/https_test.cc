// HTTP over TLS: everything that plain HTTP does, clients that do not speak it, slow and half-open
// handshakes, clients without a certificate, and certificates that are replaced.

#include <gtest/gtest.h>

#include <vector>

#include "coordinator/livez_probe.h"
#include "tests/api/api_server_fixture.h"
#include "tests/fakes/test_certificates.h"

namespace somnus {
namespace {

constexpr char kHalfHello[] = "\x16\x03\x01";
constexpr char kGreedy[] = R"({"prompt": "abc", "max_tokens": 4, "temperature": 0})";
constexpr char kLong[] = R"({"prompt": "abc", "max_tokens": 4000, "stream": true})";

class HttpsTest : public ApiServerTest {
 protected:
  HttpsTest() {
    certificates_.MakeAuthority("authority");
    files_ = certificates_.Make("server", "authority");
    trusted_ = {.host = "127.0.0.1", .authority = files_.authority};
    options_.tls = {files_.certificate, files_.key, ""};
  }

  // Exchanges one request and its reply on a connection of its own.
  HttpReply SendOverTls(const std::string& method, const std::string& path, const std::string& body = "") {
    HttpClient client(server_->port());
    const absl::Status status = client.StartTls(trusted_);
    EXPECT_TRUE(status.ok()) << status;
    client.Write(RequestText(method, path, body));
    return client.ReadReply();
  }
  void ExpectServing() {
    const HttpReply reply = SendOverTls("POST", "/v1/completions", kGreedy);
    ASSERT_EQ(reply.status, 200);
    EXPECT_EQ(Json::parse(reply.body)["choices"][0]["text"], "abca");
  }

  TestCertificates certificates_;
  TlsFiles files_;
  TlsClientOptions trusted_;
  ApiServerOptions options_;
};

TEST_F(HttpsTest, RequestsOneAfterTheOtherAndPipelined) {
  Serve(options_);
  HttpClient client(server_->port());
  ASSERT_TRUE(client.StartTls(trusted_).ok());
  const std::string request = RequestText("POST", "/v1/completions", kGreedy);
  for (int i = 0; i < 3; ++i) {
    client.Write(request);
    EXPECT_EQ(Json::parse(client.ReadReply().body)["choices"][0]["text"], "abca");
  }
  std::string many;
  for (int i = 0; i < 50; ++i) many += request;
  client.Write(many);
  for (int i = 0; i < 50; ++i) ASSERT_EQ(client.ReadReply().status, 200) << i;
  const HttpReply info = SendOverTls("GET", "/server_info");
  EXPECT_EQ(Json::parse(info.body)["tls"], true);
  EXPECT_EQ(Json::parse(info.body)["admin_tls"], false);
}

TEST_F(HttpsTest, ALargeBodyAndALargeResponse) {
  Serve(options_);
  const std::string text(300'000, 'a');
  const HttpReply reply = SendOverTls("POST", "/tokenize", absl::StrCat(R"({"prompt": ")", text, "\"}"));
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(Json::parse(reply.body)["count"], 300'000);
}

TEST_F(HttpsTest, AStreamEndsInOrder) {
  Serve(options_);
  HttpClient client(server_->port());
  ASSERT_TRUE(client.StartTls(trusted_).ok());
  // HTTP/1.0 has no chunks, so that only the end of the connection ends the body: it must not look like one
  // that somebody has cut.
  const std::string body = R"({"prompt": "abc", "max_tokens": 8, "stream": true})";
  client.Write(absl::StrCat("POST /v1/completions HTTP/1.0\r\nContent-Type: application/json\r\n",
                            "Content-Length: ", body.size(), "\r\n\r\n", body));
  const HttpReply reply = client.ReadReply();
  EXPECT_EQ(reply.status, 200);
  EXPECT_TRUE(absl::EndsWith(reply.body, "data: [DONE]\n\n"));
  EXPECT_TRUE(client.ended_in_order());
}

TEST_F(HttpsTest, PlainHttpIsToldSoAndClosed) {
  Serve(options_);
  for (const char* method : {"GET", "DELETE"}) {
    HttpClient client(server_->port());
    client.Write(RequestText(method, "/health", ""));
    const HttpReply reply = client.ReadReply();
    EXPECT_EQ(reply.status, 400);
    EXPECT_TRUE(absl::StrContains(reply.body, "HTTPS"));
    EXPECT_TRUE(client.ReadsEof());
  }
  ExpectServing();
}

TEST_F(HttpsTest, NoiseInsteadOfAHandshakeIsClosed) {
  Serve(options_);
  for (const std::string& noise :
       {std::string("\x16garbage"), std::string(5000, '\x16'), std::string(5000, '\0'),
        std::string("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")}) {
    HttpClient client(server_->port());
    client.Write(noise);
    client.Finish();
    EXPECT_TRUE(client.ReadsEof());
  }
  ExpectServing();
}

TEST_F(HttpsTest, SlowHandshakesAreCutAndKeepNobodyOut) {
  options_.limits.header_timeout = absl::Milliseconds(300);
  options_.limits.max_connections = 8;
  Serve(options_);
  std::vector<std::unique_ptr<HttpClient>> slow;
  for (int i = 0; i < 20; ++i) {
    slow.push_back(std::make_unique<HttpClient>(server_->port()));
    if (i % 2 == 0) slow.back()->Write(kHalfHello);
  }
  ExpectServing();
  for (const auto& client : slow) EXPECT_TRUE(client->ReadsEof());
}

TEST_F(HttpsTest, ClientsThatLeaveAreAborted) {
  Serve(options_, absl::Milliseconds(2));
  for (const bool reset : {false, true}) {
    HttpClient client(server_->port());
    ASSERT_TRUE(client.StartTls(trusted_).ok());
    client.Write(RequestText("POST", "/v1/completions", kLong));
    ASSERT_TRUE(client.ReadUntil("data: "));
    reset ? client.Reset() : client.Close();
    EXPECT_TRUE(engine_->WaitIdle(absl::Seconds(5))) << reset;
  }
  EXPECT_EQ(engine_->num_aborted(), 2);
}

TEST_F(HttpsTest, AClientThatDoesNotReadIsBounded) {
  options_.limits.write_timeout = absl::Milliseconds(300);
  Serve(options_, absl::Microseconds(10));
  HttpClient client(server_->port());
  ASSERT_TRUE(client.StartTls(trusted_).ok());
  StartLongStream(&client, /*prompts=*/60, /*logprobs=*/1);
  EXPECT_TRUE(engine_->WaitIdle(absl::Seconds(30)));
  EXPECT_GT(engine_->num_aborted(), 0);
  ExpectServing();
}

TEST_F(HttpsTest, OnlyTheServersOwnCertificateIsAccepted) {
  Serve(options_);
  certificates_.MakeAuthority("other");
  HttpClient deceived(server_->port());
  const absl::Status wrong_authority =
      deceived.StartTls({.host = "127.0.0.1", .authority = certificates_.Path("other.pem")});
  EXPECT_TRUE(absl::IsUnauthenticated(wrong_authority)) << wrong_authority;
  HttpClient misled(server_->port());
  const absl::Status wrong_name = misled.StartTls({.host = "elsewhere", .authority = files_.authority});
  EXPECT_TRUE(absl::IsUnauthenticated(wrong_name)) << wrong_name;
  ExpectServing();
}

TEST_F(HttpsTest, ClientsMustShowACertificateWhereThatIsAsked) {
  options_.tls = files_;
  Serve(options_);
  const TlsFiles client_files = certificates_.Make("client", "authority");
  certificates_.MakeAuthority("other");
  const TlsFiles stranger = certificates_.Make("stranger", "other");
  for (const TlsFiles& files : {TlsFiles(), stranger}) {
    HttpClient client(server_->port());
    TlsClientOptions options = trusted_;
    options.certificate = files.certificate;
    options.key = files.key;
    // With TLS 1.3 the client learns that it was refused when it reads.
    if (client.StartTls(options).ok()) client.Write(RequestText("GET", "/health", ""));
    EXPECT_EQ(client.ReadReply().status, 0);
  }
  trusted_.certificate = client_files.certificate;
  trusted_.key = client_files.key;
  ExpectServing();
  EXPECT_EQ(Admin("GET", "/v1/models").status, 401) << "operators have no key, and show no certificate";
  EXPECT_EQ(Admin("GET", "/is_sleeping").status, 200);
}

TEST_F(HttpsTest, ANewCertificateIsShownWithoutARestart) {
  options_.certificate_interval = absl::Milliseconds(5);
  Serve(options_);
  HttpClient earlier(server_->port());
  ASSERT_TRUE(earlier.StartTls(trusted_).ok());
  certificates_.MakeAuthority("next");
  const TlsFiles next = certificates_.Make("next_server", "next");
  const TlsClientOptions trusts_next = {.host = "127.0.0.1", .authority = next.authority};
  const auto shows_next = [&] {
    HttpClient client(server_->port());
    return client.StartTls(trusts_next).ok();
  };
  EXPECT_FALSE(shows_next());
  TestCertificates::Replace(next, files_);
  const absl::Time deadline = absl::Now() + absl::Seconds(20);
  while (!shows_next() && absl::Now() < deadline) absl::SleepFor(absl::Milliseconds(5));
  EXPECT_TRUE(shows_next());
  earlier.Write(RequestText("GET", "/health", ""));
  EXPECT_EQ(earlier.ReadReply().status, 200) << "an open connection goes on";
  // Files of no use change nothing.
  std::filesystem::remove(files_.key);
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(shows_next());
}

TEST_F(HttpsTest, FilesOfNoUse) {
  options_.port = options_.admin_port = 0;
  options_.tls.key = certificates_.Path("authority.key");
  EXPECT_TRUE(absl::IsInvalidArgument(ApiServer::Start(options_, Metrics::Create("fake", 4096)).status()));
  options_.tls.key = certificates_.Path("none");
  EXPECT_TRUE(absl::IsInvalidArgument(ApiServer::Start(options_, Metrics::Create("fake", 4096)).status()));
}

TEST_F(HttpsTest, OperatorsListenerHasItsOwn) {
  options_.admin_tls = std::exchange(options_.tls, TlsFiles());
  Serve(options_);
  EXPECT_EQ(Send("GET", "/health").status, 200);
  HttpClient client(server_->admin_port());
  ASSERT_TRUE(client.StartTls(trusted_).ok());
  client.Write(RequestText("POST", "/sleep", ""));
  EXPECT_EQ(client.ReadReply().status, 200);
  EXPECT_EQ(Admin("POST", "/sleep").status, 400) << "plain HTTP";
  EXPECT_TRUE(ProbeLivez("127.0.0.1", server_->admin_port(), /*tls=*/true, absl::Seconds(20)));
  EXPECT_FALSE(ProbeLivez("127.0.0.1", server_->admin_port(), /*tls=*/false, absl::Seconds(20)));
  EXPECT_FALSE(ProbeLivez("127.0.0.1", server_->port(), /*tls=*/true, absl::Seconds(20)));
}

}  // namespace
}  // namespace somnus
