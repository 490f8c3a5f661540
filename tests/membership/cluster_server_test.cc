#include "coordinator/membership/cluster_server.h"

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "proto/cluster.grpc.pb.h"
#include "proto/status.h"

namespace somnus {
namespace {

ClusterServerOptions Options(const std::string& address) {
  ClusterServerOptions options{.address = address};
  options.membership.world_size = 1;
  options.membership.version = "1";
  options.membership.hang_timeout = absl::Milliseconds(40);
  options.heartbeat_interval = absl::Milliseconds(10);
  return options;
}

v1::RegisterRequest Worker(const std::string& version) {
  v1::RegisterRequest request;
  request.set_worker_id("a");
  request.set_pid(7);
  request.set_address("unix:/a");
  request.set_version(version);
  return request;
}

// A clock that only the test moves.
class FakeClock {
 public:
  MonotonicTime Now() {
    absl::MutexLock lock(&mu_);
    ++reads_;
    return now_;
  }
  void Advance(absl::Duration duration) {
    absl::MutexLock lock(&mu_);
    now_ += duration;
  }
  // In steps, after each of which the watcher looks, as if never late.
  void AdvanceWatched(absl::Duration duration, absl::Duration step) {
    for (; duration > absl::ZeroDuration(); duration -= step) {
      Advance(step);
      AwaitLook();
    }
  }
  // Until the watcher has read the clock and used the time. Nobody else may use the clock meanwhile.
  void AwaitLook() {
    absl::MutexLock lock(&mu_);
    const int64_t enough = reads_ + 2;
    const auto read = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return reads_ >= enough; };
    mu_.Await(absl::Condition(&read));
  }

 private:
  absl::Mutex mu_;
  MonotonicTime now_ ABSL_GUARDED_BY(mu_) = absl::Seconds(1);
  int64_t reads_ ABSL_GUARDED_BY(mu_) = 0;
};

// A server whose clock only the test moves, and a client of the server.
class WatchedClusterTest : public ::testing::Test {
 protected:
  void Start(const std::string& address, int32_t world_size, absl::Duration hang_timeout) {
    ClusterServerOptions options = Options(address);
    options.membership.world_size = world_size;
    options.membership.hang_timeout = hang_timeout;
    options.membership.stall_threshold = absl::Minutes(1);
    options.now = [this] { return clock_.Now(); };
    auto server = ClusterServer::Start(options);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    stub_ = v1::ClusterService::NewStub(
        grpc::CreateChannel(server_->address(), grpc::InsecureChannelCredentials()));
  }
  absl::Status Register(const v1::RegisterRequest& worker, v1::RegisterResponse* response = nullptr) {
    grpc::ClientContext context;
    v1::RegisterResponse ignored;
    return FromGrpcStatus(stub_->Register(&context, worker, response != nullptr ? response : &ignored));
  }
  absl::Status Register(const std::string& id, int rank) {
    v1::RegisterRequest worker = Worker("1");
    worker.set_worker_id(id);
    worker.set_preferred_rank(rank);
    return Register(worker);
  }
  // Whether the worker is a member.
  bool Beat(const std::string& id, int64_t step_id = 0) {
    grpc::ClientContext context;
    v1::HeartbeatRequest request;
    request.set_worker_id(id);
    request.set_last_step_id(step_id);
    request.set_step_in_progress(step_id > 0);
    v1::HeartbeatResponse response;
    return stub_->Heartbeat(&context, request, &response).ok() && response.known();
  }

  FakeClock clock_;
  std::unique_ptr<ClusterServer> server_;
  std::unique_ptr<v1::ClusterService::Stub> stub_;
};

TEST_F(WatchedClusterTest, AWorkerRegistersAtEitherKindOfAddress) {
  for (const char* address : {"", "127.0.0.1:0"}) {
    Start(address, 1, absl::Hours(1));
    EXPECT_FALSE(absl::EndsWith(server_->address(), ":0"));
    EXPECT_TRUE(absl::IsFailedPrecondition(Register(Worker("2"))));
    v1::RegisterRequest worker = Worker("1");
    worker.mutable_snapshot()->set_state("asleep");
    v1::RegisterResponse response;
    ASSERT_TRUE(Register(worker, &response).ok());
    EXPECT_EQ(response.heartbeat_interval_ms(), 10);
    const auto group = server_->WaitForGroup(absl::InfiniteDuration());
    ASSERT_TRUE(group.ok());
    EXPECT_EQ((*group)[0].worker_id(), "a");
    EXPECT_EQ((*group)[0].snapshot().state(), "asleep");
  }
}

TEST_F(WatchedClusterTest, AWorkerSendsFourHeartbeatsInHangTimeout) {
  Start("", 1, absl::Milliseconds(20));
  v1::RegisterResponse response;
  ASSERT_TRUE(Register(Worker("1"), &response).ok());
  EXPECT_EQ(response.heartbeat_interval_ms(), 5);
}

// Every silent worker is reported once, and a replacement as the replaced worker.
TEST_F(WatchedClusterTest, TheWatchGoesOnAfterASilence) {
  Start("", 2, absl::Seconds(4));
  ASSERT_TRUE(Register("a", 0).ok());
  ASSERT_TRUE(Register("b", 1).ok());
  ASSERT_TRUE(server_->WaitForGroup(absl::InfiniteDuration()).ok());
  absl::Mutex mu;
  std::vector<std::string> silent;
  server_->OnSilence([&](const SilentMember& member) {
    absl::MutexLock lock(&mu);
    EXPECT_TRUE(absl::IsUnavailable(member.status));
    EXPECT_EQ(member.worker.pid(), 7);
    silent.push_back(absl::StrCat(member.rank, member.worker.worker_id()));
  });
  const auto seen = [&] {
    absl::MutexLock lock(&mu);
    return silent;
  };
  const auto pass = [&](int seconds) {
    clock_.AdvanceWatched(absl::Seconds(seconds), absl::Milliseconds(250));
  };
  using Silent = std::vector<std::string>;
  pass(3);
  ASSERT_TRUE(Beat("a"));
  pass(1);
  EXPECT_EQ(seen(), Silent());
  pass(1);
  EXPECT_EQ(seen(), Silent({"1b"}));
  server_->Reopen(1);
  EXPECT_FALSE(Beat("b"));
  ASSERT_TRUE(Register("c", 1).ok());
  ASSERT_TRUE(Beat("a"));
  const auto group = server_->WaitForGroup(absl::InfiniteDuration());
  ASSERT_TRUE(group.ok());
  EXPECT_EQ((*group)[1].worker_id(), "c");
  pass(3);
  ASSERT_TRUE(Beat("a"));
  pass(2);
  EXPECT_EQ(seen(), Silent({"1b", "1c"}));
  EXPECT_EQ(server_->Members()[1]->silence, absl::Seconds(5));
  pass(4);
  EXPECT_EQ(seen(), Silent({"1b", "1c", "0a"}));
  server_->OnSilence(nullptr);
}

TEST_F(WatchedClusterTest, AWatcherThatStoodStillBlamesNobody) {
  Start("", 1, absl::Seconds(4));
  ASSERT_TRUE(Register("a", 0).ok());
  ASSERT_TRUE(server_->WaitForGroup(absl::InfiniteDuration()).ok());
  absl::Notification silent;
  server_->OnSilence([&](const SilentMember&) { silent.Notify(); });
  clock_.AwaitLook();
  clock_.Advance(absl::Hours(1));
  clock_.AwaitLook();
  clock_.AdvanceWatched(absl::Seconds(4), absl::Milliseconds(250));
  EXPECT_FALSE(silent.HasBeenNotified());
  clock_.AdvanceWatched(absl::Milliseconds(250), absl::Milliseconds(250));
  EXPECT_TRUE(silent.HasBeenNotified());
  server_->OnSilence(nullptr);
}

TEST_F(WatchedClusterTest, AStoppedWorkerOfThisHostIsCalledStopped) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    while (true) pause();
  }
  kill(child, SIGSTOP);
  ASSERT_EQ(waitpid(child, nullptr, WUNTRACED), child);
  for (const std::string address : {"unix:/a", "10.0.0.7:1"}) {
    Start("", 1, absl::Seconds(4));
    v1::RegisterRequest worker = Worker("1");
    worker.set_address(address);
    worker.set_pid(child);
    ASSERT_TRUE(Register(worker).ok());
    absl::Notification silent;
    server_->OnSilence([&](const SilentMember& member) {
      const bool said = absl::EndsWith(member.status.message(), "; it is stopped by a signal");
      EXPECT_EQ(said, address == "unix:/a") << member.status;
      silent.Notify();
    });
    clock_.AdvanceWatched(absl::Seconds(5), absl::Milliseconds(250));
    EXPECT_TRUE(silent.HasBeenNotified());
    server_->OnSilence(nullptr);
  }
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
}

TEST_F(WatchedClusterTest, AStallIsReportedWhenItComesAndWhenItGoes) {
  Start("", 1, absl::Hours(2));
  ASSERT_TRUE(Register("a", 0).ok());
  ASSERT_TRUE(server_->WaitForGroup(absl::InfiniteDuration()).ok());
  absl::Notification stalled, going_on;
  server_->OnStall([&](const absl::Status& status) {
    if (!status.ok() && !stalled.HasBeenNotified()) stalled.Notify();
    if (status.ok()) going_on.Notify();
  });
  ASSERT_TRUE(Beat("a", 3));
  clock_.Advance(absl::Seconds(61));
  stalled.WaitForNotification();
  EXPECT_FALSE(going_on.HasBeenNotified());
  ASSERT_TRUE(Beat("a", 4));
  going_on.WaitForNotification();
  server_->OnStall(nullptr);
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
