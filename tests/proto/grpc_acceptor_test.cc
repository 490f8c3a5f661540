// A gRPC listener through a lack of descriptors: strangers take the descriptors for clients, and no more; the
// listener serves again when the strangers leave.

#include "proto/grpc_acceptor.h"

#include <fcntl.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "proto/cluster.grpc.pb.h"
#include "proto/unproven_connections.h"
#include "tests/fakes/temp_dir.h"

namespace somnus {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(60);

// Sets the descriptor limit of this process for the object's lifetime.
class Limit {
 public:
  explicit Limit(rlim_t descriptors) {
    getrlimit(RLIMIT_NOFILE, &before_);
    const rlimit lowered = {.rlim_cur = descriptors, .rlim_max = before_.rlim_max};
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &lowered), 0);
  }
  ~Limit() { setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_;
};

grpc::StatusCode CallOver(const std::shared_ptr<grpc::Channel>& channel) {
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(20)));
  v1::HeartbeatResponse response;
  return v1::ClusterService::NewStub(channel)
      ->Heartbeat(&context, v1::HeartbeatRequest(), &response)
      .error_code();
}

class Server {
 public:
  explicit Server(DescriptorUse use, const std::string& address = "127.0.0.1:0", int max_handshakes = 0) {
    acceptor_ = *GrpcAcceptor::Open(address, use, max_handshakes);
    address_ = acceptor_->port() > 0 ? absl::StrCat("127.0.0.1:", acceptor_->port()) : address;
    grpc::ServerBuilder builder;
    acceptor_->AddTo(&builder, grpc::InsecureServerCredentials());
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
    EXPECT_EQ(acceptor_->Start(), absl::OkStatus());
  }
  ~Server() {
    acceptor_->Stop();
    server_->Shutdown(std::chrono::system_clock::now());
  }

  GrpcAcceptor& acceptor() { return *acceptor_; }
  const std::string& address() const { return address_; }
  // Calls over a connection of its own.
  grpc::StatusCode Call() {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    return CallOver(grpc::CreateCustomChannel(address_, grpc::InsecureChannelCredentials(), arguments));
  }

 private:
  std::string address_;
  v1::ClusterService::Service service_;  // each call is answered, with UNIMPLEMENTED
  std::unique_ptr<GrpcAcceptor> acceptor_;
  std::unique_ptr<grpc::Server> server_;
};

int Connect(const sockaddr* address, socklen_t size) {
  const int fd = socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return -1;
  EXPECT_EQ(connect(fd, address, size), 0);
  return fd;
}

// To "127.0.0.1:port" or "unix:/path".
int Connect(const std::string& to) {
  if (absl::string_view path = to; absl::ConsumePrefix(&path, "unix:")) {
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    path.copy(address.sun_path, sizeof(address.sun_path) - 1);
    return Connect(reinterpret_cast<const sockaddr*>(&address), sizeof(address));
  }
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(std::stoi(to.substr(to.find(':') + 1))));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return Connect(reinterpret_cast<const sockaddr*>(&address), sizeof(address));
}

void CloseAll(std::vector<int>* fds) {
  for (const int fd : *fds) close(fd);
  fds->clear();
}

void AwaitAnswer(Server* server) {
  const absl::Time deadline = absl::Now() + kPatience;
  while (server->Call() != grpc::StatusCode::UNIMPLEMENTED) ASSERT_LT(absl::Now(), deadline);
}

TEST(DescriptorsTest, SomeAreKeptBackOfAnyLimit) {
  for (const int64_t limit : {64, 1024, 1 << 20}) {
    const DescriptorBounds bounds = DivideDescriptors(limit);
    EXPECT_GT(bounds.clients, limit / 2);
    EXPECT_LT(bounds.clients, bounds.operators);
    EXPECT_LT(bounds.operators, bounds.workers);
    EXPECT_LT(bounds.workers, limit);
    EXPECT_EQ(bounds.all, limit);
  }
}

TEST(DescriptorsTest, TheSoftLimitBecomesTheHardOne) {
  const Limit lowered(64);
  rlimit limit;
  EXPECT_GE(RaiseDescriptorLimit().all, 64);
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_EQ(limit.rlim_cur, limit.rlim_max);
}

TEST(GrpcAcceptorTest, ServesTheAddressThatItNames) {
  Server server(DescriptorUse::kClients);
  EXPECT_GT(server.acceptor().port(), 0);
  EXPECT_EQ(server.Call(), grpc::StatusCode::UNIMPLEMENTED);
  const std::string taken = absl::StrCat("127.0.0.1:", server.acceptor().port());
  const absl::Status refused = GrpcAcceptor::Open(taken, DescriptorUse::kClients).status();
  EXPECT_EQ(refused.message(), absl::StrCat("cannot listen on ", taken, ": Address already in use"));
  EXPECT_EQ(GrpcAcceptor::Open("nowhere", DescriptorUse::kClients).status().code(),
            absl::StatusCode::kInvalidArgument);
}

void ExpectToComeBack(DescriptorUse use, const std::string& address) {
  Server server(use, address);
  EXPECT_EQ(server.Call(), grpc::StatusCode::UNIMPLEMENTED);
  std::vector<int> held;
  {
    // No descriptor is left: no accept of this process succeeds. gRPC's own listener would end here.
    const Limit lowered(256);
    const int stranger = Connect(server.address());
    for (int fd; (fd = open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0;) held.push_back(fd);
    close(stranger);
    const int late = held.back();
    held.pop_back();
    close(late);
    const int another = Connect(server.address());  // takes the last descriptor; no accept succeeds
    absl::SleepFor(absl::Milliseconds(300));
    close(another);
    CloseAll(&held);
  }
  AwaitAnswer(&server);
}

TEST(GrpcAcceptorTest, ComesBackAfterALackOfDescriptors) {
  ExpectToComeBack(DescriptorUse::kClients, "127.0.0.1:0");
}

TEST(GrpcAcceptorTest, ASocketForWorkersComesBackToo) {
  const TempDir directory;
  ExpectToComeBack(DescriptorUse::kWorkers, absl::StrCat("unix:", directory.path(), "/some.sock"));
}

TEST(GrpcAcceptorTest, ASocketTakesThePlaceOfOneThatWasLeftAndIsItsUsersAlone) {
  const TempDir directory;
  const std::string path = absl::StrCat(directory.path(), "/some.sock"),
                    address = absl::StrCat("unix:", path);
  sockaddr_un left = {};
  left.sun_family = AF_UNIX;
  path.copy(left.sun_path, sizeof(left.sun_path) - 1);
  const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
  ASSERT_EQ(bind(fd, reinterpret_cast<const sockaddr*>(&left), sizeof(left)), 0);
  close(fd);
  {
    Server server(DescriptorUse::kWorkers, address);
    EXPECT_EQ(server.Call(), grpc::StatusCode::UNIMPLEMENTED);
    struct stat found;
    ASSERT_EQ(lstat(path.c_str(), &found), 0);
    EXPECT_EQ(found.st_mode & 0777, 0600u);
  }
  EXPECT_NE(access(path.c_str(), F_OK), 0) << "it is removed";
  std::ofstream(path) << "a file";
  const absl::Status refused = GrpcAcceptor::Open(address, DescriptorUse::kWorkers).status();
  EXPECT_EQ(refused.message(), absl::StrCat("cannot listen on ", address, ": Address already in use"));
  EXPECT_EQ(access(path.c_str(), F_OK), 0) << "no file of anybody's is removed";
  const std::string too_long = absl::StrCat("unix:/", std::string(200, 'x'));
  EXPECT_TRUE(absl::IsInvalidArgument(GrpcAcceptor::Open(too_long, DescriptorUse::kWorkers).status()));
}

// Strangers who connect and say nothing, or begin what is no handshake, are bounded: the oldest give way.
TEST(GrpcAcceptorTest, OfStrangersTheOldestGiveWay) {
  constexpr int kMost = 4, kStrangers = 40;
  Server server(DescriptorUse::kWorkers, "127.0.0.1:0", kMost);
  std::vector<int> strangers;
  for (int i = 0; i < kStrangers; ++i) {
    strangers.push_back(Connect(server.address()));
    if (i % 2 == 0) {
      EXPECT_EQ(write(strangers.back(), "PRI", 3), 3);
    }
  }
  const absl::Time deadline = absl::Now() + kPatience;
  while (server.acceptor().num_dropped() < kStrangers - kMost) ASSERT_LT(absl::Now(), deadline);
  // The dropped ones read an end; the newest are open.
  for (int i = 0; i < kStrangers; ++i) {
    pollfd open = {strangers[i], POLLRDHUP, 0};
    EXPECT_EQ(poll(&open, 1, i < kStrangers - kMost ? 60'000 : 0), i < kStrangers - kMost ? 1 : 0) << i;
  }
  EXPECT_EQ(server.Call(), grpc::StatusCode::UNIMPLEMENTED) << "a member comes in";
  CloseAll(&strangers);
}

TEST(GrpcAcceptorTest, WhoHasCalledIsNoStranger) {
  for (const char* address : {"127.0.0.1:0", "[::]:0"}) {
    Server server(DescriptorUse::kWorkers, address, /*max_handshakes=*/2);
    const auto channel = grpc::CreateChannel(server.address(), grpc::InsecureChannelCredentials());
    EXPECT_EQ(CallOver(channel), grpc::StatusCode::UNIMPLEMENTED);
    std::vector<int> strangers;
    for (int i = 0; i < 20; ++i) strangers.push_back(Connect(server.address()));
    const absl::Time deadline = absl::Now() + kPatience;
    while (server.acceptor().num_dropped() < 18) ASSERT_LT(absl::Now(), deadline);
    EXPECT_EQ(channel->GetState(false), GRPC_CHANNEL_READY);
    EXPECT_EQ(CallOver(channel), grpc::StatusCode::UNIMPLEMENTED);
    EXPECT_EQ(server.acceptor().num_dropped(), 18) << "over the first connection";
    CloseAll(&strangers);
  }
}

// A pair of connected sockets of a listener at 127.0.0.1 or [::1], and the name of the dialling side.
struct Pair {
  int dialler = -1, accepted = -1;
  std::string peer;
};

Pair MakePair() {
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  EXPECT_EQ(bind(listener, reinterpret_cast<sockaddr*>(&address), size), 0);
  EXPECT_EQ(listen(listener, 1), 0);
  EXPECT_EQ(getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size), 0);
  Pair pair;
  pair.dialler = Connect(reinterpret_cast<const sockaddr*>(&address), size);
  pair.accepted = accept(listener, reinterpret_cast<sockaddr*>(&address), &size);
  pair.peer = absl::StrCat("ipv4:127.0.0.1:", ntohs(address.sin_port));
  close(listener);
  return pair;
}

bool HasEnd(int fd) {
  pollfd open = {fd, POLLRDHUP, 0};
  return poll(&open, 1, 0) == 1;
}

TEST(UnprovenConnectionsTest, ProvenEndedAndOldConnectionsDoNotCount) {
  MonotonicTime now = absl::Hours(1);
  UnprovenConnections unproven(2, absl::Seconds(10), [&now] { return now; });
  Pair pairs[6];
  for (Pair& pair : pairs) pair = MakePair();
  EXPECT_FALSE(unproven.Add(pairs[0].accepted));
  EXPECT_FALSE(unproven.Add(pairs[1].accepted));
  unproven.Prove(pairs[0].peer);
  unproven.Prove("unix:");
  EXPECT_FALSE(unproven.Add(pairs[2].accepted)) << "the first is proven";
  shutdown(pairs[1].accepted, SHUT_RDWR);  // as gRPC does before it closes
  EXPECT_FALSE(unproven.Add(pairs[3].accepted)) << "the second has ended";
  now += absl::Seconds(11);
  EXPECT_FALSE(unproven.Add(pairs[4].accepted)) << "the others have had their handshake";
  EXPECT_FALSE(unproven.Add(pairs[5].accepted));
  for (const int i : {0, 2, 3, 4, 5}) EXPECT_FALSE(HasEnd(pairs[i].dialler)) << i;
  Pair last = MakePair();
  EXPECT_TRUE(unproven.Add(last.accepted));
  EXPECT_EQ(unproven.num_closed(), 1);
  EXPECT_TRUE(HasEnd(pairs[4].dialler)) << "the oldest";
  EXPECT_FALSE(HasEnd(pairs[5].dialler));
  for (const Pair& pair : pairs) close(pair.dialler), close(pair.accepted);
  close(last.dialler), close(last.accepted);
}

}  // namespace
}  // namespace somnus
