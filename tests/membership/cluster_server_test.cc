#include "coordinator/membership/cluster_server.h"

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "absl/strings/match.h"
#include "absl/strings/strip.h"
#include "absl/synchronization/mutex.h"
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

// A clock that only the test moves.
class FakeClock {
 public:
  MonotonicTime Now() const {
    absl::MutexLock lock(&mu_);
    return now_;
  }
  void Advance(absl::Duration duration) {
    absl::MutexLock lock(&mu_);
    now_ += duration;
  }

 private:
  mutable absl::Mutex mu_;
  MonotonicTime now_ ABSL_GUARDED_BY(mu_) = absl::Seconds(1);
};

TEST(ClusterServerTest, AStallIsReportedWhenItComesAndWhenItGoes) {
  FakeClock clock;
  ClusterServerOptions options = Options("");
  options.membership.heartbeat_timeout = absl::Hours(2);
  options.membership.stall_threshold = absl::Minutes(1);
  options.now = [&] { return clock.Now(); };
  auto server = ClusterServer::Start(options);
  ASSERT_TRUE(server.ok()) << server.status();
  auto stub = v1::ClusterService::NewStub(
      grpc::CreateChannel((*server)->address(), grpc::InsecureChannelCredentials()));
  const auto beat = [&](int64_t step_id) {
    grpc::ClientContext context;
    v1::HeartbeatRequest request;
    request.set_worker_id("a");
    request.set_last_step_id(step_id);
    request.set_step_in_progress(true);
    v1::HeartbeatResponse response;
    return stub->Heartbeat(&context, request, &response).ok() && response.known();
  };
  grpc::ClientContext context;
  v1::RegisterResponse response;
  ASSERT_TRUE(stub->Register(&context, Worker("1"), &response).ok());
  ASSERT_TRUE((*server)->WaitForGroup(absl::Minutes(1)).ok());
  absl::Notification stalled, going_on;
  (*server)->OnStall([&](const absl::Status& status) {
    if (!status.ok() && !stalled.HasBeenNotified()) stalled.Notify();
    if (status.ok()) going_on.Notify();
  });
  ASSERT_TRUE(beat(3));
  clock.Advance(absl::Seconds(61));
  stalled.WaitForNotification();
  EXPECT_FALSE(going_on.HasBeenNotified());
  ASSERT_TRUE(beat(4));
  going_on.WaitForNotification();
  (*server)->OnStall(nullptr);
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
