// Probes while a thread of the process hangs.

#include "base/heartbeat.h"
#include "tests/api/api_server_fixture.h"

namespace somnus {
namespace {

class LivenessTest : public ApiServerTest {
 protected:
  LivenessTest() { all_.Watch(absl::Seconds(60)); }

  void ServeWatched() { Serve(ApiServerOptions{.heartbeats = &all_}); }
  // The answers of all probes, on the listeners for clients and for operators: 200 without a body, or 503
  // with a message.
  std::string Probe(const char* path) {
    const HttpReply reply = Send("GET", path);
    const HttpReply of_operators = Admin("GET", path);
    EXPECT_EQ(reply.status, of_operators.status);
    EXPECT_EQ(reply.body, of_operators.body);
    if (reply.status == 200) return reply.body;
    EXPECT_EQ(reply.status, 503);
    return Json::parse(reply.body)["error"]["message"].get<std::string>();
  }

  std::atomic<int> now_s_{1000};
  Heartbeats all_{[this] { return absl::Seconds(now_s_.load()); }};
};

TEST_F(LivenessTest, ProbesNameTheLoopThatHangsUntilItGoesOn) {
  ServeWatched();
  const Heartbeat loop("llama: ", "engine loop", nullptr, &all_);
  for (const char* path : {"/livez", "/readyz", "/health", "/ping"}) EXPECT_EQ(Probe(path), "");
  now_s_ += 61;
  for (const char* path : {"/livez", "/readyz", "/health", "/ping"}) {
    const std::string message = Probe(path);
    EXPECT_EQ(message.rfind("llama: engine loop: no sign of life since ", 0), 0u) << message;
    EXPECT_NE(message.find(", for 1m1s (the limit is 1m)"), std::string::npos) << message;
    EXPECT_EQ(message.find('\n'), std::string::npos);
  }
  loop.Beat();
  for (const char* path : {"/livez", "/readyz", "/health", "/ping"}) EXPECT_EQ(Probe(path), "");
}

// The loop that hangs may hold the engine's lock, so /livez must not take the lock.
TEST_F(LivenessTest, TheLoopIsNamedBeforeAnEngineIsAsked) {
  ServeWatched();
  engine_->set_stall(absl::UnavailableError("rank 1 (pid 7) has been in step 3 for longer than 1m"));
  const Heartbeat loop("", "engine loop", nullptr, &all_);
  now_s_ += 61;
  EXPECT_EQ(Probe("/readyz").rfind("engine loop: ", 0), 0u);
}

TEST_F(LivenessTest, WhileModelsLoadAHangCountsToo) {
  Start(ApiServerOptions{.heartbeats = &all_});
  const Heartbeat loop("", "watch of registered workers", nullptr, &all_);
  EXPECT_EQ(Probe("/livez"), "");
  now_s_ += 61;
  EXPECT_EQ(Probe("/livez").rfind("watch of registered workers: ", 0), 0u);
}

}  // namespace
}  // namespace somnus
