// Who gets through to a service of the cluster, over each kind of connection, and who does not.

#include "proto/cluster_trust.h"

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <memory>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/monotonic.h"
#include "proto/cluster.grpc.pb.h"
#include "tests/fakes/test_certificates.h"

namespace somnus {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(40);
const std::string kSecret(32, 's');
const std::string kOtherSecret(32, 't');

// Counts the calls that get through.
class Service : public v1::ClusterService::Service {
 public:
  grpc::Status Heartbeat(grpc::ServerContext* context, const v1::HeartbeatRequest*,
                         v1::HeartbeatResponse*) override {
    ++calls;
    saw_token = saw_token || context->client_metadata().count("somnus-cluster-token") > 0;
    return grpc::Status::OK;
  }
  std::atomic<int> calls{0};
  std::atomic<bool> saw_token{false};
};

ClusterTrust WithSecret(const std::string& secret) {
  return ClusterTrust::Create(ClusterTrustOptions{.secret = secret}).value();
}

ClusterTrust WithCertificate(const TlsFiles& files, const std::string& secret = "") {
  ClusterTrustOptions options{.secret = secret, .tls = files, .reload_interval = absl::Seconds(1)};
  absl::StatusOr<ClusterTrust> trust = ClusterTrust::Create(options);
  EXPECT_TRUE(trust.ok()) << trust.status();
  return *trust;
}

class ClusterTrustTest : public ::testing::Test {
 protected:
  void Serve(const ClusterTrust& trust, const std::string& address) {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort(address, trust.Listener(address), &port);
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
    ASSERT_NE(server_, nullptr);
    address_ = absl::StartsWith(address, "unix:") ? address : absl::StrCat("127.0.0.1:", port);
  }
  void ServeTcp(const ClusterTrust& trust) { Serve(trust, "127.0.0.1:0"); }
  void ServeUnix(const ClusterTrust& trust) { Serve(trust, "unix:" + files_.Path("socket")); }

  // A call over a connection of its own.
  grpc::StatusCode Call(const std::shared_ptr<grpc::ChannelCredentials>& credentials) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    const auto stub =
        v1::ClusterService::NewStub(grpc::CreateCustomChannel(address_, credentials, arguments));
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + kPatience));
    v1::HeartbeatResponse response;
    return stub->Heartbeat(&context, v1::HeartbeatRequest(), &response).error_code();
  }
  grpc::StatusCode Call(const ClusterTrust& trust) { return Call(trust.Dialer(address_)); }

  TestCertificates files_;
  Service service_;
  std::unique_ptr<grpc::Server> server_;
  std::string address_;
};

TEST_F(ClusterTrustTest, OnAUnixSocketTheSecretIsRequired) {
  ServeUnix(WithSecret(kSecret));
  EXPECT_EQ(Call(WithSecret(kOtherSecret)), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(Call(grpc::experimental::LocalCredentials(UDS)), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(Call(ClusterTrust()), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(service_.calls, 0);
  EXPECT_EQ(Call(WithSecret(kSecret)), grpc::StatusCode::OK);
  EXPECT_EQ(service_.calls, 1);
  EXPECT_FALSE(service_.saw_token) << "handlers have no use for it";
}

TEST_F(ClusterTrustTest, OverTcpTheSecretMakesBothSidesKnown) {
  ServeTcp(WithSecret(kSecret));
  EXPECT_EQ(Call(WithSecret(kOtherSecret)), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(Call(ClusterTrust()), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(service_.calls, 0);
  EXPECT_EQ(Call(WithSecret(kSecret)), grpc::StatusCode::OK);
  EXPECT_EQ(service_.calls, 1);
}

TEST_F(ClusterTrustTest, TheSecretIsNotShownToAServerThatDoesNotKnowIt) {
  ServeTcp(WithSecret(kOtherSecret));
  EXPECT_EQ(Call(WithSecret(kSecret)), grpc::StatusCode::UNAVAILABLE);
  ServeTcp(ClusterTrust());
  EXPECT_EQ(Call(WithSecret(kSecret)), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(service_.calls, 0);
}

TEST_F(ClusterTrustTest, OverTlsTheTokenIsRequiredToo) {
  files_.MakeAuthority("ca");
  const TlsFiles member = files_.Make("member", "ca");
  ServeTcp(WithCertificate(member, kSecret));
  EXPECT_EQ(Call(WithCertificate(member)), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(Call(WithCertificate(member, kOtherSecret)), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(service_.calls, 0);
  EXPECT_EQ(Call(WithCertificate(member, kSecret)), grpc::StatusCode::OK);
}

TEST_F(ClusterTrustTest, OnlyCertificatesOfTheAuthorityThatAreValidNowCount) {
  files_.MakeAuthority("ca");
  files_.MakeAuthority("other");
  const TlsFiles member = files_.Make("member", "ca");
  TlsFiles stranger = files_.Make("stranger", "other");
  stranger.authority = member.authority;  // it would trust the server
  ServeTcp(WithCertificate(files_.Make("server", "ca")));
  EXPECT_EQ(Call(WithCertificate(stranger)), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(Call(WithCertificate(files_.Make("late", "ca", /*days=*/-1))), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(Call(ClusterTrust()), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(Call(WithSecret(kSecret)), grpc::StatusCode::UNAVAILABLE);
  std::ifstream authority(member.authority);
  grpc::SslCredentialsOptions anonymous;
  anonymous.pem_root_certs.assign(std::istreambuf_iterator<char>(authority), {});
  EXPECT_EQ(Call(grpc::SslCredentials(anonymous)), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(service_.calls, 0);
  EXPECT_EQ(Call(WithCertificate(member)), grpc::StatusCode::OK);
}

TEST_F(ClusterTrustTest, AServerOfAnotherAuthorityIsNotCalled) {
  files_.MakeAuthority("ca");
  files_.MakeAuthority("other");
  const TlsFiles member = files_.Make("member", "ca");
  TlsFiles stranger = files_.Make("stranger", "other");
  stranger.authority = member.authority;
  ServeTcp(WithCertificate(stranger));
  EXPECT_EQ(Call(WithCertificate(member)), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(service_.calls, 0);
}

TEST_F(ClusterTrustTest, ReplacedCertificatesCountForNewConnections) {
  files_.MakeAuthority("ca");
  files_.MakeAuthority("next");
  const TlsFiles served = files_.Make("server", "ca");
  const TlsFiles before = files_.Make("before", "ca");
  const std::string authority = files_.Path("kept.pem");
  std::filesystem::copy_file(before.authority, authority);
  ServeTcp(WithCertificate(served));
  EXPECT_EQ(Call(WithCertificate({before.certificate, before.key, authority})), grpc::StatusCode::OK);
  const TlsFiles after = files_.Make("after", "next");
  TestCertificates::Replace(files_.Make("replacement", "next"), served);
  const MonotonicTime deadline = MonotonicNow() + kPatience;
  while (Call(WithCertificate(after)) != grpc::StatusCode::OK) ASSERT_LT(MonotonicNow(), deadline);
  EXPECT_EQ(Call(WithCertificate({before.certificate, before.key, authority})),
            grpc::StatusCode::UNAVAILABLE);
}

TEST_F(ClusterTrustTest, ListenersBeyondLoopbackNeedProofs) {
  const ClusterTrust none;
  EXPECT_TRUE(none.CheckListen("unix:/tmp/x").ok());
  EXPECT_TRUE(none.CheckListen("127.0.0.1:0").ok());
  EXPECT_TRUE(none.CheckListen("127.1.2.3:80").ok());
  EXPECT_TRUE(none.CheckListen("[::1]:80").ok());
  for (const char* address :
       {"0.0.0.0:0", "10.0.0.1:80", "[::]:80", "[fe80::1]:80", "no.such.name.invalid:1"}) {
    EXPECT_TRUE(absl::IsFailedPrecondition(none.CheckListen(address))) << address;
    EXPECT_TRUE(WithSecret(kSecret).CheckListen(address).ok()) << address;
  }
  EXPECT_TRUE(ClusterTrust::Create(ClusterTrustOptions{.insecure = true})->CheckListen("0.0.0.0:0").ok());
}

TEST_F(ClusterTrustTest, TheSecretComesFromItsFileElseFromTheEnvironment) {
  const Environment environment = {{kClusterSecretVariable, kOtherSecret}};
  ClusterTrustOptions options;
  ASSERT_TRUE(ReadClusterSecret({}, &options).ok());
  EXPECT_EQ(options.secret, "");
  ASSERT_TRUE(ReadClusterSecret(environment, &options).ok());
  EXPECT_EQ(options.secret, kOtherSecret);
  options.secret_file = files_.Path("secret");
  std::ofstream(options.secret_file) << kSecret << "\n";
  chmod(options.secret_file.c_str(), 0640);
  ASSERT_TRUE(ReadClusterSecret(environment, &options).ok());
  EXPECT_EQ(options.secret, kSecret);
}

TEST_F(ClusterTrustTest, ASecretThatOthersKnowOrCanGuessIsRefused) {
  ClusterTrustOptions options{.secret_file = files_.Path("secret")};
  EXPECT_TRUE(absl::StrContains(ReadClusterSecret({}, &options).message(), "--cluster-secret-file: "));
  std::ofstream(options.secret_file) << kSecret;
  for (const int mode : {0604, 0602, 0620}) {
    chmod(options.secret_file.c_str(), mode);
    EXPECT_TRUE(absl::IsInvalidArgument(ReadClusterSecret({}, &options))) << mode;
  }
  chmod(options.secret_file.c_str(), 0600);
  EXPECT_TRUE(ReadClusterSecret({}, &options).ok());
  std::ofstream(options.secret_file) << std::string(31, 's') << "\n\n";
  EXPECT_TRUE(absl::IsInvalidArgument(ReadClusterSecret({}, &options)));
  std::ofstream(options.secret_file) << std::string(4097, 's');
  EXPECT_TRUE(absl::IsInvalidArgument(ReadClusterSecret({}, &options)));
  options.secret_file.clear();
  const absl::Status status = ReadClusterSecret({{kClusterSecretVariable, "short"}}, &options);
  EXPECT_TRUE(absl::StrContains(status.message(), "SOMNUS_CLUSTER_SECRET: ")) << status;
}

TEST_F(ClusterTrustTest, FilesOfNoUseAreNamed) {
  files_.MakeAuthority("ca");
  const TlsFiles good = files_.Make("a", "ca");
  const TlsFiles other = files_.Make("b", "ca");
  const struct {
    TlsFiles files;
    std::string flag;
  } cases[] = {{{good.certificate, good.key, ""}, "--cluster-ca: "},
               {{good.certificate, "", good.authority}, "--cluster-key: "},
               {{"", good.key, good.authority}, "--cluster-cert: "},
               {{"", "", good.authority}, "--cluster-cert: "},
               {{good.certificate, other.key, good.authority}, "--cluster-key: "},
               {{good.key, good.key, good.authority}, "--cluster-cert: "},
               {{good.certificate, good.certificate, good.authority}, "--cluster-key: "},
               {{good.certificate, good.key, good.key}, "--cluster-ca: "},
               {{good.certificate, good.key, "/no/such/file"}, "--cluster-ca: "}};
  for (const auto& one : cases) {
    const absl::Status status = ClusterTrust::Create(ClusterTrustOptions{.tls = one.files}).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status));
    EXPECT_TRUE(absl::StartsWith(status.message(), one.flag)) << status;
  }
}

}  // namespace
}  // namespace somnus
