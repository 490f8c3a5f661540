// An engine that preempts by swap: exactly the tokens of an undisturbed run, nothing is computed twice, also
// over sleeps that keep the cache, and nothing stays in the host tier.

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <numeric>
#include <optional>
#include <vector>

#include "tests/engine/engine_test_util.h"

namespace somnus {
namespace {

constexpr int kRequests = 4;

EngineOptions Swapping(bool async_scheduling = true) {
  EngineOptions options = SwappingEngine(async_scheduling);
  options.keep_kv_on_sleep = true;
  return options;
}

int64_t Sum(const std::array<int64_t, kPreemptionCauses.size()>& counts) {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

class EngineSwapTest : public ::testing::Test {
 protected:
  void Start(const EngineOptions& options = Swapping()) {
    engine_.reset();  // before the executor that the engine uses
    executor_.emplace(SmallWorker(options));
    executor_->SetStepTime(absl::Milliseconds(1));
    engine_.emplace(options, &*executor_, nullptr);
    tickets_.clear();
    for (int i = 0; i < kRequests; ++i) {
      tickets_.push_back(MakeTicket(std::to_string(i), 12, 60, 100 * i));
      ASSERT_TRUE(engine_->Submit(tickets_.back().request).ok());
    }
  }
  void ExpectTokens() {
    for (const Ticket& ticket : tickets_) {
      ASSERT_TRUE(ticket.sink->Wait());
      EXPECT_EQ(ticket.sink->tokens(), Reference(ticket));
    }
    EXPECT_EQ(engine_->Stats().used_blocks, 0);
    EXPECT_EQ(engine_->Stats().used_host_blocks, 0);
  }
  // Or until all have ended, on a machine that was busy with something else.
  void AwaitSwapped() {
    const auto is_done = [](const Ticket& ticket) { return ticket.sink->done(); };
    while (engine_->Stats().used_host_blocks == 0 && !std::all_of(tickets_.begin(), tickets_.end(), is_done))
      absl::SleepFor(absl::Milliseconds(1));
  }
  // How many tokens were computed twice.
  int64_t Recomputed() {
    int64_t tokens = 0;
    for (const Ticket& ticket : tickets_)
      tokens += static_cast<int64_t>(ticket.request.prompt.size()) + ticket.request.max_tokens - 1;
    return executor_->num_computed_tokens() - tokens;
  }

  std::vector<Ticket> tickets_;
  std::optional<FakeExecutor> executor_;
  std::optional<EngineLoop> engine_;
};

TEST_F(EngineSwapTest, NothingIsComputedTwice) {
  for (const bool async_scheduling : {false, true}) {
    Start(Swapping(async_scheduling));
    ExpectTokens();
    const EngineStats stats = engine_->Stats();
    EXPECT_EQ(Recomputed(), 0);
    EXPECT_GT(Sum(stats.preemptions.by_swap), 0);
    EXPECT_EQ(Sum(stats.preemptions.by_recompute), 0);
    EXPECT_EQ(stats.num_preemptions, stats.preemptions.total());
    EXPECT_GT(stats.swaps.out_blocks, 0);
    EXPECT_EQ(stats.swaps.out_blocks, stats.swaps.in_blocks);
    EXPECT_GT(stats.swaps.in_tokens, 0);
  }
}

TEST_F(EngineSwapTest, AnAbortALevelTwoSleepAndALossLeaveNothingBehind) {
  Start();
  AwaitSwapped();
  engine_->Abort("3");
  ASSERT_TRUE(tickets_[3].sink->Wait());
  tickets_.pop_back();
  AwaitSwapped();
  ASSERT_TRUE(engine_->Sleep({.level = 2}).ok());
  EXPECT_EQ(engine_->Stats().used_host_blocks, 0);
  ASSERT_TRUE(engine_->WakeUp({}).ok());
  AwaitSwapped();
  executor_->SetRecovery(FakeExecutor::Recovery::kSucceeds);
  executor_->Lose(absl::InternalError("rank 1 is gone"));
  ExpectTokens();
  EXPECT_EQ(engine_->Stats().num_recoveries, 1);
}

TEST_F(EngineSwapTest, CachedPrefixesOutliveASleepThatKeepsTheCacheAndNoDeeperOne) {
  EngineOptions options = Swapping();
  options.scheduler.blocks.enable_prefix_caching = true;
  options.scheduler.host_prefix_caching = HostPrefixCaching::kOn;
  Start(options);
  for (const Ticket& ticket : tickets_) {
    ASSERT_TRUE(ticket.sink->Wait());
    EXPECT_EQ(ticket.sink->tokens(), Reference(ticket));
  }
  ASSERT_TRUE(engine_->Sleep({.level = 1}).ok());
  EXPECT_GT(engine_->Stats().cached_host_blocks, 0);
  EXPECT_GT(engine_->Stats().swaps.stored_blocks, 0);
  ASSERT_TRUE(engine_->WakeUp({}).ok());
  EXPECT_GT(engine_->Stats().cached_host_blocks, 0);
  ASSERT_TRUE(engine_->Sleep({.level = 2}).ok());
  EXPECT_EQ(engine_->Stats().used_host_blocks, 0);
}

TEST_F(EngineSwapTest, WithoutTheOptionASleepForgetsSwappedBlocks) {
  EngineOptions options = Swapping();
  options.keep_kv_on_sleep = false;
  Start(options);
  AwaitSwapped();
  ASSERT_TRUE(engine_->Sleep({.level = 1}).ok());
  EXPECT_EQ(engine_->Stats().used_host_blocks, 0);
  ASSERT_TRUE(engine_->WakeUp({}).ok());
  ExpectTokens();
}

constexpr int64_t kBytesPerMillisecond = 4'000'000;  // that copies are assumed to make

// An executor with a clock: a step takes 10 ms, 1 ms for each token, and so long for each block
// that the step copies.
class TimedExecutor : public FakeExecutor {
 public:
  TimedExecutor(const FakeWorkerOptions& options, absl::Duration copy_time)
      : FakeExecutor(options), copy_time_(copy_time) {}

  absl::Status ExecuteAsync(v1::StepRequest* step) override {
    absl::Duration time =
        absl::Milliseconds(10) + (step->swap_outs_size() + step->swap_ins_size()) * copy_time_;
    for (const v1::ScheduledSequence& sequence : step->sequences())
      time += sequence.num_tokens() * absl::Milliseconds(1);
    step_times_.push_back(time);
    return FakeExecutor::ExecuteAsync(step);
  }
  absl::StatusOr<v1::StepReply> Wait(absl::Duration timeout) override {
    now_us_ += absl::ToInt64Microseconds(step_times_.front());
    step_times_.pop_front();
    return FakeExecutor::Wait(timeout);
  }
  MonotonicTime now() const { return absl::Microseconds(now_us_.load()); }

 private:
  const absl::Duration copy_time_;
  std::deque<absl::Duration> step_times_;  // without a reply; the loop thread alone uses the list
  std::atomic<int64_t> now_us_{0};
};

// The preemptions where prices decide; the engine takes prices from the times of steps. A block of 4 tokens
// takes 4 ms to compute again, and twice the time of a copy to swap. `block_bytes`: gives the assumed time of
// a copy before a copy was measured.
EngineStats RunByPrices(bool async_scheduling, int64_t block_bytes, absl::Duration copy_time) {
  EngineOptions options = Swapping(async_scheduling);
  options.scheduler.preemption = PreemptionMode::kAuto;
  options.kv_block_bytes = block_bytes;
  TimedExecutor executor(SmallWorker(options), copy_time);
  options.monotonic_now = [&executor] { return executor.now(); };
  EngineLoop engine(options, &executor, nullptr);
  std::vector<Ticket> tickets;
  std::vector<EngineRequest> requests;
  for (int i = 0; i < kRequests; ++i) {
    tickets.push_back(MakeTicket(std::to_string(i), 12, 60, 100 * i));
    requests.push_back(tickets.back().request);
  }
  EXPECT_TRUE(engine.SubmitAll(std::move(requests)).ok());
  for (const Ticket& ticket : tickets) {
    EXPECT_TRUE(ticket.sink->Wait());
    EXPECT_EQ(ticket.sink->tokens(), Reference(ticket));
  }
  return engine.Stats();
}

class PreemptionPricesTest : public ::testing::TestWithParam<bool> {};  // async scheduling
INSTANTIATE_TEST_SUITE_P(OffAndOn, PreemptionPricesTest, ::testing::Bool());

TEST_P(PreemptionPricesTest, CheapCopiesAreMade) {
  const EngineStats stats = RunByPrices(GetParam(), kBytesPerMillisecond / 10, absl::Microseconds(100));
  EXPECT_GT(Sum(stats.preemptions.by_swap), 0);
  EXPECT_EQ(Sum(stats.preemptions.by_recompute), 0);
}

TEST_P(PreemptionPricesTest, DearCopiesAreNotTried) {
  const EngineStats stats = RunByPrices(GetParam(), 10 * kBytesPerMillisecond, absl::Milliseconds(10));
  EXPECT_EQ(Sum(stats.preemptions.by_swap), 0);
  EXPECT_GT(Sum(stats.preemptions.by_recompute), 0);
  EXPECT_EQ(stats.swaps.obstacles[static_cast<size_t>(SwapObstacle::kPrice)], stats.preemptions.total());
}

TEST_P(PreemptionPricesTest, CopiesThatWereDearAreNotTriedAgain) {
  const EngineStats stats = RunByPrices(GetParam(), kBytesPerMillisecond / 10, absl::Milliseconds(500));
  EXPECT_EQ(Sum(stats.preemptions.by_swap), 1);
  EXPECT_GT(Sum(stats.preemptions.by_recompute), 0);
  EXPECT_EQ(stats.swaps.obstacles[static_cast<size_t>(SwapObstacle::kPrice)],
            Sum(stats.preemptions.by_recompute));
}

}  // namespace
}  // namespace somnus
