// Models whose KV caches share a budget that does not hold both in full: nobody sleeps, every token is exact,
// and the budget is kept.

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "coordinator/engine/engine_loop.h"
#include "coordinator/several_models/shared_devices.h"
#include "tests/engine/engine_test_util.h"

namespace somnus {
namespace {

constexpr int64_t kOther = 100, kBlock = 10;
constexpr int32_t kMaxBlocks = 199, kLongest = 10;

class SharedKvTest : public ::testing::Test {
 protected:
  struct Served {
    std::unique_ptr<FakeExecutor> executor;
    std::shared_ptr<Engine> engine;
  };

  ~SharedKvTest() override {
    for (const Served& model : models_) model.engine->DrainAndStop(absl::ZeroDuration());
    devices_->Stop();
    models_.clear();
  }

  void Start(int64_t budget, bool elastic = true) {
    budget_ = budget;
    SharedDevicesOptions options;
    options.residency.device_memory_budget = budget;
    options.residency.minimum_stay = absl::Milliseconds(1);
    options.kv_shares.min_stay = absl::Milliseconds(1);
    options.kv_period = absl::Milliseconds(1);
    options.kv_hold = absl::Milliseconds(1);
    devices_.emplace(options);
    for (int i = 0; i < 2; ++i) {
      Add(elastic);
      if (i == 0 && adopted_blocks_ == 0) {
        ASSERT_TRUE(devices_->MakeRoom().ok());
      }
    }
    ASSERT_TRUE(devices_->Start().ok());
  }
  void Add(bool elastic) {
    Served& served = models_.emplace_back();
    EngineOptions options = SmallEngine();
    options.scheduler.max_model_len = 4 * kLongest;
    options.scheduler.max_num_seqs = 32;
    options.scheduler.max_num_batched_tokens = 64;
    options.scheduler.blocks.num_blocks = kMaxBlocks + 1;
    options.queue.max_num_waiting = 200;
    options.num_mapped_blocks = adopted_blocks_ + (adopted_blocks_ > 0 ? 1 : 0);
    const int64_t blocks = adopted_blocks_ > 0 ? adopted_blocks_ : kMaxBlocks;
    served.executor = std::make_unique<FakeExecutor>(SmallWorker(options));
    served.executor->SetResidentBytes({{"weights", kOther}, {"kv_cache", blocks * kBlock}});
    served.executor->SetStepTime(absl::Milliseconds(1));
    SharingModel model;
    model.name = "model " + std::to_string(models_.size() - 1);
    model.elastic_kv = elastic;
    model.kv_block_bytes = kBlock;
    model.on_decision = [this](const ResidencyDecision& decision) {
      absl::MutexLock lock(&mu_);
      num_sleeps_ += decision.action != ResidencyAction::kWake;
    };
    model.on_resize = [this](bool grows, KvResizeReason reason) {
      absl::MutexLock lock(&mu_);
      resizes_.emplace(grows, KvResizeReasonName(reason));
    };
    served.engine = devices_->Add(model, nullptr, [&](EngineObserver* observer) {
      return std::make_shared<EngineLoop>(options, served.executor.get(), observer);
    });
  }
  std::vector<Ticket> Submit(int model, int count) {
    std::vector<Ticket> tickets;
    for (int i = 0; i < count; ++i) {
      tickets.push_back(MakeTicket(absl::StrCat(model, "-", next_id_++), 10, 25, i));
      EXPECT_TRUE(models_[model].engine->Submit(tickets.back().request).ok());
    }
    return tickets;
  }
  void ExpectExact(const std::vector<Ticket>& tickets) {
    for (const Ticket& ticket : tickets) {
      ASSERT_TRUE(ticket.sink->Wait());
      EXPECT_EQ(ticket.sink->tokens(), Reference(ticket)) << ticket.sink->error();
    }
  }
  int32_t Mapped(int model) { return models_[model].engine->Stats().mapped_blocks; }
  int num_sleeps() {
    absl::MutexLock lock(&mu_);
    return num_sleeps_;
  }
  // A sum over engines that are asked in turn: a cache grows only after the other cache has shrunk, so the
  // growing cache has to be asked first.
  int64_t BytesOf(int first, int second) {
    int64_t bytes = 0;
    for (const int model : {first, second}) {
      const EngineStats stats = models_[model].engine->Stats();
      if (stats.state == EngineState::kAwake) bytes += kOther + stats.mapped_blocks * kBlock;
    }
    return bytes;
  }

  int64_t budget_ = 0;
  int32_t adopted_blocks_ =
      0;  // of each cache, which an earlier coordinator has left so; 0: caches are whole
  std::optional<SharedDevices> devices_;
  std::vector<Served> models_;
  int next_id_ = 0;
  absl::Mutex mu_;
  int num_sleeps_ ABSL_GUARDED_BY(mu_) = 0;
  std::set<std::pair<bool, std::string>> resizes_ ABSL_GUARDED_BY(mu_);
};

TEST_F(SharedKvTest, TheBusyCacheGrowsAndTheOtherOneShrinks) {
  Start(2 * kOther + 250 * kBlock);
  // The model wakes beside the other model, which has the whole cache.
  ExpectExact(Submit(0, 1));
  EXPECT_EQ(models_[1].engine->state(), EngineState::kAwake);
  for (int round = 0; round < 4; ++round) {
    const int busy = round % 2, other = 1 - busy;
    const std::vector<Ticket> tickets = Submit(busy, 150);
    int64_t most_bytes = 0;
    while (Mapped(busy) < 150 && !tickets.back().sink->done()) {
      most_bytes = std::max(most_bytes, BytesOf(busy, other));
      absl::SleepFor(absl::Milliseconds(1));
    }
    EXPECT_LE(most_bytes, budget_);
    EXPECT_GE(Mapped(busy), 150);
    EXPECT_LE(Mapped(other), 100);
    ExpectExact(tickets);
    ExpectExact(Submit(other, 3));
  }
  EXPECT_EQ(num_sleeps(), 0);
  absl::MutexLock lock(&mu_);
  EXPECT_TRUE(resizes_.count({true, "cache_full"}) > 0);
  EXPECT_TRUE(resizes_.count({false, "others_lack"}) > 0);
}

TEST_F(SharedKvTest, BothAreBusyAndBothHaveTheirShare) {
  Start(2 * kOther + 250 * kBlock);
  const std::vector<Ticket> tickets = Submit(1, 150), others = Submit(0, 150);
  while ((Mapped(0) < 90 || Mapped(1) < 90) && !others.back().sink->done())
    absl::SleepFor(absl::Milliseconds(1));
  EXPECT_GE(Mapped(0), 90);
  EXPECT_GE(Mapped(1), 90);
  ExpectExact(tickets);
  ExpectExact(others);
  EXPECT_EQ(num_sleeps(), 0);
}

TEST_F(SharedKvTest, WhereNotEvenTheSmallestCachesFitModelsTakeTurns) {
  Start(2 * kOther + (2 * kLongest - 1) * kBlock);
  for (int round = 0; round < 3; ++round) {
    ExpectExact(Submit(0, 5));
    ExpectExact(Submit(1, 5));
  }
  EXPECT_GE(num_sleeps(), 5);
}

// Such caches do not tell the bytes of a block.
TEST_F(SharedKvTest, CachesThatWereAdoptedWhileTheyWereSmallGrowAgain) {
  adopted_blocks_ = 30;
  Start(2 * kOther + 250 * kBlock);
  EXPECT_EQ(Mapped(0), 30);
  const std::vector<Ticket> tickets = Submit(0, 150);
  while (Mapped(0) < 90 && !tickets.back().sink->done()) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_GE(Mapped(0), 90);
  ExpectExact(tickets);
  EXPECT_EQ(num_sleeps(), 0);
}

TEST_F(SharedKvTest, SwitchedOffCachesKeepTheirSize) {
  Start(2 * kOther + 250 * kBlock, /*elastic=*/false);
  ExpectExact(Submit(0, 1));
  EXPECT_EQ(Mapped(0), kMaxBlocks);
  EXPECT_EQ(num_sleeps(), 1);
}

}  // namespace
}  // namespace somnus
