// A gRPC listener through a lack of descriptors: strangers take the descriptors for clients, and no more; the
// listener serves again when the strangers leave.

#include "proto/grpc_acceptor.h"

#include <fcntl.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "proto/cluster.grpc.pb.h"

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

class Server {
 public:
  explicit Server(DescriptorUse use) {
    acceptor_ = *GrpcAcceptor::Open("127.0.0.1:0", use);
    grpc::ServerBuilder builder;
    acceptor_->AddTo(&builder, grpc::InsecureServerCredentials());
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
    acceptor_->Start();
  }
  ~Server() {
    acceptor_->Stop();
    server_->Shutdown(std::chrono::system_clock::now());
  }

  GrpcAcceptor& acceptor() { return *acceptor_; }
  // Calls over a connection of its own.
  grpc::StatusCode Call() {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    const auto channel = grpc::CreateCustomChannel(absl::StrCat("127.0.0.1:", acceptor_->port()),
                                                   grpc::InsecureChannelCredentials(), arguments);
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(20)));
    v1::HeartbeatResponse response;
    return v1::ClusterService::NewStub(channel)
        ->Heartbeat(&context, v1::HeartbeatRequest(), &response)
        .error_code();
  }

 private:
  v1::ClusterService::Service service_;  // answers "unimplemented", which is an answer
  std::unique_ptr<GrpcAcceptor> acceptor_;
  std::unique_ptr<grpc::Server> server_;
};

int Connect(int port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return -1;
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  return fd;
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
    EXPECT_EQ(bounds.workers, limit);
  }
}

TEST(DescriptorsTest, TheSoftLimitBecomesTheHardOne) {
  const Limit lowered(64);
  rlimit limit;
  EXPECT_GE(RaiseDescriptorLimit().workers, 64);
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

TEST(GrpcAcceptorTest, ComesBackAfterALackOfDescriptors) {
  Server server(DescriptorUse::kClients);
  EXPECT_EQ(server.Call(), grpc::StatusCode::UNIMPLEMENTED);
  std::vector<int> held;
  {
    // No descriptor is left: no accept of this process succeeds. gRPC's own listener would end here.
    const Limit lowered(256);
    const int stranger = Connect(server.acceptor().port());
    for (int fd; (fd = open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0;) held.push_back(fd);
    close(stranger);
    const int late = held.back();
    held.pop_back();
    close(late);
    const int another = Connect(server.acceptor().port());  // takes the last descriptor; no accept succeeds
    absl::SleepFor(absl::Milliseconds(300));
    close(another);
    CloseAll(&held);
  }
  AwaitAnswer(&server);
}

}  // namespace
}  // namespace somnus
