#pragma once
// An engine with adapters over a fake executor, and the questions that tests of adapters ask.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <future>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "coordinator/adapters/adapter_engine.h"
#include "coordinator/adapters/adapter_registry.h"
#include "tests/engine/engine_test_util.h"

namespace somnus {

// A wrapper of an engine, which does `before_submit` before the next submission, and `before_state` before
// the next question for the state, each once.
class GatedEngine : public Engine {
 public:
  explicit GatedEngine(std::shared_ptr<Engine> engine) : engine_(std::move(engine)) {}

  void SetBeforeSubmit(std::function<void()> before) {
    absl::MutexLock lock(&mu_);
    before_submit_ = std::move(before);
  }
  void SetBeforeState(std::function<void()> before) {
    absl::MutexLock lock(&mu_);
    before_state_ = std::move(before);
  }

  // The path of the request's adapter at the submission.
  std::string PathOf(const std::string& id) const {
    absl::MutexLock lock(&mu_);
    const auto path = paths_.find(id);
    return path == paths_.end() ? "" : path->second;
  }

  absl::Status SubmitAll(std::vector<EngineRequest> requests) override {
    RunOnce(&before_submit_);
    {
      absl::MutexLock lock(&mu_);
      for (const EngineRequest& request : requests)
        paths_[request.id] = request.adapter == nullptr ? "" : request.adapter->path;
    }
    return engine_->SubmitAll(std::move(requests));
  }
  void Abort(const std::string& id) override { engine_->Abort(id); }
  EngineState state() const override {
    RunOnce(&before_state_);
    return engine_->state();
  }
  absl::Status Health() const override { return engine_->Health(); }
  void OnStateChange(std::function<void()> callback) override { engine_->OnStateChange(std::move(callback)); }
  EngineStats Stats() const override { return engine_->Stats(); }
  EngineViews View() override { return engine_->View(); }
  LifecycleResult Run(const LifecycleRequest& request) override { return engine_->Run(request); }
  PinnedPrefixes& pinned_prefixes() override { return engine_->pinned_prefixes(); }
  void DrainAndStop(absl::Duration grace) override { engine_->DrainAndStop(grace); }
  int32_t max_model_len() const override { return engine_->max_model_len(); }
  int32_t vocab_size() const override { return engine_->vocab_size(); }

 private:
  void RunOnce(std::function<void()>* before) const {
    std::function<void()> once;
    {
      absl::MutexLock lock(&mu_);
      once = std::exchange(*before, nullptr);
    }
    if (once) once();
  }

  const std::shared_ptr<Engine> engine_;
  mutable absl::Mutex mu_;
  mutable std::function<void()> before_submit_, before_state_;  // under mu_
  std::map<std::string, std::string> paths_ ABSL_GUARDED_BY(mu_);
};

class EngineAdaptersTest : public ::testing::Test {
 protected:
  EngineAdaptersTest() : options_(SmallEngine()), executor_(SmallWorker(options_)) {
    executor_.SetRecovery(FakeExecutor::Recovery::kSucceeds);
    loop_ = std::make_shared<EngineLoop>(options_, &executor_, nullptr);
    gate_ = std::make_shared<GatedEngine>(loop_);
  }
  ~EngineAdaptersTest() override {
    engine_ = nullptr;
    loop_->DrainAndStop(absl::ZeroDuration());
  }

  // To be called once: makes the registry, and the engine over the loop.
  void Begin(int32_t max_adapters, absl::Duration unload_timeout = absl::ZeroDuration(),
             const QueueLimits& limits = {}) {
    registry_options_.max_adapters = max_adapters;
    registry_options_.unload_timeout = unload_timeout;
    registry_ = std::make_shared<AdapterRegistry>(gate_, registry_options_);
    engine_ = std::make_unique<AdapterEngine>(gate_, registry_, limits, &observer_);
  }
  // As Begin, with these adapters loaded in this order.
  void BeginWith(const std::vector<std::string>& names, int32_t max_adapters,
                 absl::Duration unload_timeout = absl::ZeroDuration(), const QueueLimits& limits = {}) {
    Begin(max_adapters, unload_timeout, limits);
    for (const std::string& name : names) EXPECT_EQ(Load(name), absl::OkStatus()) << name;
  }
  // One place, which "lawyer" has taken from "poet". The workers answer no call until HoldLifecycle(false).
  void BeginWithForgottenPoet() {
    BeginWith({"poet", "lawyer"}, 1);
    executor_.HoldLifecycle(true);
  }
  void AwaitReadOfPoet() {
    while (LastCall() != "adapters 1=poet") absl::SleepFor(absl::Milliseconds(1));
  }
  absl::Status Load(const std::string& name, bool in_place = false) {
    return registry_->Load(name, "/" + name, in_place);
  }
  // An unload that waits for open requests, after which the name is free.
  std::future<absl::Status> StartUnload(const std::string& name) {
    std::future<absl::Status> unloaded =
        std::async(std::launch::async, [this, name] { return registry_->Unload(name); });
    while (registry_->Knows(name)) absl::SleepFor(absl::Milliseconds(1));
    return unloaded;
  }
  // A load whose files the workers read until HoldAdapterReads(false).
  std::future<absl::Status> StartRead(const std::string& name) {
    executor_.HoldAdapterReads(true);
    std::future<absl::Status> loaded = std::async(std::launch::async, [this, name] { return Load(name); });
    while (executor_.adapter_reads().empty()) absl::SleepFor(absl::Milliseconds(1));
    return loaded;
  }
  // A request with the adapter.
  Ticket Ask(const std::string& name, const std::string& id = "") {
    Ticket ticket = MakeTicket(id.empty() ? absl::StrCat("of ", name, " ", ++num_asked_) : id, 5, 3);
    ticket.request.adapter_name = name;
    submitted_ = engine_->Submit(ticket.request);
    return ticket;
  }
  // A request with the adapter, which is open until the pause ends.
  Ticket AskPaused(const std::string& name) {
    EXPECT_TRUE(engine_->Pause({}).ok());
    Ticket ticket = Ask(name);
    EXPECT_EQ(submitted_, absl::OkStatus());
    return ticket;
  }
  void ExpectAnswer(const Ticket& ticket) {
    EXPECT_EQ(submitted_, absl::OkStatus());
    ASSERT_TRUE(ticket.sink->Wait());
    EXPECT_EQ(ticket.sink->tokens(), Reference(ticket)) << ticket.sink->error();
  }
  void ExpectError(const Ticket& ticket, absl::StatusCode code, const std::string& text) {
    ASSERT_TRUE(ticket.sink->Wait());
    EXPECT_EQ(ticket.sink->error().code(), code);
    EXPECT_THAT(std::string(ticket.sink->error().message()), testing::HasSubstr(text));
  }
  // The engine's loop shows numbers a moment later.
  void AwaitWaiting(int32_t count) const {
    while (engine_->Stats().num_waiting != count) absl::SleepFor(absl::Milliseconds(1));
  }
  std::string LastCall() const { return executor_.lifecycle_calls().back(); }
  std::string Names() const {
    std::string names;
    for (const AdapterCard& card : registry_->List()) names += card.name + (card.held ? " " : "? ");
    return names;
  }
  std::string PathOf(const std::string& name) const {
    for (const AdapterCard& card : registry_->List()) {
      if (card.name == name) return card.path;
    }
    return "";
  }

  const EngineOptions options_;
  FakeExecutor executor_;
  std::shared_ptr<EngineLoop> loop_;
  std::shared_ptr<GatedEngine> gate_;  // over loop_
  AdapterRegistryOptions registry_options_{.retry_pause = absl::Minutes(1)};
  std::shared_ptr<AdapterRegistry> registry_;
  RecordingObserver observer_;  // of the requests that end before the loop has them
  std::unique_ptr<AdapterEngine> engine_;
  absl::Status submitted_;
  int num_asked_ = 0;
};

}  // namespace somnus
