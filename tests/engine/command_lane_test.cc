#include "coordinator/engine/command_lane.h"

#include <gtest/gtest.h>

#include "tests/fakes/fake_executor.h"

namespace somnus {
namespace {

class NamedCommand : public LifecycleCommand {
 public:
  explicit NamedCommand(const char* name) : name_(name) {}
  const char* Name() const override { return name_; }
  void Start(LoopAccess* /*loop*/) override {}

 private:
  const char* const name_;
};

class CommandLaneTest : public ::testing::Test {
 protected:
  std::shared_ptr<NamedCommand> Add(const char* name) {
    const auto command = std::make_shared<NamedCommand>(name);
    lane_.Add({command});
    return command;
  }
  // The name of the command that begins next; empty where no command does.
  std::string Begin() { return lane_.BeginNext(absl::ZeroDuration()) ? lane_.current()->Name() : ""; }

  const EngineOptions options_;
  FakeExecutor executor_{FakeWorkerOptions()};
  EngineBoard board_{options_, &executor_, EngineState::kAwake};
  CommandLane lane_{"", &board_};
};

TEST_F(CommandLaneTest, OneCommandAtATimeInTheOrderOfArrival) {
  Add("a");
  Add("b");
  EXPECT_EQ(Begin(), "a");
  EXPECT_EQ(board_.Stats().lifecycle_call.name, "a");
  EXPECT_EQ(board_.Stats().lifecycle_call.num_waiting, 1);
  EXPECT_EQ(Begin(), "") << "one is under way";
  lane_.AddFirst(std::make_shared<NamedCommand>("first"));
  (void)lane_.Retire();
  EXPECT_EQ(Begin(), "first");
  (void)lane_.Retire();
  EXPECT_EQ(Begin(), "b");
  (void)lane_.Retire();
  EXPECT_EQ(Begin(), "");
}

TEST_F(CommandLaneTest, ACommandThatHasNotBegunIsDroppedWithItsClient) {
  const auto caller = std::make_shared<const Caller>(Caller{"client", [] { return true; }});
  const std::shared_ptr<NamedCommand> begun = Add("begun"), waits = Add("waits"), stays = Add("stays");
  begun->set_caller(caller);
  waits->set_caller(caller);
  EXPECT_EQ(Begin(), "begun");
  lane_.DropAbandoned();
  EXPECT_FALSE(begun->ended().stopped());
  EXPECT_TRUE(waits->ended().stopped());
  EXPECT_TRUE(absl::IsCancelled(waits->result().status()));
  (void)lane_.Retire();
  EXPECT_EQ(Begin(), "stays");
}

TEST_F(CommandLaneTest, OnlyTheLatestCallIsAwaited) {
  Add("a");
  EXPECT_EQ(Begin(), "a");
  EXPECT_FALSE(lane_.has_call());
  const int64_t first = lane_.NewCall();
  lane_.EndCall();
  EXPECT_FALSE(lane_.Awaits(first)) << "a loss has interrupted that call";
  const int64_t second = lane_.NewCall();
  EXPECT_FALSE(lane_.Awaits(first));
  EXPECT_TRUE(lane_.Awaits(second));
  (void)lane_.Retire();
  EXPECT_FALSE(lane_.Awaits(second));
}

TEST_F(CommandLaneTest, ACommandIsInterruptedSoOftenAndNoMore) {
  Add("a");
  Add("b");
  Begin();
  for (int i = 0; i < CommandLane::kMaxInterruptions; ++i) EXPECT_TRUE(lane_.CountInterruption());
  EXPECT_FALSE(lane_.CountInterruption());
  (void)lane_.Retire();
  Begin();
  EXPECT_TRUE(lane_.CountInterruption()) << "every command is counted by itself";
}

TEST_F(CommandLaneTest, TheFirstOperatorEndsACommandAndAllGetAReply) {
  Add("a");
  Begin();
  int num_replies = 0;
  const auto reply = [&](const absl::Status&) { ++num_replies; };
  EXPECT_TRUE(lane_.GiveUp(absl::AbortedError("one"), reply));
  EXPECT_FALSE(lane_.GiveUp(absl::AbortedError("another"), reply));
  EXPECT_EQ(lane_.given_up(), absl::AbortedError("one"));
  for (const auto& answer : lane_.Retire().replies) answer(absl::OkStatus());
  EXPECT_EQ(num_replies, 2);
  EXPECT_TRUE(lane_.given_up().ok());
}

}  // namespace
}  // namespace somnus
