#pragma once
// An engine whose weights are replaced, over a fake executor.

#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "tests/engine/engine_test_util.h"

namespace somnus {

using Calls = std::vector<std::string>;
inline const absl::Status kLoss = absl::UnavailableError("rank 0 (pid 77) was killed by signal 9 (Killed)");

class EngineWeightsTest : public ::testing::Test {
 protected:
  EngineWeightsTest() : options_(SmallEngine()), executor_(SmallWorker(options_)) {
    options_.weights.path = "old";
    executor_.SetRecovery(FakeExecutor::Recovery::kSucceeds);
  }

  void Start() { engine_ = std::make_unique<EngineLoop>(options_, &executor_, nullptr); }
  v1::WeightChunk Chunk(const std::string& name) {
    v1::WeightChunk chunk;
    chunk.set_name(name);
    return chunk;
  }
  void ExpectServes(int64_t version) {
    EXPECT_EQ(engine_->state(), EngineState::kAwake);
    EXPECT_EQ(engine_->Stats().weights_version, version);
    Ticket ticket = MakeTicket("serves", 5, 5);
    ASSERT_TRUE(engine_->Submit(ticket.request).ok());
    ASSERT_TRUE(ticket.sink->Wait());
    EXPECT_EQ(ticket.sink->tokens(), Reference(ticket));
    EXPECT_EQ(ticket.sink->weights_versions(), std::set<int64_t>{version});
  }
  void ExpectStale() {
    EXPECT_EQ(engine_->state(), EngineState::kAsleep);
    const EngineStats stats = engine_->Stats();
    EXPECT_EQ(stats.sleep_level, 0) << "all memory is mapped";
    EXPECT_EQ(stats.weights_version, 0);
    EXPECT_EQ(stats.weights_source, "");
    EXPECT_EQ(stats.residency.state("weights"), TagState::kStale);
    EXPECT_EQ(What(engine_->Health()),
              "The weights are stale; requests wait until others have been brought.");
  }

  EngineOptions options_;
  FakeExecutor executor_;
  std::unique_ptr<EngineLoop> engine_;
};

}  // namespace somnus
