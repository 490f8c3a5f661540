// Requests that pool, through the whole loop: each request gets its vector once, whichever step is lost, and
// through sleeps.

#include <gtest/gtest.h>

#include "tests/engine/engine_test_util.h"

namespace somnus {
namespace {

const absl::Status kLoss = absl::UnavailableError("rank 1 (pid 77) was killed by signal 9 (Killed)");
constexpr Pooling kAll[] = {Pooling::kLast, Pooling::kCls, Pooling::kMean};

Ticket PoolingTicket(const std::string& id, int32_t prompt_len, Pooling pooling, int32_t first = 1) {
  Ticket ticket = MakeTicket(id, prompt_len, /*max_tokens=*/0, first);
  ticket.request.pooling = pooling;
  return ticket;
}

void ExpectPooled(const Ticket& ticket) {
  ASSERT_TRUE(ticket.sink->Wait());
  EXPECT_EQ(ticket.sink->reason(), FinishReason::kStop) << ticket.sink->error();
  EXPECT_TRUE(ticket.sink->tokens().empty());
  EXPECT_EQ(ticket.sink->pooled(),
            FakeWorker::ReferencePooled(ticket.request.prompt,
                                        static_cast<v1::StepPooling>(ticket.request.pooling)));
  EXPECT_EQ(ticket.sink->outputs_after_end(), 0);
}

class EnginePoolingTest : public ::testing::TestWithParam<bool> {
 protected:
  EnginePoolingTest() : options_(SmallEngine(GetParam())) { options_.max_recoveries = 1000; }
  EngineOptions options_;
};
INSTANTIATE_TEST_SUITE_P(Overlap, EnginePoolingTest, ::testing::Bool());

TEST_P(EnginePoolingTest, WhicheverStepIsLostTheVectorsAreThose) {
  for (int64_t lost = 0; lost < 14; ++lost) {
    FakeExecutor executor(SmallWorker(options_));
    executor.SetRecovery(FakeExecutor::Recovery::kSucceeds);
    if (lost > 0) executor.FailStep(lost, kLoss);
    EngineLoop engine(options_, &executor, nullptr);
    std::vector<Ticket> tickets;
    for (const Pooling pooling : kAll)
      tickets.push_back(PoolingTicket(std::to_string(tickets.size()), 40, pooling, 100 * tickets.size() + 1));
    const Ticket text = MakeTicket("text", 20, 5, 500);
    for (const Ticket& ticket : tickets) ASSERT_TRUE(engine.Submit(ticket.request).ok());
    ASSERT_TRUE(engine.Submit(text.request).ok());
    for (const Ticket& ticket : tickets) ExpectPooled(ticket);
    ASSERT_TRUE(text.sink->Wait());
    EXPECT_EQ(text.sink->tokens(), Reference(text)) << lost;
    EXPECT_EQ(engine.Stats().generation_tokens, 5) << lost;
  }
}

TEST_P(EnginePoolingTest, AbortsAndRequestsThatCanNeverFit) {
  FakeExecutor executor(SmallWorker(options_));
  EngineLoop engine(options_, &executor, nullptr);
  EXPECT_TRUE(absl::IsInvalidArgument(engine.Submit(PoolingTicket("long", 201, Pooling::kMean).request)));
  const Ticket whole = PoolingTicket("whole", 200, Pooling::kMean);
  ASSERT_TRUE(engine.Submit(whole.request).ok());
  ExpectPooled(whole);
  const Ticket aborted = PoolingTicket("aborted", 200, Pooling::kMean, 300);
  ASSERT_TRUE(engine.Submit(aborted.request).ok());
  engine.Abort("aborted");
  ASSERT_TRUE(aborted.sink->Wait());
  // The request may have ended before the abort came.
  EXPECT_TRUE(aborted.sink->reason() == FinishReason::kAbort ||
              aborted.sink->reason() == FinishReason::kStop);
}

}  // namespace
}  // namespace somnus
