// ControlService's WatchTransition: what watchers see of a transition, when their streams end, and how many
// may watch.

#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "coordinator/http/api_limits.h"
#include "tests/api/grpc_services_fixture.h"

namespace somnus {
namespace {

v1::TransitionProgress Progress(const std::string& phase, int64_t done) {
  v1::TransitionProgress progress;
  progress.set_prepare_operation_id(7);
  progress.set_wakes_up(true);
  progress.set_phase(phase);
  progress.set_bytes_done(done);
  progress.set_bytes_total(100);
  return progress;
}

// A client's stream.
class Watcher {
 public:
  Watcher(v1::ControlService::Stub* stub, const v1::WatchTransitionRequest& request)
      : reader_(stub->WatchTransition(&context_, request)) {}
  // Nullopt: the stream has ended.
  std::optional<v1::WatchTransitionResponse> Read() {
    v1::WatchTransitionResponse response;
    if (!reader_->Read(&response)) return std::nullopt;
    return response;
  }
  // The next message for which `holds`.
  template <typename Holds>
  v1::WatchTransitionResponse ReadUntil(const Holds& holds) {
    v1::WatchTransitionResponse last;
    while (auto response = Read()) {
      last = *std::move(response);
      if (holds(last)) return last;
    }
    ADD_FAILURE() << "the stream has ended after " << last.ShortDebugString();
    return last;
  }
  void Cancel() { context_.TryCancel(); }
  // After the last message.
  grpc::Status Finish() {
    while (Read().has_value()) {
    }
    return reader_->Finish();
  }

 private:
  grpc::ClientContext context_;
  const std::unique_ptr<grpc::ClientReader<v1::WatchTransitionResponse>> reader_;
};

class TransitionWatchTest : public GrpcServicesTest {
 protected:
  void SetUp() override {
    rank_status_ = [this] {
      absl::MutexLock lock(&mutex_);
      return ranks_;
    };
    Start(ApiLimits{.max_transition_watchers = kMaxWatchers});
  }
  // Rank 1 of replica 2 replies with this; rank 0 does not reply.
  void Set(EngineState state, const v1::TransitionProgress& progress) {
    absl::MutexLock lock(&mutex_);
    ranks_.assign(2, v1::RankStatus());
    ranks_[0].set_error("it does not reply");
    ranks_[1].set_replica(2);
    ranks_[1].set_rank(1);
    *ranks_[1].mutable_transition() = progress;
    engine_->set_state(state);
  }
  std::unique_ptr<Watcher> Watch(bool follow = false, double interval_s = 0.05) {
    v1::WatchTransitionRequest request;
    request.set_interval_s(interval_s);
    request.set_follow(follow);
    return std::make_unique<Watcher>(control_.get(), request);
  }
  grpc::Status Refused(const v1::WatchTransitionRequest& request) {
    return Watcher(control_.get(), request).Finish();
  }

  static constexpr int kMaxWatchers = 3;
  absl::Mutex mutex_;
  std::vector<v1::RankStatus> ranks_ ABSL_GUARDED_BY(mutex_);
};

TEST_F(TransitionWatchTest, AWatcherSeesProgressUntilTheEnd) {
  Set(EngineState::kWaking, Progress("map", 10));
  const auto watcher = Watch();
  const auto first = watcher->Read();
  ASSERT_TRUE(first.has_value());
  EXPECT_EQ(first->state(), v1::ENGINE_STATE_WAKING);
  ASSERT_EQ(first->ranks_size(), 2);
  EXPECT_FALSE(first->ranks(0).has_progress()) << "it does not reply";
  EXPECT_EQ(first->ranks(1).replica(), 2);
  EXPECT_EQ(first->ranks(1).rank(), 1);
  EXPECT_EQ(first->ranks(1).progress().phase(), "map");
  EXPECT_EQ(first->ranks(1).progress().bytes_done(), 10);
  Set(EngineState::kWaking, Progress("read", 60));
  const auto done = [](int64_t bytes) {
    return [bytes](const v1::WatchTransitionResponse& response) {
      return response.ranks(1).progress().bytes_done() == bytes;
    };
  };
  EXPECT_EQ(watcher->ReadUntil(done(60)).ranks(1).progress().phase(), "read");
  Set(EngineState::kAwake, Progress("committed", 100));
  const auto last = watcher->ReadUntil(
      [](const v1::WatchTransitionResponse& response) { return response.state() == v1::ENGINE_STATE_AWAKE; });
  EXPECT_EQ(last.ranks(1).progress().phase(), "committed");
  EXPECT_EQ(last.ranks(1).progress().bytes_done(), 100);
  EXPECT_FALSE(watcher->Read().has_value()) << "it is over";
  EXPECT_TRUE(watcher->Finish().ok());
}

TEST_F(TransitionWatchTest, WithoutATransitionThereIsOneMessage) {
  Set(EngineState::kAwake, Progress("committed", 100));
  const auto watcher = Watch();
  ASSERT_TRUE(watcher->Read().has_value());
  EXPECT_FALSE(watcher->Read().has_value());
  EXPECT_TRUE(watcher->Finish().ok());
}

// One of several replicas may still be busy when the engine as a whole is not.
TEST_F(TransitionWatchTest, ARankThatIsNotDoneKeepsTheStreamOpen) {
  Set(EngineState::kAsleep, Progress("prepared", 90));
  const auto watcher = Watch();
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(watcher->Read().has_value());
  Set(EngineState::kAsleep, Progress("aborted", 90));
  EXPECT_TRUE(watcher->Finish().ok());
}

TEST_F(TransitionWatchTest, WhoFollowsSeesTheNextTransitionToo) {
  Set(EngineState::kAwake, Progress("committed", 100));
  const auto watcher = Watch(/*follow=*/true);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(watcher->Read().has_value());
  v1::SleepResponse slept;
  ASSERT_TRUE(Sleep(1, &slept).ok()) << "a watcher holds no other call up";
  watcher->ReadUntil([](const v1::WatchTransitionResponse& response) {
    return response.state() == v1::ENGINE_STATE_ASLEEP;
  });
  engine_->set_state(EngineState::kDraining);
  EXPECT_TRUE(watcher->Finish().ok()) << "the server ends";
}

TEST_F(TransitionWatchTest, OfAFailedEngineNothingIsUnderWay) {
  Set(EngineState::kFailed, Progress("prepared", 90));
  EXPECT_TRUE(Watch()->Finish().ok());
}

TEST_F(TransitionWatchTest, AWatcherThatLeavesMakesRoomForAnother) {
  Set(EngineState::kWaking, Progress("map", 10));
  // Far longer than this test takes: a watcher that leaves is noticed at once, not when it is its turn.
  constexpr double kInterval = 60;
  std::vector<std::unique_ptr<Watcher>> watchers;
  for (int i = 0; i < kMaxWatchers; ++i) {
    watchers.push_back(Watch(/*follow=*/i % 2 == 0, kInterval));
    EXPECT_TRUE(watchers.back()->Read().has_value());
  }
  const grpc::Status refused = Watch()->Finish();
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(refused.error_message(), "3 clients watch already, and no more may");
  for (int i = 0; i < 2; ++i) {
    watchers[i]->Cancel();
    EXPECT_EQ(watchers[i]->Finish().error_code(), grpc::StatusCode::CANCELLED);
  }
  const absl::Time deadline = absl::Now() + absl::Seconds(kInterval / 2);
  for (int i = 0; i < 2;) {
    auto another = Watch(/*follow=*/true, kInterval);
    if (another->Read().has_value()) {
      watchers.push_back(std::move(another));
      ++i;
    } else {
      ASSERT_LT(absl::Now(), deadline) << "the places are still taken";
    }
  }
  EXPECT_EQ(Watch()->Finish().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  for (const auto& watcher : watchers) watcher->Cancel();
}

TEST_F(TransitionWatchTest, FieldsAreChecked) {
  v1::WatchTransitionRequest request;
  for (const double interval : {0.0, -1.0, 0.04, 61.0, std::numeric_limits<double>::quiet_NaN()}) {
    request.set_interval_s(interval);
    const grpc::Status status = Refused(request);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << interval;
    EXPECT_EQ(status.error_message(), "interval_s: must be from 0.05 to 60");
  }
  request.clear_interval_s();
  request.set_model("another");
  EXPECT_EQ(Refused(request).error_code(), grpc::StatusCode::NOT_FOUND);
  request.clear_model();
  EXPECT_TRUE(Refused(request).ok());
}

TEST_F(TransitionWatchTest, OperatorsKeyIsRequired) {
  options_.admin_api_keys = ApiKeys("secret");
  Start(ApiLimits());
  EXPECT_EQ(Watch()->Finish().error_code(), grpc::StatusCode::UNAUTHENTICATED);
}

}  // namespace
}  // namespace somnus
