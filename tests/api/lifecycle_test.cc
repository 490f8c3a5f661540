// Operators' HTTP calls that wait.

#include <thread>
#include <vector>

#include "tests/api/api_server_fixture.h"

namespace somnus {
namespace {

class LifecycleTest : public ApiServerTest {
 protected:
  void AwaitWaking(int count) {
    while (engine_->num_waking() != count) absl::SleepFor(absl::Milliseconds(1));
  }
};

TEST_F(LifecycleTest, CallsThatWaitTakeNoThreadOfThoseThatEndThem) {
  Serve();
  engine_->HoldWakeUps(true);
  const int most = ApiLimits().max_lifecycle_calls;
  std::vector<std::thread> threads;
  for (int i = 0; i < most; ++i)
    threads.emplace_back([this] { EXPECT_EQ(Admin("POST", "/wake_up").status, 200); });
  AwaitWaking(most);
  const HttpReply refused = Admin("POST", "/wake_up");
  EXPECT_EQ(refused.status, 429);
  EXPECT_NE(refused.body.find("--max-lifecycle-calls"), std::string::npos) << refused.body;
  for (const char* path :
       {"/sleep", "/resume", "/pause", "/reset_prefix_cache", "/abort_call", "/reload_weights"})
    EXPECT_EQ(Admin("POST", path).status, 200) << path;
  EXPECT_EQ(Admin("GET", "/metrics").status, 200);
  EXPECT_EQ(engine_->num_aborted_calls(), 1);
  engine_->HoldWakeUps(false);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(Admin("POST", "/wake_up").status, 200);
}

TEST_F(LifecycleTest, AnEngineHearsThatTheClientHasLeft) {
  Serve();
  engine_->HoldWakeUps(true);
  {
    HttpClient client(server_->admin_port());
    client.Write(RequestText("POST", "/wake_up", "", ""));
    AwaitWaking(1);
  }
  AwaitWaking(0);
}

TEST_F(LifecycleTest, ASleepMayBeForced) {
  Serve();
  EXPECT_EQ(Admin("POST", "/sleep?level=2&force=maybe").status, 400);
  EXPECT_EQ(Admin("POST", "/sleep?level=2").status, 200);
  EXPECT_FALSE(engine_->last_sleep().force);
  EXPECT_EQ(Admin("POST", "/sleep", R"({"level": 2, "force": true})").status, 200);
  EXPECT_TRUE(engine_->last_sleep().force);
  const std::string call = R"({"method": "sleep", "kwargs": {"level": 2, "force": )";
  EXPECT_EQ(Admin("POST", "/collective_rpc", call + "false}}").status, 200);
  EXPECT_FALSE(engine_->last_sleep().force);
  EXPECT_EQ(Admin("POST", "/collective_rpc", call + "1}}").status, 400);
}

}  // namespace
}  // namespace somnus
