// The picture of a loop: drawn when somebody asks, also by an idle loop, and true to requests and blocks.

#include <gtest/gtest.h>

#include <algorithm>

#include "absl/time/clock.h"
#include "coordinator/engine/loop_view.h"
#include "coordinator/engine/view_board.h"
#include "tests/engine/engine_test_util.h"

namespace somnus {
namespace {

// Asks until the engine has drawn a picture that is right.
EngineView AwaitView(EngineLoop* engine, const std::function<bool(const EngineView&)>& is_right) {
  const absl::Time deadline = absl::Now() + absl::Minutes(1);
  while (absl::Now() < deadline) {
    const EngineViews views = engine->View();
    if (!views.empty() && is_right(*views[0])) return *views[0];
    absl::SleepFor(absl::Milliseconds(1));
  }
  ADD_FAILURE() << "no such picture within a minute";
  return {};
}

TEST(EngineViewTest, AnIdleLoopDrawsWhenItIsAsked) {
  const EngineOptions options = SmallEngine();
  FakeExecutor executor(SmallWorker(options));
  EngineLoop engine(options, &executor, nullptr);
  const EngineView view = AwaitView(&engine, [](const EngineView&) { return true; });
  EXPECT_EQ(view.blocks, std::string(63, '.')) << "64 blocks without the null block";
  EXPECT_EQ(view.blocks_per_cell, 1);
  EXPECT_TRUE(view.requests.empty());
}

TEST(EngineViewTest, RequestsAndTheBlocksThatTheyHold) {
  EngineOptions options = SmallEngine();
  options.scheduler.max_num_seqs = 1;
  FakeExecutor executor(SmallWorker(options));
  EngineLoop engine(options, &executor, nullptr);
  const Ticket first = MakeTicket("first", 12, 60), second = MakeTicket("second", 8, 1, 100);
  executor.SetStepTime(absl::Milliseconds(200));  // a loop draws between two steps
  ASSERT_TRUE(engine.Submit(first.request).ok());
  ASSERT_TRUE(engine.Submit(second.request).ok());
  const EngineView busy =
      AwaitView(&engine, [](const EngineView& view) { return view.requests.size() == 2; });
  executor.SetStepTime(absl::ZeroDuration());
  ASSERT_EQ(busy.requests.size(), 2u);
  EXPECT_EQ(busy.requests[0].id, "first");
  EXPECT_STREQ(busy.requests[0].state, "running");
  EXPECT_EQ(busy.requests[0].num_prompt_tokens, 12);
  EXPECT_EQ(std::count(busy.blocks.begin(), busy.blocks.end(), '1'), busy.requests[0].num_blocks);
  EXPECT_EQ(busy.requests[1].id, "second");
  EXPECT_STREQ(busy.requests[1].state, "waiting");
  EXPECT_EQ(busy.requests[1].num_blocks, 0);
  EXPECT_TRUE(first.sink->Wait() && second.sink->Wait());
  const EngineView idle = AwaitView(&engine, [](const EngineView& view) { return view.requests.empty(); });
  EXPECT_GT(std::count(idle.blocks.begin(), idle.blocks.end(), 'c'), 0) << "the prefix cache has the blocks";
  EXPECT_EQ(std::count(idle.blocks.begin(), idle.blocks.end(), '1'), 0);
}

TEST(EngineViewTest, APictureIsBounded) {
  SchedulerOptions options = SmallEngine().scheduler;
  options.blocks.num_blocks = 20'001;
  Scheduler scheduler(options);
  for (int i = 0; i < 1000; ++i) scheduler.Add(MakeTicket(std::to_string(i), 8, 1).request);
  const EngineView view = DrawView(scheduler, 3, /*max_requests=*/150, MonotonicNow());
  EXPECT_EQ(view.replica, 3);
  EXPECT_EQ(view.blocks_per_cell, 5);
  EXPECT_EQ(view.blocks.size(), 4000u);
  EXPECT_EQ(view.requests.size(), 150u);
  EXPECT_EQ(view.requests[0].id, "0") << "in the order of service";
}

TEST(EngineViewTest, SharedBlocksAndBlocksOutOfUse) {
  SchedulerOptions options = SmallEngine().scheduler;
  options.blocks.num_blocks = 201;
  Scheduler scheduler(options);
  for (const char* id : {"a", "b", "c"}) {
    scheduler.Add(MakeTicket(id, 9, 4).request);
    scheduler.Schedule();
  }
  scheduler.SetBlockLimit(101);
  const std::string blocks = DrawView(scheduler, 0, /*max_requests=*/1, MonotonicNow()).blocks;
  EXPECT_EQ(std::count(blocks.begin(), blocks.end(), '3'), 2)
      << "two full blocks of the same prompt: " << blocks;
  EXPECT_EQ(std::count(blocks.begin(), blocks.end(), '1'), 3) << blocks;
  EXPECT_EQ(std::count(blocks.begin(), blocks.end(), 'x'), 100) << blocks;
}

TEST(ViewBoardTest, AsksTheLoopOncePerInterval) {
  ViewBoard board;
  bool wakes = false;
  EXPECT_EQ(board.Look(MonotonicNow(), &wakes), nullptr);
  EXPECT_TRUE(wakes && board.wanted());
  EXPECT_EQ(board.Look(MonotonicNow(), &wakes), nullptr);
  EXPECT_FALSE(wakes) << "the loop was woken";
  EngineView view{.taken = absl::Seconds(100)};
  board.Show(view);
  EXPECT_FALSE(board.wanted());
  EXPECT_NE(board.Look(view.taken + kViewInterval / 2, &wakes), nullptr);
  EXPECT_FALSE(wakes || board.wanted()) << "the picture is young";
  EXPECT_NE(board.Look(view.taken + kViewInterval, &wakes), nullptr);
  EXPECT_TRUE(wakes);
}

}  // namespace
}  // namespace somnus
