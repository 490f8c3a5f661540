// The port that a worker opens for ranks on other hosts, from NewGroup to JoinGroup or the next epoch.

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/worker/fake_parts.h"
#include "worker/comm/tcp_socket.h"

namespace somnus {
namespace {

class OpenPortTest : public testing::Test {
 protected:
  OpenPortTest() : worker_({.num_threads = 1}, FakeParts(&control_)) { BeginEpoch(1); }

  void BeginEpoch(int64_t epoch) {
    const auto snapshot = worker_.Fence(epoch, absl::Minutes(1), [] {});
    ASSERT_TRUE(snapshot.ok()) << snapshot.status();
  }
  absl::StatusOr<v1::NewGroupResponse> NewGroup(int64_t epoch, const std::string& host = "127.0.0.1") {
    v1::NewGroupRequest request;
    request.set_group_epoch(epoch);
    request.set_listen_host(host);
    return worker_.NewGroup(request);
  }
  // On the loopback that is known at once.
  static bool CanConnect(int port) {
    const absl::StatusOr<std::vector<SocketAddress>> address = ResolveTcp(absl::StrCat("127.0.0.1:", port));
    if (!address.ok()) return false;
    const absl::StatusOr<UniqueFd> connection = StartConnect(address->front());
    return connection.ok() && FinishConnect(connection->get()).ok();
  }

  FakeModelControl control_;
  Worker worker_;
};

TEST_F(OpenPortTest, ANewEpochClosesIt) {
  const auto opened = NewGroup(1);
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_TRUE(opened->nccl_unique_id().empty());
  EXPECT_TRUE(CanConnect(opened->port()));
  BeginEpoch(2);
  EXPECT_FALSE(CanConnect(opened->port()));
  EXPECT_TRUE(absl::IsFailedPrecondition(NewGroup(1).status())) << "epoch 1 is over";
}

TEST_F(OpenPortTest, ALaterCallReplacesIt) {
  const auto first = NewGroup(1), second = NewGroup(1);
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_FALSE(CanConnect(first->port()));
  EXPECT_TRUE(CanConnect(second->port()));
}

TEST_F(OpenPortTest, AHostThatIsNotKnownIsNamed) {
  const absl::Status status = NewGroup(1, "no.such.host.invalid").status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_NE(status.message().find("no.such.host.invalid"), std::string::npos) << status;
}

TEST_F(OpenPortTest, AddressesWithoutAnOpenPortAreRefused) {
  ASSERT_TRUE(worker_.LoadModel(LoadRequest(/*rank=*/0, /*world_size=*/2), [](int64_t, int64_t) {}).ok());
  v1::JoinGroupRequest request = JoinRequest(/*rank=*/0, /*world_size=*/2, "group");
  for (const char* address : {"127.0.0.1:1", "127.0.0.1:2"}) {
    request.mutable_parallel()->add_rank_addresses(address);
  }
  EXPECT_TRUE(absl::IsFailedPrecondition(worker_.JoinGroup(request)));
}

}  // namespace
}  // namespace somnus
