// How long a worker waits for a coordinator that does not reply, by a clock that only the test moves.

#include "worker/coordinator_link.h"

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "base/log.h"
#include "proto/cluster.grpc.pb.h"
#include "tests/fakes/temp_dir.h"

namespace somnus {
namespace {

const CoordinatorLink::Refresh kNothingNew = [](v1::RegisterRequest*) {};

class Coordinator : public v1::ClusterService::Service {
 public:
  explicit Coordinator(const std::string& address) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort(address, grpc::InsecureServerCredentials());
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  ~Coordinator() override { server_->Shutdown(std::chrono::system_clock::now()); }

  grpc::Status Register(grpc::ServerContext*, const v1::RegisterRequest* request,
                        v1::RegisterResponse* response) override {
    absl::MutexLock lock(&mu_);
    registrations_.push_back(*request);
    if (num_refusals_ > 0) {
      --num_refusals_;
      return grpc::Status(grpc::StatusCode::UNAVAILABLE, "all places are taken");
    }
    known_ = true;
    response->set_action(action_);
    response->set_reason("other options");
    response->set_heartbeat_interval_ms(10);
    return grpc::Status::OK;
  }
  grpc::Status Heartbeat(grpc::ServerContext* context, const v1::HeartbeatRequest* request,
                         v1::HeartbeatResponse* response) override {
    absl::MutexLock lock(&mu_);
    response->set_known(known_);
    last_timeout_ = absl::FromChrono(context->deadline()) - absl::Now();
    last_beat_ = *request;
    ++num_beats_;
    return grpc::Status::OK;
  }
  // The coordinator does not know the worker of the next heartbeat, and gives `action` when the worker
  // registers.
  void Forget(v1::RegisterAction action = v1::REGISTER_ACTION_ADOPT) {
    absl::MutexLock lock(&mu_);
    known_ = false;
    action_ = action;
  }
  v1::RegisterRequest WaitForRegistration(size_t index) {
    absl::MutexLock lock(&mu_);
    const auto there = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return registrations_.size() > index; };
    mu_.Await(absl::Condition(&there));
    return registrations_[index];
  }
  void RefuseNext(int count) {
    absl::MutexLock lock(&mu_);
    num_refusals_ = count;
  }
  void WaitForBeats(int count) {
    absl::MutexLock lock(&mu_);
    const auto enough = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return num_beats_ >= count; };
    mu_.Await(absl::Condition(&enough));
  }
  // How long the worker would have waited for the reply to the last heartbeat, at most.
  absl::Duration last_timeout() {
    absl::MutexLock lock(&mu_);
    return last_timeout_;
  }
  v1::HeartbeatRequest last_beat() {
    absl::MutexLock lock(&mu_);
    return last_beat_;
  }

 private:
  absl::Mutex mu_;
  v1::HeartbeatRequest last_beat_ ABSL_GUARDED_BY(mu_);
  absl::Duration last_timeout_ ABSL_GUARDED_BY(mu_);
  int num_beats_ ABSL_GUARDED_BY(mu_) = 0;
  int num_refusals_ ABSL_GUARDED_BY(mu_) = 0;
  bool known_ ABSL_GUARDED_BY(mu_) = true;
  v1::RegisterAction action_ ABSL_GUARDED_BY(mu_) = v1::REGISTER_ACTION_ADOPT;
  std::vector<v1::RegisterRequest> registrations_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<grpc::Server> server_;
};

class CoordinatorLinkTest : public ::testing::Test {
 protected:
  void SetUp() override {
    options_.coordinator = "unix:" + directory_.path() + "/socket";
    options_.now = [this] {
      absl::MutexLock lock(&mu_);
      return now_;
    };
  }
  void Advance(absl::Duration duration) {
    absl::MutexLock lock(&mu_);
    now_ += duration;
  }

  const TempDir directory_;
  CoordinatorLinkOptions options_;
  absl::Mutex mu_;
  MonotonicTime now_ ABSL_GUARDED_BY(mu_) = absl::Seconds(1);
};

TEST_F(CoordinatorLinkTest, AnAnswerKeepsTheWorkerHoweverLateItComes) {
  Coordinator coordinator(options_.coordinator);
  const auto link = CoordinatorLink::Create(options_);
  v1::RegisterRequest request;
  request.set_worker_id("a");
  ASSERT_TRUE(link->Register(request).ok());
  absl::Notification left;
  link->StartHeartbeats([](v1::HeartbeatRequest* beat) { beat->set_last_step_id(7); }, kNothingNew,
                        [&](const absl::Status&) { left.Notify(); });
  coordinator.WaitForBeats(2);
  Advance(absl::Hours(100));
  coordinator.WaitForBeats(10);
  EXPECT_EQ(coordinator.last_beat().worker_id(), "a");
  EXPECT_EQ(coordinator.last_beat().last_step_id(), 7);
  EXPECT_LE(coordinator.last_timeout(), absl::Milliseconds(1500)) << "a lost one must not hold up the next";
  EXPECT_FALSE(left.HasBeenNotified());
}

TEST_F(CoordinatorLinkTest, AWorkerLeavesWhenTheGraceHasPassedOnItsClock) {
  options_.worker_grace = absl::Hours(1);
  auto coordinator = std::make_unique<Coordinator>(options_.coordinator);
  const auto link = CoordinatorLink::Create(options_);
  ASSERT_TRUE(link->Register(v1::RegisterRequest()).ok());
  absl::Notification left;
  absl::Status reason;
  link->StartHeartbeats([](v1::HeartbeatRequest*) {}, kNothingNew,
                        [&](const absl::Status& status) {
                          reason = status;
                          left.Notify();
                        });
  coordinator->WaitForBeats(1);
  coordinator.reset();
  // Again and again: the link may take note of the last reply after the clock has moved.
  do {
    Advance(absl::Hours(1));
  } while (!left.WaitForNotificationWithTimeout(absl::Milliseconds(20)));
  EXPECT_TRUE(absl::IsUnavailable(reason)) << reason;
  EXPECT_NE(reason.message().find(options_.coordinator), absl::string_view::npos) << reason;
}

TEST_F(CoordinatorLinkTest, AWorkerTellsTheNextCoordinatorWhatItHolds) {
  options_.worker_grace = absl::Hours(1);
  auto coordinator = std::make_unique<Coordinator>(options_.coordinator);
  const auto link = CoordinatorLink::Create(options_);
  v1::RegisterRequest request;
  request.set_worker_id("a");
  request.set_host("here");
  ASSERT_TRUE(link->Register(request).ok());
  absl::Notification left;
  link->StartHeartbeats([](v1::HeartbeatRequest*) {},
                        [](v1::RegisterRequest* again) { again->mutable_snapshot()->set_num_blocks(9); },
                        [&](const absl::Status&) { left.Notify(); });
  EXPECT_FALSE(coordinator->WaitForRegistration(0).has_snapshot());
  coordinator->WaitForBeats(1);
  coordinator.reset();
  coordinator = std::make_unique<Coordinator>(options_.coordinator);
  coordinator->RefuseNext(2);  // the worker's place is taken for now
  coordinator->Forget();
  const v1::RegisterRequest again = coordinator->WaitForRegistration(2);
  EXPECT_EQ(again.worker_id(), "a");
  EXPECT_EQ(again.host(), "here");
  EXPECT_EQ(again.snapshot().num_blocks(), 9);
  coordinator->WaitForBeats(10);
  EXPECT_FALSE(left.HasBeenNotified());
}

TEST_F(CoordinatorLinkTest, ALossIsNoticedBeforeAHeartbeatIsDue) {
  options_.worker_grace = absl::Hours(1);
  options_.heartbeat_interval = absl::Hours(100);
  auto coordinator = std::make_unique<Coordinator>(options_.coordinator);
  const auto link = CoordinatorLink::Create(options_);
  ASSERT_TRUE(link->Register(v1::RegisterRequest()).ok());
  link->StartHeartbeats([](v1::HeartbeatRequest*) {}, kNothingNew, [](const absl::Status&) {});
  for (int i = 0; i < 3; ++i) {
    coordinator.reset();
    coordinator = std::make_unique<Coordinator>(options_.coordinator);
    coordinator->Forget();
    coordinator->WaitForRegistration(0);
  }
  coordinator.reset();  // the link ends while the worker looks for a new coordinator
}

TEST_F(CoordinatorLinkTest, ItEndsWhileItWatchesItsCoordinator) {
  options_.heartbeat_interval = absl::Hours(100);
  Coordinator coordinator(options_.coordinator);
  const auto link = CoordinatorLink::Create(options_);
  ASSERT_TRUE(link->Register(v1::RegisterRequest()).ok());
  link->StartHeartbeats([](v1::HeartbeatRequest*) {}, kNothingNew, [](const absl::Status&) {});
}

TEST_F(CoordinatorLinkTest, AWorkerLeavesWhenTheNextCoordinatorHasNoUseForIt) {
  for (const v1::RegisterAction action : {v1::REGISTER_ACTION_RESET, v1::REGISTER_ACTION_LEAVE}) {
    Coordinator coordinator(options_.coordinator);
    const auto link = CoordinatorLink::Create(options_);
    ASSERT_TRUE(link->Register(v1::RegisterRequest()).ok());
    coordinator.Forget(action);
    absl::Notification left;
    absl::Status reason;
    link->StartHeartbeats([](v1::HeartbeatRequest*) {}, kNothingNew,
                          [&](const absl::Status& status) {
                            reason = status;
                            left.Notify();
                          });
    left.WaitForNotification();
    EXPECT_TRUE(absl::IsFailedPrecondition(reason)) << reason;
    EXPECT_NE(reason.message().find("other options"), absl::string_view::npos) << reason;
  }
}

TEST_F(CoordinatorLinkTest, RegistrationIsGivenUpOnItsClock) {
  options_.register_timeout = absl::ZeroDuration();
  const auto link = CoordinatorLink::Create(options_);
  EXPECT_TRUE(absl::IsDeadlineExceeded(link->Register(v1::RegisterRequest())));
}

TEST_F(CoordinatorLinkTest, ASpareAsksUntilThereIsAPlaceAndLogsItsWaitOnce) {
  Coordinator coordinator(options_.coordinator);
  coordinator.RefuseNext(3);
  const auto link = CoordinatorLink::Create(options_);
  static const absl::Status logging =
      InitLogging("worker", "info", 1 << 20);  // once, though tests may be repeated
  ASSERT_TRUE(logging.ok());
  testing::internal::CaptureStderr();
  EXPECT_TRUE(link->Register(v1::RegisterRequest()).ok());
  const std::string log = testing::internal::GetCapturedStderr();
  const size_t first = log.find("waiting for a place");
  ASSERT_NE(first, std::string::npos) << log;
  EXPECT_NE(log.find("all places are taken", first), std::string::npos) << log;
  EXPECT_EQ(log.find("waiting for a place", first + 1), std::string::npos) << log;
}

TEST_F(CoordinatorLinkTest, ASpareThatNobodyNeedsSaysWhyItLeaves) {
  Coordinator coordinator(options_.coordinator);
  coordinator.RefuseNext(1);
  options_.register_timeout = absl::ZeroDuration();
  const auto link = CoordinatorLink::Create(options_);
  const absl::Status status = link->Register(v1::RegisterRequest());
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_NE(status.message().find(options_.coordinator), absl::string_view::npos) << status;
  EXPECT_NE(status.message().find("all places are taken"), absl::string_view::npos) << status;
}

}  // namespace
}  // namespace somnus
