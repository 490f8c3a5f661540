#pragma once
// A ReplicaSet over FakeExecutors; the parameter is async_scheduling.

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/replicas/replica_set.h"
#include "tests/engine/engine_test_util.h"

namespace somnus {

inline const absl::Status kLoss = absl::UnavailableError("rank 0 (pid 77) was killed by signal 9 (Killed)");

// Counts scheduled requests.
class SchedulingObserver : public RecordingObserver {
 public:
  void OnRequestScheduled(const EngineRequest&) override { ++num_scheduled; }
  std::atomic<int> num_scheduled{0};
};

class ReplicaSetTest : public ::testing::TestWithParam<bool> {
 protected:
  using Recovery = FakeExecutor::Recovery;

  ReplicaSetTest() : options_(SmallEngine(GetParam())) {}
  ~ReplicaSetTest() override {
    for (const auto& executor : executors_) executor->Hold(false);
    set_.reset();
  }

  void Start(size_t num_replicas = 2, EngineObserver* observer = nullptr, const ReplicaRetry& retry = {}) {
    std::vector<ReplicaOptions> replicas;
    for (size_t i = 0; i < num_replicas; ++i) {
      executors_.push_back(std::make_unique<FakeExecutor>(SmallWorker(options_)));
      executors_.back()->SetRecovery(Recovery::kWaits);
      replicas.push_back({options_, executors_.back().get()});
    }
    set_ = std::make_unique<ReplicaSet>(std::move(replicas), observer, retry);
  }

  Ticket Submit(const std::string& id, int32_t prompt_len, int32_t max_tokens, int32_t first = 1) {
    Ticket ticket = MakeTicket(id, prompt_len, max_tokens, first);
    const absl::Status status = set_->Submit(ticket.request);
    EXPECT_TRUE(status.ok()) << status;
    return ticket;
  }
  std::vector<Ticket> SubmitMany(int count, int32_t max_tokens = 60) {
    std::vector<Ticket> tickets;
    for (int i = 0; i < count; ++i)
      tickets.push_back(Submit(std::to_string(i), 5 + i % 7, max_tokens, 50 * i + 1));
    return tickets;
  }
  void ExpectExact(const std::vector<Ticket>& tickets) {
    for (const Ticket& ticket : tickets) {
      ASSERT_TRUE(ticket.sink->Wait()) << ticket.request.id;
      EXPECT_EQ(ticket.sink->tokens(), Reference(ticket)) << ticket.request.id;
      EXPECT_EQ(ticket.sink->reason(), FinishReason::kLength) << ticket.sink->error();
      EXPECT_EQ(ticket.sink->outputs_after_end(), 0);
    }
  }
  template <typename Condition>
  void Await(const Condition& condition) {
    while (!condition()) absl::SleepFor(absl::Milliseconds(1));
  }
  void AwaitReplica(size_t replica, EngineState state) {
    Await([&] { return set_->Stats().replicas[replica].state == state; });
  }
  EngineOptions options_;
  std::vector<std::unique_ptr<FakeExecutor>> executors_;
  std::unique_ptr<ReplicaSet> set_;
};
}  // namespace somnus
