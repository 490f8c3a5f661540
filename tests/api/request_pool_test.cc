// Routes that may have to wait for an engine's lock, or that write long answers, are answered on the request
// pool: the I/O thread, which serves all connections, goes on meanwhile.

#include <gtest/gtest.h>

#include "tests/api/api_server_fixture.h"
#include "tests/api/gated_tokenizer.h"

namespace somnus {
namespace {

// Says what it does through the gate alone.
class GatedEngine : public FakeEngine {
 public:
  explicit GatedEngine(Gate* gate) : gate_(gate) {}
  EngineStats Stats() const override {
    gate_->Pass();
    return FakeEngine::Stats();
  }
  EngineViews View() override {
    gate_->Pass();
    return FakeEngine::View();
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

TEST_F(RequestPoolTest, WhileAnEngineIsAskedTheIoThreadServesOthers) {
  ServeGated();
  struct Case {
    uint16_t port;
    const char* path;
  };
  for (const Case& asked : {Case{server_->port(), "/metrics"}, Case{server_->admin_port(), "/metrics"},
                            Case{server_->admin_port(), "/requests"}}) {
    gate_.Close();
    HttpClient waits(asked.port);
    waits.Write(RequestText("GET", asked.path));
    gate_.AwaitWaiter();
    EXPECT_EQ(Send("GET", "/version").status, 200) << asked.path;
    EXPECT_EQ(Admin("GET", "/version").status, 200) << asked.path;
    gate_.Open();
    EXPECT_EQ(waits.ReadReply().status, 200) << asked.path;
  }
}

}  // namespace
}  // namespace somnus
