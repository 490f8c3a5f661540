#pragma once
// Several engines on the same devices, each over a fake executor.

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/engine/engine_loop.h"
#include "coordinator/several_models/shared_devices.h"
#include "tests/engine/engine_test_util.h"

namespace somnus {

inline constexpr int64_t kBytes = 100;  // of each model that is awake

// How many models are awake at once: a wake-up counts from its end; the sleeps that made room had ended
// before.
class AwakeCounter : public PassingObserver {
 public:
  AwakeCounter() : PassingObserver(nullptr) {}
  void OnTransition(const TransitionEvent& event) override { Add(event.wakes ? 1 : -1); }
  void Add(int change) {
    absl::MutexLock lock(&mu_);
    num_awake_ += change;
    most_ = std::max(most_, num_awake_);
  }
  int most() const {
    absl::MutexLock lock(&mu_);
    return most_;
  }

 private:
  mutable absl::Mutex mu_;
  int num_awake_ ABSL_GUARDED_BY(mu_) = 0;
  int most_ ABSL_GUARDED_BY(mu_) = 0;
};

class SharedDevicesTest : public ::testing::Test {
 protected:
  struct Served {
    std::unique_ptr<FakeExecutor> executor;
    std::shared_ptr<Engine> engine;
  };

  ~SharedDevicesTest() override { End(); }

  // `num_awake` models fit.
  void Start(int num_models, int num_awake, ResidencyPolicy policy = ResidencyPolicy::kFifo,
             SleepArrivals arrivals = SleepArrivals::kQueue) {
    AddModels(num_models, num_awake, policy, arrivals);
    EXPECT_TRUE(devices_->Start().ok());
  }
  void AddModels(int num_models, int num_awake, ResidencyPolicy policy = ResidencyPolicy::kFifo,
                 SleepArrivals arrivals = SleepArrivals::kQueue) {
    SharedDevicesOptions options;
    options.residency.policy = policy;
    options.residency.device_memory_budget = budget_ > 0 ? budget_ : num_awake * kBytes;
    options.residency.minimum_stay = absl::Milliseconds(1);
    options.residency.turn = absl::Milliseconds(20);
    options.residency.max_wait = max_wait_;
    options.arrivals = arrivals;
    options.retry.first_pause = first_pause_;
    options.retry.longest_pause = longest_pause_;
    options.retry.max_tries = max_tries_;
    options.revival_pause = revival_pause_;
    options.operator_wait = operator_wait_;
    options.residency.host_memory_budget = host_memory_budget_;
    options.now = [this] {
      ++num_looks_;
      return MonotonicNow() + absl::Seconds(ahead_s_.load());
    };
    devices_.emplace(options);
    counter_ = std::make_unique<AwakeCounter>();
    for (int i = 0; i < num_models; ++i) {
      Add("model " + std::to_string(i));
      // Adopted models have their memory.
      if (i + 1 < num_models && held_.empty()) {
        EXPECT_TRUE(devices_->MakeRoom().ok());
      }
    }
  }
  void Add(const std::string& name) {
    Served& served = models_.emplace_back();
    EngineOptions options = SmallEngine();
    options.keep_kv_on_sleep = keeps_kv_;
    options.keeps_cached_blocks = false;
    options.kv_block_bytes = FakeExecutor::kKvBlockBytes;
    options.scheduler.blocks.num_host_blocks = keeps_kv_ ? 64 : 0;
    served.executor = std::make_unique<FakeExecutor>(SmallWorker(options));
    served.executor->SetResidentBytes(tag_bytes_);
    if (models_.size() <= held_.size()) options.residency = held_[models_.size() - 1];
    served.executor->SetHeld(options.residency);
    if (retains_backups_) served.executor->SetRetainsBackups();
    SharingModel model{.name = name};
    if (models_.size() <= targets_.size()) model.targets = targets_[models_.size() - 1];
    model.idle_sleep = idle_sleep_;
    model.backup_memory = backup_memory_;
    model.on_decision = [this](const ResidencyDecision& decision) {
      absl::MutexLock lock(&mu_);
      decisions_.push_back(decision);
    };
    model.on_switch = [this](const ModelSwitch& done) {
      absl::MutexLock lock(&mu_);
      switches_.push_back(done);
    };
    if (options.residency.awake()) counter_->Add(1);
    served.engine = devices_->Add(model, counter_.get(), [&](EngineObserver* observer) {
      return std::make_shared<EngineLoop>(options, served.executor.get(), observer);
    });
  }
  void End() {
    for (const Served& model : models_) model.engine->DrainAndStop(absl::ZeroDuration());
    if (devices_.has_value()) devices_->Stop();
    models_.clear();
    devices_.reset();
  }
  Engine* engine(int model) { return models_[model].engine.get(); }
  Ticket Submit(int model, const std::string& id, int32_t max_tokens = 5) {
    Ticket ticket = MakeTicket(id, 5, max_tokens);
    const absl::Status status = engine(model)->Submit(ticket.request);
    EXPECT_TRUE(status.ok()) << status;
    return ticket;
  }
  void ExpectExact(const Ticket& ticket) {
    ASSERT_TRUE(ticket.sink->Wait());
    EXPECT_EQ(ticket.sink->tokens(), Reference(ticket));
  }
  int NumAwake() {
    int awake = 0;
    for (const Served& model : models_) awake += model.engine->state() != EngineState::kAsleep;
    return awake;
  }
  bool Decided(ResidencyAction action, int model) {
    absl::MutexLock lock(&mu_);
    for (const ResidencyDecision& decision : decisions_) {
      if (decision.action == action && decision.model == model) return true;
    }
    return false;
  }

  // The tokens computed beyond the tickets' need, where all tickets came to the end without a loss.
  int64_t Recomputed(const std::vector<Ticket>& tickets) {
    int64_t tokens = 0;
    for (const Served& model : models_) tokens += model.executor->num_computed_tokens();
    for (const Ticket& ticket : tickets)
      tokens -= static_cast<int64_t>(ticket.request.prompt.size()) + ticket.request.max_tokens - 1;
    return tokens;
  }

  // Options of Start; models after the last target have no targets.
  absl::Duration operator_wait_ = absl::Minutes(2);
  absl::Duration max_wait_ = absl::Milliseconds(200);
  absl::Duration first_pause_ = absl::Milliseconds(1);  // after failures
  absl::Duration longest_pause_ = WakeRetryOptions().longest_pause;
  int max_tries_ = 0;  // failures until wake-ups for requests end; 0: never
  absl::Duration revival_pause_ = absl::InfiniteDuration();
  std::vector<TokenTargets> targets_;
  absl::Duration idle_sleep_ = absl::InfiniteDuration();
  int64_t budget_ = 0;           // 0: Start's default
  std::vector<Residency> held_;  // the residency of adopted workers; empty: all are awake
  TagBytes tag_bytes_ = {{"weights", kBytes}};
  bool keeps_kv_ = false;
  bool retains_backups_ = false;
  BackupMemory backup_memory_ = BackupMemory::kAlways;
  int64_t host_memory_budget_ = kNoBudget;
  std::atomic<int64_t> ahead_s_{0};    // of the clock that the models share
  std::atomic<int64_t> num_looks_{0};  // at that clock
  absl::Mutex mu_;
  std::vector<ResidencyDecision> decisions_ ABSL_GUARDED_BY(mu_);
  std::vector<ModelSwitch> switches_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<AwakeCounter> counter_;
  std::optional<SharedDevices> devices_;
  std::deque<Served> models_;
};

}  // namespace somnus
