#include "coordinator/membership/cluster_server.h"

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "absl/strings/match.h"
#include "absl/strings/strip.h"
#include "absl/synchronization/notification.h"
#include "proto/cluster.grpc.pb.h"
#include "proto/status.h"

namespace somnus {
namespace {

ClusterServerOptions Options(const std::string& address) {
  ClusterServerOptions options;
  options.address = address;
  options.membership.world_size = 1;
  options.membership.version = "1";
  options.membership.heartbeat_timeout = absl::Milliseconds(30);
  options.heartbeat_interval = absl::Milliseconds(10);
  return options;
}

v1::RegisterRequest Worker(const std::string& version) {
  v1::RegisterRequest request;
  request.set_worker_id("a");
  request.set_address("unix:/a");
  request.set_version(version);
  return request;
}

TEST(ClusterServerTest, AWorkerRegistersAndItsSilenceIsReportedOnce) {
  for (const char* address : {"", "127.0.0.1:0"}) {
    auto server = ClusterServer::Start(Options(address));
    ASSERT_TRUE(server.ok()) << server.status();
    EXPECT_FALSE(absl::EndsWith((*server)->address(), ":0"));
    auto stub = v1::ClusterService::NewStub(
        grpc::CreateChannel((*server)->address(), grpc::InsecureChannelCredentials()));
    {
      grpc::ClientContext context;
      v1::RegisterResponse response;
      EXPECT_TRUE(
          absl::IsFailedPrecondition(FromGrpcStatus(stub->Register(&context, Worker("2"), &response))));
    }
    grpc::ClientContext context;
    v1::RegisterResponse response;
    ASSERT_TRUE(stub->Register(&context, Worker("1"), &response).ok());
    EXPECT_EQ(response.heartbeat_interval_ms(), 10);
    const auto group = (*server)->WaitForGroup(absl::Minutes(1));
    ASSERT_TRUE(group.ok());
    EXPECT_EQ((*group)[0].worker_id(), "a");
    absl::Notification silent;
    (*server)->OnSilence([&](const absl::Status& status) {
      EXPECT_TRUE(absl::IsUnavailable(status));
      silent.Notify();
    });
    silent.WaitForNotification();
    (*server)->OnSilence(nullptr);
  }
}

TEST(ClusterServerTest, TheSocketAndItsDirectoryArePrivateAndGoWithTheServer) {
  auto server = ClusterServer::Start(Options(""));
  ASSERT_TRUE(server.ok());
  const std::filesystem::path socket(std::string(absl::StripPrefix((*server)->address(), "unix:")));
  EXPECT_TRUE(std::filesystem::exists(socket));
  EXPECT_EQ(std::filesystem::status(socket.parent_path()).permissions(), std::filesystem::perms::owner_all);
  server->reset();
  EXPECT_FALSE(std::filesystem::exists(socket.parent_path()));
}

TEST(ClusterServerTest, ATakenPortIsAnErrorThatNamesIt) {
  auto first = ClusterServer::Start(Options("127.0.0.1:0"));
  ASSERT_TRUE(first.ok());
  const auto second = ClusterServer::Start(Options((*first)->address()));
  EXPECT_TRUE(absl::IsUnavailable(second.status()));
  EXPECT_TRUE(absl::StrContains(second.status().message(), (*first)->address()));
}

}  // namespace
}  // namespace somnus
