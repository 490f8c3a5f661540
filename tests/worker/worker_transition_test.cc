// Transitions of one rank over memory that fails: what each phase leaves behind.

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/fakes/fake_vmm_driver.h"
#include "tests/worker/fake_parts.h"
#include "worker/worker.h"

namespace somnus {
namespace {

constexpr int64_t kRegionBytes = 4 * FakeVmmDriver::kUnit;
constexpr int64_t kAllBytes = 3 * kRegionBytes;
using Tags = std::set<std::string>;
const Tags kAll = {"kv_cache", "weights", "workspace"};

// Three regions of the driver's memory; the weights are full of 'w'.
class RegionRunner : public ModelRunner {
 public:
  RegionRunner(FakeVmmDriver* driver, SleepableAllocator* allocator, FakeModelControl* control)
      : driver_(*driver), allocator_(*allocator), control_(*control) {}
  ~RegionRunner() override {
    for (void* data : {weights_, workspace_, kv_cache_}) {
      if (data != nullptr) allocator_.Free(data).IgnoreError();
    }
  }

  absl::Status Init() {
    ASSIGN_OR_RETURN(weights_, allocator_.Allocate("weights", kRegionBytes));
    ASSIGN_OR_RETURN(workspace_, allocator_.Allocate("workspace", kRegionBytes));
    driver_.Fill(weights_, kRegionBytes, 'w');
    return absl::OkStatus();
  }
  bool HasWeights() { return driver_.Holds(weights_, kRegionBytes, 'w'); }

  int64_t kv_block_bytes() const override { return kRegionBytes / 4; }
  std::string weight_types() const override { return "f32"; }
  absl::Status Profile() override { return absl::OkStatus(); }
  absl::StatusOr<GraphReport> ProfileGraphs() override { return GraphReport(); }
  absl::Status AllocateKvCache(int32_t, bool) override {
    ASSIGN_OR_RETURN(kv_cache_, allocator_.Allocate("kv_cache", kRegionBytes));
    return absl::OkStatus();
  }
  absl::Status BeginEpoch() override { return absl::OkStatus(); }
  absl::StatusOr<std::unique_ptr<PendingStep>> Launch(const v1::StepRequest&) override {
    return std::make_unique<FinishedStep>(v1::StepReply());
  }
  absl::Status CheckReload(const Checkpoint&) const override { return control_.check_error; }
  absl::StatusOr<std::unique_ptr<UpdatedTensors>> BeginWeightUpdate(bool) override {
    return absl::UnimplementedError("not needed");
  }
  absl::Status ReloadWeights(const Checkpoint&, const Progress&) override {
    ++control_.reloads;
    driver_.Fill(weights_, kRegionBytes, 'w');
    return control_.reload_error;
  }
  absl::Status ResetAfterWake() override {
    driver_.Fill(workspace_, 1, 't');
    driver_.Fill(kv_cache_, 1, 'k');
    return control_.reset_error;
  }

 private:
  FakeVmmDriver& driver_;
  SleepableAllocator& allocator_;
  FakeModelControl& control_;
  void *weights_ = nullptr, *workspace_ = nullptr, *kv_cache_ = nullptr;
};

// A worker that is awake in epoch 1.
class Rank {
 public:
  Rank() : worker_({.num_threads = 1}, Parts()) { EXPECT_EQ(MakeAwake(worker_), absl::OkStatus()); }
  ~Rank() { EXPECT_EQ(driver_->violations(), std::vector<std::string>{}); }

  struct State {
    std::string name;
    int sleep_level;
    Tags resident;
    int64_t live_bytes, host_bytes;
    bool operator==(const State&) const = default;
  };
  // What the worker says, and what the driver says.
  State state() {
    const v1::WorkerSnapshot snapshot = worker_.Snapshot();
    return {snapshot.state(), snapshot.sleep_level(),
            Tags(snapshot.resident_tags().begin(), snapshot.resident_tags().end()), driver_->live_bytes(),
            driver_->host_bytes()};
  }
  absl::Status Prepare(const v1::Transition& transition, uint64_t id, int64_t epoch = 1) {
    return worker_.Prepare(PrepareOf(transition, id, epoch));
  }
  absl::Status Commit(uint64_t id, int64_t epoch = 1) { return worker_.Commit(CommitOf(id, epoch)).status(); }
  absl::Status Abort(uint64_t id) { return worker_.AbortTransition(AbortOf(id)); }
  // Both phases; the id is later than those of tests.
  absl::Status Run(const v1::Transition& transition, int64_t epoch = 1) {
    return RunTransition(worker_, transition, epoch).status();
  }
  bool HasWeights() { return runner_->HasWeights(); }

  Worker& worker() { return worker_; }
  FakeVmmDriver& driver() { return *driver_; }
  FakeModelControl& control() { return control_; }

 private:
  WorkerParts Parts() {
    WorkerParts parts = FakeParts(&control_);
    parts.open_memory = [this](const WorkerOptions&, int) -> absl::StatusOr<std::unique_ptr<VmmDriver>> {
      auto driver = std::make_unique<FakeVmmDriver>();
      driver_ = driver.get();
      return driver;
    };
    parts.load_runner = [this](const Checkpoint&, const ModelRunnerOptions&, Device*, Communicator*,
                               SleepableAllocator* allocator,
                               const ModelRunner::Progress&) -> absl::StatusOr<std::unique_ptr<ModelRunner>> {
      auto runner = std::make_unique<RegionRunner>(driver_, allocator, &control_);
      runner_ = runner.get();
      RETURN_IF_ERROR(runner->Init());
      return runner;
    };
    return parts;
  }

  FakeModelControl control_;
  FakeVmmDriver* driver_ = nullptr;
  RegionRunner* runner_ = nullptr;
  Worker worker_;
};

TEST(WorkerTransitionTest, ATagSleepsAndWakesAlone) {
  Rank rank;
  ASSERT_EQ(rank.Run(TransitionOf(1, {"kv_cache"})), absl::OkStatus());
  EXPECT_EQ(rank.state(), (Rank::State{"asleep", 1, {"weights", "workspace"}, 2 * kRegionBytes, 0}));
  EXPECT_TRUE(rank.HasWeights());
  ASSERT_EQ(rank.Run(TransitionOf(1, {"weights"})), absl::OkStatus());
  EXPECT_EQ(rank.state(), (Rank::State{"asleep", 1, {"workspace"}, kRegionBytes, kRegionBytes}));
  ASSERT_EQ(rank.Run(TransitionOf(2, {"weights"})), absl::OkStatus());
  EXPECT_EQ(rank.state(), (Rank::State{"asleep", 2, {"workspace"}, kRegionBytes, 0})) << "no copy is left";
  ASSERT_EQ(rank.Run(TransitionOf(0, {"kv_cache"})), absl::OkStatus());
  EXPECT_EQ(rank.state(), (Rank::State{"asleep", 2, {"kv_cache", "workspace"}, 2 * kRegionBytes, 0}));
  ASSERT_EQ(rank.Run(TransitionOf(0, {"weights"})), absl::OkStatus());
  EXPECT_EQ(rank.state(), (Rank::State{"awake", 0, kAll, kAllBytes, 0}));
  EXPECT_TRUE(rank.HasWeights());
  EXPECT_EQ(rank.control().reloads, 1);
}

TEST(WorkerTransitionTest, ThePlanSaysWhatWouldMove) {
  Rank rank;
  const auto plan = [&](const v1::Transition& transition) {
    v1::PlanRequest request;
    request.set_group_epoch(1);
    *request.mutable_transition() = transition;
    return rank.worker().Plan(request).value();
  };
  v1::PlanResponse sleep = plan(TransitionOf(1));
  EXPECT_EQ(sleep.copy_bytes(), kRegionBytes);
  EXPECT_EQ(sleep.release_bytes_by_tag_size(), 3);
  EXPECT_EQ(plan(TransitionOf(2)).copy_bytes(), 0);
  EXPECT_EQ(plan(TransitionOf(0)).map_bytes_by_tag_size(), 0) << "all is resident";
  rank.driver().SetCapacity(kAllBytes);
  ASSERT_EQ(rank.Run(TransitionOf(1)), absl::OkStatus());
  v1::PlanResponse wake = plan(TransitionOf(0, {"weights", "kv_cache"}));
  EXPECT_EQ(wake.copy_bytes(), kRegionBytes);
  EXPECT_EQ(wake.map_bytes_by_tag_size(), 2);
  EXPECT_EQ(wake.map_bytes_by_tag().at("weights"), kRegionBytes);
  EXPECT_EQ(wake.available_bytes(), kAllBytes);
  EXPECT_FALSE(wake.reads_weights());
  EXPECT_EQ(plan(TransitionOf(1)).release_bytes_by_tag_size(), 0);
  ASSERT_EQ(rank.Run(TransitionOf(2)), absl::OkStatus());
  EXPECT_TRUE(plan(TransitionOf(0)).reads_weights());
  EXPECT_FALSE(plan(TransitionOf(0, {"kv_cache"})).reads_weights());
}

TEST(WorkerTransitionTest, AnAbortLeavesEverythingWhereItWas) {
  for (const int level : {1, 2}) {
    Rank rank;
    const Rank::State awake = rank.state();
    ASSERT_EQ(rank.Prepare(TransitionOf(level), 1), absl::OkStatus());
    EXPECT_EQ(rank.Abort(1), absl::OkStatus());
    EXPECT_EQ(rank.state(), awake);
    EXPECT_TRUE(rank.HasWeights());
    ASSERT_EQ(rank.Prepare(TransitionOf(level), 2), absl::OkStatus());
    ASSERT_EQ(rank.Commit(2), absl::OkStatus());
    const Rank::State asleep = rank.state();
    ASSERT_EQ(rank.Prepare(TransitionOf(0), 3), absl::OkStatus());
    EXPECT_EQ(rank.driver().live_bytes(), kAllBytes);
    EXPECT_EQ(rank.worker().Snapshot().resident_tags_size(), 0) << "it has not happened yet";
    EXPECT_EQ(rank.Abort(3), absl::OkStatus());
    EXPECT_EQ(rank.state(), asleep);
    ASSERT_EQ(rank.Run(TransitionOf(0)), absl::OkStatus());
    EXPECT_TRUE(rank.HasWeights());
    EXPECT_EQ(rank.control().reloads, level == 2 ? 2 : 0);
  }
}

TEST(WorkerTransitionTest, APhaseOfAnotherTransitionIsRefused) {
  Rank rank;
  const Rank::State awake = rank.state();
  EXPECT_EQ(rank.Commit(7), absl::FailedPreconditionError("Commit: transition 7 is not prepared"));
  EXPECT_EQ(rank.Abort(8), absl::OkStatus()) << "its Prepare has not come";
  EXPECT_EQ(rank.Prepare(TransitionOf(1), 8),
            absl::FailedPreconditionError("Prepare: transition 8 comes too late, 8 has ended"));
  EXPECT_EQ(rank.Prepare(TransitionOf(1), 7),
            absl::FailedPreconditionError("Prepare: transition 7 comes too late, 8 has ended"));
  ASSERT_EQ(rank.Prepare(TransitionOf(1), 9), absl::OkStatus());
  EXPECT_EQ(rank.Prepare(TransitionOf(1), 10),
            absl::FailedPreconditionError("Prepare: 9 is prepared already"));
  EXPECT_EQ(rank.Commit(8), absl::FailedPreconditionError("Commit: transition 8 is not prepared"));
  const v1::StepReply step = RunStep(rank.worker(), EmptyStep(1));
  EXPECT_EQ(step.error_message(), "Execute: a transition is prepared");
  EXPECT_EQ(rank.state().name, "awake");
  ASSERT_EQ(rank.Commit(9), absl::OkStatus());
  EXPECT_EQ(rank.Abort(9), absl::FailedPreconditionError("Abort: transition 9 was committed"));
  EXPECT_EQ(rank.state().name, "asleep");
  ASSERT_EQ(rank.Run(TransitionOf(0)), absl::OkStatus());
  EXPECT_EQ(rank.state(), awake);
  EXPECT_EQ(RunStep(rank.worker(), EmptyStep(2)).error_code(), 0);
}

TEST(WorkerTransitionTest, AFenceAbortsWhatIsPrepared) {
  for (const int level : {1, 2}) {
    Rank rank;
    const Rank::State awake = rank.state();
    ASSERT_EQ(rank.Prepare(TransitionOf(level), 9), absl::OkStatus());
    auto snapshot = BeginEpoch(rank.worker(), 2);
    ASSERT_TRUE(snapshot.ok()) << snapshot.status();
    EXPECT_EQ(snapshot->resident_tags_size(), 3);
    EXPECT_EQ(rank.state(), awake);
    EXPECT_EQ(rank.Commit(9, 2), absl::FailedPreconditionError("Commit: transition 9 is not prepared"));
    ASSERT_EQ(rank.Prepare(TransitionOf(level), 1, 2), absl::OkStatus()) << "ids begin again";
    ASSERT_EQ(rank.Commit(1, 2), absl::OkStatus());
    const Rank::State asleep = rank.state();
    ASSERT_EQ(rank.Prepare(TransitionOf(0), 2, 2), absl::OkStatus());
    snapshot = BeginEpoch(rank.worker(), 3);
    ASSERT_TRUE(snapshot.ok()) << snapshot.status();
    EXPECT_EQ(snapshot->sleep_level(), level);
    EXPECT_EQ(rank.state(), asleep);
    ASSERT_EQ(rank.Run(TransitionOf(0), 3), absl::OkStatus());
    EXPECT_TRUE(rank.HasWeights());
  }
}

TEST(WorkerTransitionTest, AWakeUpThatFindsNoMemorySaysHowMuchIsMissing) {
  Rank rank;
  ASSERT_EQ(rank.Run(TransitionOf(1)), absl::OkStatus());
  const Rank::State asleep = rank.state();
  rank.driver().SetCapacity(kAllBytes - kRegionBytes / 2);
  EXPECT_EQ(rank.Run(TransitionOf(0)), absl::ResourceExhaustedError(absl::StrCat(
                                           "kv_cache: ", kRegionBytes, " bytes needed, ", kRegionBytes / 2,
                                           " available, ", kRegionBytes / 2, " missing")));
  EXPECT_EQ(rank.state(), asleep);
  rank.driver().SetCapacity(kAllBytes);
  EXPECT_EQ(rank.Run(TransitionOf(0)), absl::OkStatus());
  EXPECT_TRUE(rank.HasWeights());
}

TEST(WorkerTransitionTest, WhatComesAfterTheMappingFailsAsWell) {
  for (const bool reads : {true, false}) {
    Rank rank;
    ASSERT_EQ(rank.Run(TransitionOf(2)), absl::OkStatus());
    const Rank::State asleep = rank.state();
    (reads ? rank.control().reload_error : rank.control().reset_error) = absl::DataLossError("no");
    EXPECT_EQ(rank.Run(TransitionOf(0)), absl::DataLossError("no"));
    EXPECT_EQ(rank.state(), asleep);
    rank.control().reload_error = rank.control().reset_error = absl::OkStatus();
    EXPECT_EQ(rank.Run(TransitionOf(0)), absl::OkStatus());
    EXPECT_TRUE(rank.HasWeights());
  }
}

// The n-th call of the driver fails, whichever that is, in a transition from some state to another.
class FailEveryCall : public testing::TestWithParam<int> {};

TEST_P(FailEveryCall, LeavesEveryTagWhereItWasAndWorksWhenTriedAgain) {
  struct Case {
    std::vector<v1::Transition> before;
    v1::Transition transition;
  };
  const std::vector<Case> cases = {
      {{}, TransitionOf(1)},
      {{}, TransitionOf(2)},
      {{}, TransitionOf(1, {"kv_cache"})},
      {{TransitionOf(1)}, TransitionOf(2)},
      {{TransitionOf(1)}, TransitionOf(0)},
      {{TransitionOf(2)}, TransitionOf(0)},
      {{TransitionOf(2)}, TransitionOf(0, {"weights"})},
      {{TransitionOf(1), TransitionOf(0, {"weights"})}, TransitionOf(0)},
  };
  for (size_t i = 0; i < cases.size(); ++i) {
    SCOPED_TRACE(i);
    Rank rank;
    for (const v1::Transition& transition : cases[i].before)
      ASSERT_EQ(rank.Run(transition), absl::OkStatus());
    const Rank::State before = rank.state();
    rank.driver().FailAt(GetParam());
    const absl::Status status = rank.Run(cases[i].transition);
    const Rank::State after = rank.state();
    if (!status.ok()) {
      EXPECT_EQ(after.name, before.name) << status;
      EXPECT_EQ(after.sleep_level, before.sleep_level);
      EXPECT_EQ(after.resident, before.resident);
      EXPECT_EQ(after.host_bytes, before.host_bytes);
    }
    rank.driver().FailAt(0);
    ASSERT_EQ(rank.Run(cases[i].transition), absl::OkStatus());
    ASSERT_EQ(rank.Run(TransitionOf(0)), absl::OkStatus());
    EXPECT_EQ(rank.state(), (Rank::State{"awake", 0, kAll, kAllBytes, 0}));
    EXPECT_TRUE(rank.HasWeights());
  }
}

INSTANTIATE_TEST_SUITE_P(Worker, FailEveryCall, testing::Range(1, 30));

}  // namespace
}  // namespace somnus
