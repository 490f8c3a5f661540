// /metrics may have to wait for an engine's lock: it is answered on the request pool, and the I/O thread,
// which serves all connections, goes on meanwhile.

#include <gtest/gtest.h>

#include "tests/api/api_server_fixture.h"
#include "tests/api/gated_tokenizer.h"

namespace somnus {
namespace {

// Tells its counts only through the gate.
class GatedEngine : public FakeEngine {
 public:
  explicit GatedEngine(Gate* gate) : gate_(gate) {}
  EngineStats Stats() const override {
    gate_->Pass();
    return FakeEngine::Stats();
  }

 private:
  Gate* const gate_;
};

class RequestPoolTest : public ApiServerTest {
 protected:
  void TearDown() override {
    gate_.Open();
    server_->Shutdown(absl::ZeroDuration());
  }
  void ServeGated() {
    Start();
    server_->SetModel(FakeModel(std::make_shared<GatedEngine>(&gate_)));
  }

  Gate gate_;
};

TEST_F(RequestPoolTest, WhileAnEngineIsAskedForMetricsTheIoThreadServesOthers) {
  ServeGated();
  for (const uint16_t port : {server_->port(), server_->admin_port()}) {
    gate_.Close();
    HttpClient waits(port);
    waits.Write(RequestText("GET", "/metrics", ""));
    gate_.AwaitWaiter();
    EXPECT_EQ(Send("GET", "/version").status, 200);
    EXPECT_EQ(Admin("GET", "/version").status, 200);
    gate_.Open();
    EXPECT_EQ(waits.ReadReply().status, 200);
  }
}

}  // namespace
}  // namespace somnus
