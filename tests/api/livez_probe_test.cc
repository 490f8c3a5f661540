// The coordinator's question to itself: answered by a live server, by one whose engine has failed, and by
// nobody.

#include "coordinator/livez_probe.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/api/api_server_fixture.h"

namespace somnus {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(20);

class LivezProbeTest : public ApiServerTest {};

TEST_F(LivezProbeTest, LivesWhileLoadingAndServingAndNotAfterAFailure) {
  Start();
  EXPECT_TRUE(ProbeLivez("127.0.0.1", server_->admin_port(), /*tls=*/false, kPatience));
  server_->SetModel(FakeModel(engine_));
  EXPECT_TRUE(ProbeLivez("localhost", server_->admin_port(), /*tls=*/false, kPatience));
  EXPECT_TRUE(ProbeLivez("0.0.0.0", server_->admin_port(), /*tls=*/false, kPatience));
  engine_->set_state(EngineState::kFailed);
  EXPECT_FALSE(ProbeLivez("127.0.0.1", server_->admin_port(), /*tls=*/false, kPatience));
}

TEST_F(LivezProbeTest, AServerThatDoesNotRespondDoesNotLive) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  ASSERT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size), 0);
  const int port = ntohs(address.sin_port);
  EXPECT_FALSE(ProbeLivez("127.0.0.1", port, /*tls=*/false, kPatience));  // nobody listens
  ASSERT_EQ(listen(fd, 1), 0);
  EXPECT_FALSE(ProbeLivez("127.0.0.1", port, /*tls=*/false, absl::Milliseconds(50)));  // nobody accepts
  close(fd);
}

}  // namespace
}  // namespace somnus
