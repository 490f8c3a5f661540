// Two sides with different secrets: the client's error and the server's log say so in words.

#include "proto/handshake.h"

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "proto/cluster.grpc.pb.h"
#include "proto/cluster_trust.h"
#include "proto/status.h"

namespace somnus {
namespace {

ClusterTrust TrustBy(char letter) {
  return *ClusterTrust::Create(ClusterTrustOptions{.secret = std::string(kMinSecretBytes, letter)});
}

TEST(HandshakeTest, AnotherSecretIsSaidInWordsOnBothSides) {
  ::testing::internal::CaptureStdout();  // where a process without InitLogging logs to
  setenv("GRPC_VERBOSITY", "NONE", 1);
  LogFailedHandshakes();
  grpc::ServerBuilder builder;
  v1::ClusterService::Service service;
  int port = 0;
  const std::string local = "127.0.0.1:0";
  builder.AddListeningPort(local, TrustBy('a').Listener(local), &port);
  builder.RegisterService(&service);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  const std::string address = absl::StrCat("127.0.0.1:", port);
  const auto channel = grpc::CreateChannel(address, TrustBy('b').Dialer(address));
  grpc::ClientContext context;
  v1::HeartbeatResponse response;
  const grpc::Status refused =
      v1::ClusterService::NewStub(channel)->Heartbeat(&context, v1::HeartbeatRequest(), &response);
  const absl::Status explained = ExplainHandshake(FromGrpcStatus(refused));
  EXPECT_TRUE(absl::IsUnavailable(explained)) << explained;
  EXPECT_EQ(
      explained.message(),
      "the TLS handshake has failed: the other side has another cluster secret (--cluster-secret-file or "
      "SOMNUS_CLUSTER_SECRET), or certificates of another authority")
      << refused.error_message();
  while (NumFailedHandshakes() == 0) absl::SleepFor(absl::Milliseconds(1));  // the server's side fails later
  server->Shutdown();
  const std::string log = ::testing::internal::GetCapturedStdout();
  EXPECT_NE(log.find("a TLS handshake on a gRPC port has failed ("), std::string::npos) << log;
}

TEST(HandshakeTest, OtherErrorsStayWhatTheyAre) {
  for (const absl::Status& status : {absl::UnavailableError("connection refused"), absl::OkStatus(),
                                     absl::PermissionDeniedError("Tls handshake failed")})
    EXPECT_EQ(ExplainHandshake(status), status);
}

}  // namespace
}  // namespace somnus
