#pragma once
// An Executor over one FakeWorker, with a script: steps and lifecycle calls can be held back or fail, and a
// rank can be lost at any time. All methods are thread safe.

#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "coordinator/executor/executor.h"
#include "tests/fakes/fake_worker.h"

namespace somnus {

class FakeExecutor : public Executor {
 public:
  static constexpr int64_t kKvBlockBytes = 8;       // of the host, for each block that is kept
  static constexpr int64_t kDeviceBlockBytes = 10;  // of the device, for each block that has memory

  explicit FakeExecutor(const FakeWorkerOptions& options) : worker_(options) {}

  // While held, Wait blocks (until its timeout).
  void Hold(bool held) {
    absl::MutexLock lock(&mu_);
    held_ = held;
  }
  // From now on each step takes so long.
  void SetStepTime(absl::Duration time) {
    absl::MutexLock lock(&mu_);
    step_time_ = time;
  }
  // The reply to that step will be `error`, which is a failure of the group.
  void FailStep(int64_t step_id, const absl::Status& error) {
    absl::MutexLock lock(&mu_);
    step_errors_[step_id] = error;
  }
  // A rank is lost: every call returns `reason`, and the callback runs.
  void Lose(const absl::Status& reason);
  // A lifecycle call that a loss interrupts ends only when HoldLifecycle(false) is called.
  void SetLateResults(bool late) {
    absl::MutexLock lock(&mu_);
    late_results_ = late;
  }
  // How recoveries end: with the failure, which is the default; well, at once; or by FinishRecovery.
  enum class Recovery { kFails, kSucceeds, kWaits };
  void SetRecovery(Recovery recovery) {
    absl::MutexLock lock(&mu_);
    recovery_ = recovery;
  }
  // Ends the recovery that waits: well when `status` is ok.
  void FinishRecovery(const absl::Status& status);
  // The recovery that waits ends well, and a rank is lost before anybody has heard of either; the news of the
  // loss comes first.
  void LoseAtOnce(const absl::Status& reason);
  // The state that the engine asked recoveries to bring back: "awake" or "asleep <level> <tag> ..."; or
  // "restart".
  std::vector<std::string> recoveries() const {
    absl::MutexLock lock(&mu_);
    return recoveries_;
  }
  // While held, no Sleep and no WakeUp ends. The thread that ends the hold ends the call that is held.
  void HoldLifecycle(bool held) {
    std::function<void()> late, call;
    {
      absl::MutexLock lock(&mu_);
      lifecycle_held_ = held;
      if (!held) {
        late = std::exchange(late_call_, nullptr);
        call = std::exchange(held_call_, nullptr);
      }
    }
    if (late) late();
    if (call) call();
  }
  // The held lifecycle call is committed, as the engine hears when it learns of a loss.
  void Commit() {
    absl::MutexLock lock(&mu_);
    committed_ = true;
  }
  // Sets the result of Progress.
  void SetProgress(const absl::Status& progress) {
    absl::MutexLock lock(&mu_);
    progress_ = progress;
  }
  void FailNextLifecycleCall(const absl::Status& error) {
    absl::MutexLock lock(&mu_);
    lifecycle_error_ = error;
  }
  // From now on, adapters at that path have another fingerprint.
  void ChangeAdapterFiles(const std::string& path) {
    absl::MutexLock lock(&mu_);
    ++file_changes_[path];
  }
  // Every wake-up ends with this error from now on; ok: wake-ups succeed.
  void SetWakeUpError(const absl::Status& error) {
    absl::MutexLock lock(&mu_);
    wake_up_error_ = error;
  }
  // The backup of every sleep at level 1 finds no room from now on; ok: it finds room.
  void SetBackupError(const absl::Status& error) {
    absl::MutexLock lock(&mu_);
    backup_error_ = error;
  }
  int64_t num_steps_sent() const {
    absl::MutexLock lock(&mu_);
    return num_steps_sent_;
  }
  int64_t num_waits() const {
    absl::MutexLock lock(&mu_);
    return num_waits_;
  }
  // The timeouts of calls of Wait.
  std::vector<absl::Duration> wait_timeouts() const {
    absl::MutexLock lock(&mu_);
    return wait_timeouts_;
  }
  size_t max_in_flight() const {
    absl::MutexLock lock(&mu_);
    return max_in_flight_;
  }
  std::vector<std::string> lifecycle_calls() const {
    absl::MutexLock lock(&mu_);
    return lifecycle_calls_;
  }
  int64_t num_computed_tokens() const {
    absl::MutexLock lock(&mu_);
    return worker_.num_computed_tokens();
  }

  absl::Status ExecuteAsync(v1::StepRequest* step) override {
    absl::MutexLock lock(&mu_);
    if (!health_.ok()) return health_;
    // The step is executed at once, or when its masks come: in order, as workers do, and before any later
    // step.
    steps_.push_back(*step);
    ++num_steps_sent_;
    max_in_flight_ = std::max(max_in_flight_, replies_.size() + steps_.size());
    if (steps_.size() == 1 && !step->awaits_masks()) ExecuteNext();
    return absl::OkStatus();
  }

  absl::Status SendMasks(v1::StepMasks masks) override {
    absl::MutexLock lock(&mu_);
    if (!health_.ok()) return health_;
    if (steps_.empty() || steps_.front().step_id() != masks.step_id())
      return absl::InternalError("masks of a step that does not await them");
    *steps_.front().mutable_masks() = std::move(masks);
    ExecuteNext();
    while (!steps_.empty() && !steps_.front().awaits_masks()) ExecuteNext();
    return absl::OkStatus();
  }

  absl::StatusOr<v1::StepReply> Wait(absl::Duration timeout) override;

  void SleepAsync(const SleepSpec& spec, const HostTierBlocks& host, LifecycleDone done) override {
    std::string call = "sleep " + std::to_string(spec.level);
    {
      absl::MutexLock lock(&mu_);
      // A call that changes all tags is shown like a request that names no tags.
      if (spec.tags != residency_.ToSleep({.level = spec.level})) {
        for (const std::string& tag : spec.tags) call += " " + tag;
      }
    }
    if (!host.kept.empty()) call += " keep " + std::to_string(host.kept.size());
    RunOrHold(call, [this, spec, host, epoch = group_epoch(), done = std::move(done)] {
      done(EndSleep(spec, host, epoch));
    });
  }
  void WakeUpAsync(const std::vector<std::string>& tags, bool reads_weights, const HostTierBlocks& host,
                   LifecycleDone done) override {
    std::string call = "wake";
    for (const std::string& tag : tags) call += " " + tag;
    if (!reads_weights && NamesDiscarded(tags)) call += " unread";
    if (!host.kept.empty()) call += " keep " + std::to_string(host.kept.size());
    RunOrHold(call, [this, tags, reads_weights, host, epoch = group_epoch(), done = std::move(done)] {
      done(EndWakeUp(tags, !reads_weights, host, epoch));
    });
  }

  void SelfCheckAsync(SelfCheckDone done) override {
    RunOrHold("check", [this, epoch = group_epoch(), done = std::move(done)] {
      std::function<void()> before;
      {
        absl::MutexLock lock(&mu_);
        before = std::exchange(before_check_, nullptr);
      }
      if (before) before();
      done(EndCheck(epoch));
    });
  }
  // Within the next self-check.
  void BeforeNextCheck(std::function<void()> before) {
    absl::MutexLock lock(&mu_);
    before_check_ = std::move(before);
  }
  // The result of self-checks from now on.
  void SetChecked(const SelfCheckResult& checked) {
    absl::MutexLock lock(&mu_);
    checked_ = checked;
  }

  absl::Status Prefetch() override {
    absl::MutexLock lock(&mu_);
    lifecycle_calls_.push_back("prefetch");
    return health_;
  }
  // The result of PlanWakeUp from now on.
  void SetNeeds(const std::vector<RankNeed>& needs) {
    absl::MutexLock lock(&mu_);
    needs_ = needs;
  }
  absl::StatusOr<std::vector<RankNeed>> PlanWakeUp(const std::vector<std::string>& /*tags*/) override {
    absl::MutexLock lock(&mu_);
    if (!health_.ok()) return health_;
    return needs_;
  }
  void ResizeKvCacheAsync(int32_t num_blocks, int32_t num_before, LifecycleDone done) override {
    RunOrHold("resize " + std::to_string(num_before) + " to " + std::to_string(num_blocks),
              [this, num_blocks, epoch = group_epoch(), done = std::move(done)] {
                done(EndResize(num_blocks, epoch));
              });
  }
  void SetAdaptersAsync(const std::vector<HeldAdapter>& adapters, const std::vector<HeldAdapter>& kept,
                        LifecycleDone done) override {
    std::string call = "adapters";
    for (const HeldAdapter& adapter : adapters) absl::StrAppend(&call, " ", adapter.slot, "=", adapter.name);
    RunOrHold(call, [this, adapters, kept, epoch = group_epoch(), done = std::move(done)] {
      const absl::StatusOr<TransitionReport> report = EndAdapters(adapters, epoch);
      if (!report.ok() && Health().ok() && !EndAdapters(kept, epoch).ok())
        Lose(absl::UnavailableError("the adapters are not those of before"));
      done(report);
    });
  }
  void ReadAdaptersAsync(const std::vector<HeldAdapter>& adapters, LifecycleDone done) override {
    absl::StatusOr<TransitionReport> report = TransitionReport();
    {
      absl::MutexLock lock(&mu_);
      for (const HeldAdapter& adapter : adapters) adapter_reads_.push_back(adapter.name);
      if (!health_.ok()) report = health_;
      if (const absl::Status error = std::exchange(read_error_, absl::OkStatus()); !error.ok())
        report = error;
      if (reads_held_ && health_.ok()) {
        held_read_ = [done = std::move(done), report](const absl::Status& cancelled) {
          if (cancelled.ok()) return done(report);
          done(cancelled);
        };
        return;
      }
    }
    done(report);
  }
  // While held, no read of adapters ends. The thread that ends the hold ends the read.
  void HoldAdapterReads(bool held) {
    std::function<void(const absl::Status&)> read;
    {
      absl::MutexLock lock(&mu_);
      reads_held_ = held;
      if (!held) read = std::exchange(held_read_, nullptr);
    }
    if (read) read(absl::OkStatus());
  }
  void CancelRead(const absl::Status& reason) override {
    std::function<void(const absl::Status&)> read;
    {
      absl::MutexLock lock(&mu_);
      read = std::exchange(held_read_, nullptr);
    }
    if (read) read(reason);
  }
  void FailNextAdapterRead(const absl::Status& error) {
    absl::MutexLock lock(&mu_);
    read_error_ = error;
  }
  // The names of the adapters that were read ahead, in order.
  std::vector<std::string> adapter_reads() const {
    absl::MutexLock lock(&mu_);
    return adapter_reads_;
  }
  void ReloadWeightsAsync(const std::string& path, int64_t version, WeightsDone done) override {
    ChangeWeights("reload " + path + " as " + std::to_string(version), version, std::move(done));
  }
  void BeginWeightUpdateAsync(const std::string& id, const std::string& token,
                              const std::vector<v1::WeightChunk>& tensors, WeightsDone done) override {
    if (!tensors.empty()) SetNextTensors(tensors);
    ChangeWeights("begin update", 0, [this, id, token, done = std::move(done)](WeightsOutcome outcome) {
      {
        absl::MutexLock lock(&mu_);
        updating_ = outcome.status.ok() ? id : "";
      }
      if (!token.empty()) outcome.ports.emplace_back().set_address("port for " + token);
      done(outcome);
    });
  }
  absl::Status SendWeights(const std::string& update_id, v1::WeightChunk chunk) override {
    absl::MutexLock lock(&mu_);
    if (!health_.ok()) return health_;
    if (updating_ != update_id) return absl::FailedPreconditionError("no update is under way");
    lifecycle_calls_.push_back("chunk " + chunk.name());
    return std::exchange(chunk_error_, absl::OkStatus());
  }
  void FinishWeightUpdateAsync(int64_t version, const std::optional<ReceivedWeights>& expected,
                               WeightsDone done) override {
    const std::string of = expected.has_value() ? " of " + std::to_string(expected->num_tensors) : "";
    ChangeWeights("finish update" + of + " as " + std::to_string(version), version, std::move(done));
  }
  void CancelWeightUpdate() override {
    absl::MutexLock lock(&mu_);
    updating_.clear();
  }
  // Updates that announce tensors beside "a" and "b" are refused, as by a worker.
  void SetNextTensors(const std::vector<v1::WeightChunk>& tensors) {
    for (const v1::WeightChunk& tensor : tensors) {
      if (tensor.name() == "a" || tensor.name() == "b") continue;
      SetNextWeightsOutcome({.status = absl::InvalidArgumentError("tensor " + tensor.name() +
                                                                  ": the model has none of this name"),
                             .untouched = true});
    }
  }
  // The next call that changes the weights ends so.
  void SetNextWeightsOutcome(const WeightsOutcome& outcome) {
    absl::MutexLock lock(&mu_);
    weights_outcome_ = outcome;
  }
  void FailNextChunk(const absl::Status& error) {
    absl::MutexLock lock(&mu_);
    chunk_error_ = error;
  }
  // The version in replies from now on.
  void SetWeightsVersion(int64_t version) {
    absl::MutexLock lock(&mu_);
    weights_version_ = version;
  }
  // The ranks' device memory while every tag is resident. The bytes of the KV cache follow its size, once the
  // size has changed.
  void SetResidentBytes(const TagBytes& bytes) {
    absl::MutexLock lock(&mu_);
    awake_bytes_ = bytes_.resident = bytes;
  }
  // The workers' residency at the beginning, after SetResidentBytes.
  void SetHeld(const Residency& held) {
    absl::MutexLock lock(&mu_);
    residency_ = held;
    for (const auto& [tag, bytes] : awake_bytes_) NoteResident(tag);
  }
  // Backups of weights take host memory, from a sleep of level 1 until the weights change, or a loss.
  void SetRetainsBackups() {
    absl::MutexLock lock(&mu_);
    retains_backups_ = true;
  }
  // The result of the next recovery, regardless of the request.
  void SetRecovered(const Held& held) {
    absl::MutexLock lock(&mu_);
    recovered_to_ = held;
  }

  bool committed() const override {
    absl::MutexLock lock(&mu_);
    return committed_;
  }
  absl::Status Health() const override {
    absl::MutexLock lock(&mu_);
    return health_;
  }
  absl::Status Progress() const override {
    absl::MutexLock lock(&mu_);
    return progress_;
  }
  void OnFailure(std::function<void(absl::Status)> callback) override {
    absl::MutexLock lock(&mu_);
    callback_ = std::move(callback);
  }
  void Abort(const absl::Status& reason) override {
    SetRecovery(Recovery::kFails);
    Lose(reason);
  }
  void LoseEpoch(const absl::Status& reason) override { Lose(reason); }
  void Recover(const Held& wanted) override;
  void Dismiss(const absl::Status& reason) override;
  void Restart(const Held& wanted) override;
  Held recovered() const override {
    absl::MutexLock lock(&mu_);
    return recovered_to_.value_or(wanted_);
  }
  GroupBytes bytes() const override {
    absl::MutexLock lock(&mu_);
    return bytes_;
  }
  void OnRecovered(std::function<void(absl::Status)> callback) override {
    absl::MutexLock lock(&mu_);
    recovered_ = std::move(callback);
  }
  int64_t group_epoch() const override {
    absl::MutexLock lock(&mu_);
    return group_epoch_;
  }

 private:
  void ExecuteNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const v1::StepRequest step = std::move(steps_.front());
    steps_.pop_front();
    replies_.push_back(worker_.Execute(step));
    if (auto it = step_errors_.find(step.step_id()); it != step_errors_.end()) replies_.back() = it->second;
  }
  inline static const TagBytes kTagBytes = {{"kv_cache", 100}, {"weights", 200}, {"workspace", 300}};

  // As a rank, and as the executor that compares: adapters that go are dropped before the files are compared.
  absl::StatusOr<TransitionReport> EndAdapters(const std::vector<HeldAdapter>& adapters, int64_t epoch) {
    absl::MutexLock lock(&mu_);
    if (absl::Status error = TakeLifecycleError(epoch); !error.ok()) return error;
    TransitionReport report;
    absl::Status compared;
    for (const HeldAdapter& adapter : adapters) {
      const auto held = adapter_files_.find(adapter.id);
      std::string& files = report.adapters[adapter.id];
      files = held != adapter_files_.end() ? held->second
                                           : absl::StrCat(adapter.path, " ", file_changes_[adapter.path]);
      if (!adapter.fingerprint.empty() && adapter.fingerprint != files)
        compared.Update(
            absl::DataLossError(absl::StrCat("adapter '", adapter.name, "': the files have changed")));
    }
    adapter_files_ = report.adapters;
    if (!compared.ok()) return compared;
    return report;
  }
  void RunOrHold(const std::string& name, std::function<void()> call) {
    {
      absl::MutexLock lock(&mu_);
      lifecycle_calls_.push_back(name);
      committed_ = false;
      if (lifecycle_held_ && health_.ok()) {
        held_call_ = std::move(call);
        return;
      }
    }
    call();
  }
  bool NamesDiscarded(const std::vector<std::string>& tags) const {
    absl::MutexLock lock(&mu_);
    return std::find(tags.begin(), tags.end(), "weights") != tags.end() &&
           residency_.state("weights") == TagState::kDiscarded;
  }
  void ChangeWeights(const std::string& name, int64_t version, WeightsDone done);
  absl::Status TakeLifecycleError(int64_t epoch) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (!health_.ok()) return health_;
    if (epoch != group_epoch_) return absl::UnavailableError("that epoch is over");
    if (!replies_.empty()) return absl::InternalError("a lifecycle call with a step in flight");
    return std::exchange(lifecycle_error_, absl::OkStatus());
  }
  absl::StatusOr<TransitionReport> EndSleep(const SleepSpec& spec, const HostTierBlocks& host, int64_t epoch);
  absl::StatusOr<TransitionReport> EndResize(int32_t num_blocks, int64_t epoch);
  void ResizeCache(int32_t num_blocks) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Notes the bytes of a tag that may be resident.
  void NoteResident(const std::string& tag) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::StatusOr<TransitionReport> EndWakeUp(const std::vector<std::string>& tags, bool weights_stale,
                                             const HostTierBlocks& host, int64_t epoch);
  absl::StatusOr<SelfCheckResult> EndCheck(int64_t epoch);

  mutable absl::Mutex mu_;
  FakeWorker worker_ ABSL_GUARDED_BY(mu_);
  std::deque<absl::StatusOr<v1::StepReply>> replies_ ABSL_GUARDED_BY(mu_);
  std::map<int64_t, absl::Status> step_errors_ ABSL_GUARDED_BY(mu_);
  std::function<void(absl::Status)> callback_ ABSL_GUARDED_BY(mu_);
  std::function<void(absl::Status)> recovered_ ABSL_GUARDED_BY(mu_);
  Recovery recovery_ ABSL_GUARDED_BY(mu_) = Recovery::kFails;
  std::vector<std::string> recoveries_ ABSL_GUARDED_BY(mu_);
  absl::Status health_ ABSL_GUARDED_BY(mu_);
  absl::Status progress_ ABSL_GUARDED_BY(mu_);
  absl::Status lifecycle_error_ ABSL_GUARDED_BY(mu_);
  absl::Status wake_up_error_ ABSL_GUARDED_BY(mu_);
  absl::Status backup_error_ ABSL_GUARDED_BY(mu_);
  std::map<uint64_t, std::string> adapter_files_
      ABSL_GUARDED_BY(mu_);                                       // of the adapters that are held, by id
  std::map<std::string, int> file_changes_ ABSL_GUARDED_BY(mu_);  // by path
  Residency residency_ ABSL_GUARDED_BY(mu_);
  TagBytes awake_bytes_ ABSL_GUARDED_BY(mu_);
  GroupBytes bytes_ ABSL_GUARDED_BY(mu_);
  bool retains_backups_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<RankNeed> needs_ ABSL_GUARDED_BY(mu_);
  Held wanted_ ABSL_GUARDED_BY(mu_);
  std::optional<Held> recovered_to_ ABSL_GUARDED_BY(mu_);
  WeightsOutcome weights_outcome_ ABSL_GUARDED_BY(mu_);
  absl::Status chunk_error_ ABSL_GUARDED_BY(mu_);
  std::function<void()> before_check_ ABSL_GUARDED_BY(mu_);
  SelfCheckResult checked_ ABSL_GUARDED_BY(mu_) = {.fingerprint = 1, .machines = "cpu", .bitwise = true};
  std::deque<v1::StepRequest> steps_ ABSL_GUARDED_BY(mu_);  // the first awaits masks
  std::string updating_ ABSL_GUARDED_BY(mu_);               // the id of an update; empty: none is under way
  int64_t weights_version_ ABSL_GUARDED_BY(mu_) = 1;
  bool committed_ ABSL_GUARDED_BY(mu_) = false;
  bool lifecycle_held_ ABSL_GUARDED_BY(mu_) = false;
  std::function<void()> held_call_ ABSL_GUARDED_BY(mu_);
  std::function<void()> late_call_ ABSL_GUARDED_BY(mu_);
  bool late_results_ ABSL_GUARDED_BY(mu_) = false;
  bool reads_held_ ABSL_GUARDED_BY(mu_) = false;
  std::function<void(const absl::Status&)> held_read_ ABSL_GUARDED_BY(mu_);
  absl::Status read_error_ ABSL_GUARDED_BY(mu_);
  std::vector<std::string> adapter_reads_ ABSL_GUARDED_BY(mu_);
  int64_t group_epoch_ ABSL_GUARDED_BY(mu_) = 1;
  std::vector<std::string> lifecycle_calls_ ABSL_GUARDED_BY(mu_);
  absl::Duration step_time_ ABSL_GUARDED_BY(mu_);
  bool held_ ABSL_GUARDED_BY(mu_) = false;
  int64_t num_steps_sent_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t num_waits_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<absl::Duration> wait_timeouts_ ABSL_GUARDED_BY(mu_);
  size_t max_in_flight_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace somnus
