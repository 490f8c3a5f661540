#include "coordinator/several_models/request_deadlines.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

namespace somnus {
namespace {

constexpr absl::Duration kTtft = absl::Seconds(2);
constexpr absl::Duration kTpot = absl::Milliseconds(100);
constexpr MonotonicTime kNever = absl::InfiniteDuration();

class CountingSink : public OutputSink {
 public:
  void OnOutput(RequestOutput output) override { num_tokens += output.token_ids.size(); }
  size_t num_tokens = 0;
};

class RequestDeadlinesTest : public ::testing::Test {
 protected:
  void Target(absl::Duration ttft, absl::Duration tpot) {
    deadlines_ = std::make_unique<RequestDeadlines>(TokenTargets{ttft, tpot}, [this] { return now_; });
  }
  // The deadlines that the engine gets.
  EngineRequest Arrive() {
    std::vector<EngineRequest> requests(1);
    requests[0].sink = sink_;
    deadlines_->Watch(&requests);
    return requests[0];
  }
  static void Give(const EngineRequest& request, int num_tokens, FinishReason reason = FinishReason::kNone) {
    RequestOutput output;
    output.token_ids.assign(num_tokens, 7);
    output.finish_reason = reason;
    request.sink->OnOutput(std::move(output));
  }

  MonotonicTime now_ = absl::Seconds(1000);
  const MonotonicTime start_ = now_;
  std::shared_ptr<CountingSink> sink_ = std::make_shared<CountingSink>();
  std::unique_ptr<RequestDeadlines> deadlines_;
};

TEST_F(RequestDeadlinesTest, EachTokenHasItsTime) {
  Target(kTtft, kTpot);
  EXPECT_EQ(deadlines_->Earliest(), kNever);
  const EngineRequest request = Arrive();
  EXPECT_EQ(deadlines_->Earliest(), start_ + kTtft);
  now_ += absl::Milliseconds(500);
  Give(request, 1);
  EXPECT_EQ(deadlines_->Earliest(), start_ + kTtft + kTpot) << "an early token is not lost";
  Give(request, 3);
  EXPECT_EQ(deadlines_->Earliest(), start_ + kTtft + 4 * kTpot);
  EXPECT_EQ(sink_->num_tokens, 4u) << "the client has them, too";
}

TEST_F(RequestDeadlinesTest, TheMostUrgentRequestCounts) {
  Target(kTtft, kTpot);
  const EngineRequest first = Arrive();
  now_ += absl::Seconds(1);
  const EngineRequest second = Arrive();
  EXPECT_EQ(deadlines_->Earliest(), start_ + kTtft);
  Give(first, 15);
  EXPECT_EQ(deadlines_->Earliest(), start_ + absl::Seconds(1) + kTtft);
}

TEST_F(RequestDeadlinesTest, ARequestThatHasEndedNeedsNothing) {
  Target(kTtft, kTpot);
  const EngineRequest request = Arrive();
  Give(request, 1);
  Give(request, 1, FinishReason::kLength);
  EXPECT_EQ(deadlines_->Earliest(), kNever);
}

TEST_F(RequestDeadlinesTest, NorDoesOneThatWasRefused) {
  Target(kTtft, kTpot);
  Arrive();  // and is dropped
  EXPECT_EQ(deadlines_->Earliest(), kNever);
}

TEST_F(RequestDeadlinesTest, OneTargetAlone) {
  Target(kTtft, absl::ZeroDuration());
  EngineRequest request = Arrive();
  EXPECT_EQ(deadlines_->Earliest(), start_ + kTtft);
  Give(request, 1);
  EXPECT_EQ(deadlines_->Earliest(), kNever);

  Target(absl::ZeroDuration(), kTpot);
  request = Arrive();
  EXPECT_EQ(deadlines_->Earliest(), kNever);
  now_ += absl::Seconds(30);
  Give(request, 1);
  EXPECT_EQ(deadlines_->Earliest(), now_ + kTpot) << "counted from the first token";
}

TEST_F(RequestDeadlinesTest, WithoutTargetsSinksAreTheClients) {
  Target(absl::ZeroDuration(), absl::ZeroDuration());
  EXPECT_EQ(Arrive().sink, sink_);
}

TEST_F(RequestDeadlinesTest, ARequestMayOutliveIt) {
  Target(kTtft, kTpot);
  const EngineRequest request = Arrive();
  deadlines_.reset();
  Give(request, 1, FinishReason::kStop);
  EXPECT_EQ(sink_->num_tokens, 1u);
}

}  // namespace
}  // namespace somnus
