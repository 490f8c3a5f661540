#pragma once
// The Engine: a scheduler, an executor and the thread that drives them. engine_loop.cc has the loop and its
// steps, engine_loop_lifecycle.cc sleep and wake-up, engine_loop_keep.cc what of the KV cache outlives them,
// engine_loop_pause.cc pauses and what becomes of open requests at either, engine_loop_weights.cc reloads and
// updates of the weights, engine_loop_kv_size.cc the size of the KV cache, engine_loop_check.cc the
// self-check after a wake-up, engine_loop_expiry.cc deadlines, engine_loop_recovery.cc failures;
// engine_loop_calls.cc is the callers' half: admission, commands, and the snapshot of the state.
//
// Ownership: owns the scheduler and the loop thread; the executor and the observer are borrowed and must live
// until DrainAndStop (which the destructor calls without grace) has returned. Thread safety: as engine.h
// says; what the loop owns is touched by the loop thread alone, what is under mu_ by everybody.
//
// Mail. The loop never waits for a lifecycle call of the executor: its result comes as mail (loop_mail.h),
// and only then the state changes and the command's caller gets it. Meanwhile requests are queued, aborted
// and expire as ever, and further lifecycle commands wait in their order.
//
// Weights. A command that replaces them makes them stale in residency_ before it calls the executor: whatever
// happens then, nothing is computed until a command has brought weights that every rank has. An update is
// under way, as a command, until its caller finishes it or gives it up.
//
// Self-check (options.wake_self_check). A wake-up that has brought weights or workspace back makes a check
// due. Until one has found the logits that they gave before, the engine is asleep though all is resident; one
// that finds others puts it to sleep at level 2, so that nothing of the damaged memory or of its backup is
// used.
//
// A command that waits for open requests (SleepMode::kWait) is under way while the loop goes on with steps.
// What was accepted after it is held back, outside of the scheduler, until the wait is over.
//
// Failures. A group that is lost (a rank ended, hung, or failed a step) is recovered by the executor: open
// requests wait and go on with the tokens they have; lifecycle commands wait, too, and one that the loss has
// interrupted begins again afterwards, unless that has happened too often or the engine drains. A request
// that was in flight at max_recoveries_per_request failures, without getting any further, runs alone, and
// ends with kError when the group fails again meanwhile. When the executor cannot recover the group, when
// max_recoveries of them have come within recovery_window without a token in between, or when the engine's
// own books are wrong, the engine is kFailed for good: every open request ends with kError and the reason,
// commands end with the reason, and Submit returns Unavailable. Only Revive, which is for replicas, begins
// again.
//
// Replicas. With options.hand_over the engine is one of several (coordinator/replicas): open requests do not
// wait for a recovery, but are handed over at its beginning; so are those of an engine that fails, except the
// ones in flight where it was the engine's own books that failed, since they may be the cause.

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/monotonic.h"
#include "coordinator/engine/engine.h"
#include "coordinator/engine/engine_options.h"
#include "coordinator/engine/lifecycle_command.h"
#include "coordinator/engine/loop_mail.h"
#include "coordinator/engine/prefill_speed.h"
#include "coordinator/engine/prefix_book.h"
#include "coordinator/engine/queue_room.h"
#include "coordinator/engine/sleep_wait.h"
#include "coordinator/engine/step_deadline.h"
#include "coordinator/executor/executor.h"
#include "coordinator/scheduler/scheduler.h"

namespace somnus {

class EngineLoop : public Engine {
 public:
  // The workers must have loaded the model and allocated the cache: the engine is awake at once, or asleep
  // where options.residency says so. `observer` may be null.
  EngineLoop(EngineOptions options, Executor* executor, EngineObserver* observer);
  ~EngineLoop() override;

  absl::Status SubmitAll(std::vector<EngineRequest> requests) override;
  void Abort(const std::string& request_id) override;
  EngineState state() const override { return state_.load(); }
  absl::Status Health() const override;
  void OnStateChange(std::function<void()> callback) override;
  EngineStats Stats() const override;
  absl::StatusOr<TransitionReport> Sleep(const SleepRequest& request) override;
  absl::StatusOr<TransitionReport> WakeUp(const std::vector<std::string>& tags,
                                          std::optional<bool> load_weights) override;
  using Engine::WakeUp;
  absl::StatusOr<TransitionReport> WakeForArrivals() override;
  void EndWaiting(const absl::Status& error) override;
  absl::Status Prefetch() override;
  // What a wake-up of these tags (empty: all) would take, by rank. An error: a rank does not say so now.
  // Blocks; thread safe.
  absl::StatusOr<std::vector<RankNeed>> PlanWakeUp(const std::vector<std::string>& tags);
  absl::Status Pause(const PauseRequest& request) override;
  absl::Status Resume() override;
  absl::StatusOr<WeightsChange> ReloadWeights(const WeightsRequest& request) override;
  absl::StatusOr<std::unique_ptr<WeightUpdate>> BeginWeightUpdate(const WeightsRequest& request) override;
  absl::StatusOr<int32_t> ResizeKvCache(int32_t total_blocks) override;
  absl::Status ResetPrefixCache(bool preempt_running) override;
  PinnedPrefixes& pinned_prefixes() override { return prefixes_; }
  absl::Status Roll(absl::Duration grace) override;
  absl::Status AbortCall() override;
  void DrainAndStop(absl::Duration grace) override;
  int32_t max_model_len() const override { return options_.scheduler.max_model_len; }
  int32_t vocab_size() const override { return options_.vocab_size; }

  // Whether `requests` can ever be served under `options`: InvalidArgument names the field.
  static absl::Status CheckRequests(const EngineOptions& options, const std::vector<EngineRequest>& requests);
  // Takes a request that passed CheckRequests, whatever the bounds of the queue, and with the progress that
  // it has; its id must not be live. False, and the request is left alone, unless the engine is awake and
  // goes on. Thread safe.
  bool Offer(EngineRequest* request);
  // What is open here. num_preempted and num_steps are as of the last step.
  struct Backlog {
    int64_t num_open = 0;
    int64_t num_preempted = 0;   // those that wait again
    int64_t waiting_tokens = 0;  // of prompts that were never scheduled
    int64_t num_steps = 0;       // since the start
  };
  Backlog backlog() const;
  // What it takes at least to compute so many prompt tokens. Not set: nobody can tell. Thread safe.
  std::optional<absl::Duration> PrefillTime(int64_t num_tokens) const;
  // Ends all workers of the group and brings up new ones; the epoch that begins then is not counted as a
  // recovery. Open requests are handed over, or wait. Blocks the caller until the group is whole again.
  // FailedPrecondition: the engine is not awake, or its weights came from an update, which new workers cannot
  // have; another error is the engine's end.
  absl::Status Restart();
  // Of an engine whose group has failed for good: tries once more to bring it up, awake, and returns at once,
  // in the state kRecovering; how it ended shows in the state. `restart_workers`: also those that are well
  // are replaced. `weights`: those of the engines beside which it serves. False, and nothing happens, where
  // the engine has not failed, ends, or has failed because its own books were wrong.
  bool Revive(bool restart_workers, const Weights& weights);
  absl::Status Revive(bool asleep) override;
  // Revive would do something.
  bool may_revive() const;
  // The weights, which are stale or not, as of the last lifecycle call that has ended. Thread safe.
  Weights weights() const;
  // Requests are refused: weights that no wake-up brings did not come within stale_weights_timeout, and
  // nobody is bringing them. A change is reported as one of the state. Thread safe.
  bool gave_up_stale_weights() const { return gave_up_stale_weights_; }

 private:
  class Update;

  // Hands the command to the loop thread and waits for its result. Unavailable once the loop has stopped.
  absl::StatusOr<TransitionReport> RunCommand(LifecycleCommand command);
  // Waits for the signal, and tells the loop when this thread's client leaves meanwhile.
  void AwaitCall(const StopSignal& done);
  absl::Status CheckRoom(const std::vector<EngineRequest>& requests) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // False, and the command is not run: Revive would do nothing.
  bool BeginRevival(LifecycleCommand command);

  // Returns whether the state has changed; the caller then reports it, without the lock. A change that
  // IsAllowedChange forbids is not made: another one (a failure, a drain) has come in between.
  bool ChangeState(EngineState to, std::string why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  EngineStats StatsNow() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status Stall(absl::Duration awaited) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void ReportStateChange() ABSL_LOCKS_EXCLUDED(mu_);

  // The loop thread alone calls these.
  void Run();
  bool ProcessMail();  // false: stop
  void ProcessRequests(std::vector<EngineRequest> submitted, const std::vector<std::string>& aborted);
  void ProcessEvents();
  bool Step();  // false: nothing to do
  void WaitForMail();
  // `schedule`: how long the step was in the making.
  void Send(StepPlan plan, absl::Duration schedule = absl::ZeroDuration());
  StepEvent Describe(const StepPlan& plan);
  void NoteAwaitedStep();
  void Receive();
  void ReceiveAll();
  void NoteDecodeStep(absl::Duration duration);
  void Deliver(SequenceOutput output, absl::Time now);
  void End(const SequencePtr& sequence, FinishReason reason, const absl::Status& error);
  void Forget(const Sequence& sequence);
  void NoteFirstScheduled(const std::vector<SequencePtr>& sequences);
  bool Computes() const;
  bool DrainIsOver();
  void CheckIdle();
  void PublishStats();
  void PublishKvEvents();
  void SwitchState(EngineState to, std::string why = "") ABSL_LOCKS_EXCLUDED(mu_);

  // Failures.
  void Fail(const absl::Status& status);
  // As Fail, where it is the group that has failed: Revive may begin again.
  void FailGroup(const absl::Status& status);
  // The group was lost: starts to recover the group, or, after too many losses, to end the group.
  void Lose(const absl::Status& reason);
  bool MayRecover();
  void EndSuspects(const std::vector<SequencePtr>& suspects, const absl::Status& reason);
  // Forgets the failures of a sequence that has got beyond the point where it was at the last of them.
  static void Exonerate(Sequence* sequence);
  void FinishRecovery(const absl::Status& status);
  // Gives all open requests to options_.hand_over, where there is one. No step may be in flight.
  void HandOver();

  // Lifecycle commands. One is under way at a time: command_. It has ended when StartCommand returns, or
  // waits for the result of a call, or for the end of a recovery.
  void StartCommands();
  void StartCommand();
  void StartSleep();
  void StartWakeUp();
  void StartRestart();
  void StartRevive();
  void StartPause();
  void StartEndWaiting();
  void StartResume();
  void StartResetPrefixCache();
  void StartResizeKvCache();
  void NoteMappedBlocks(int32_t num_blocks);
  void FinishResizeKvCache(int32_t num_blocks, const absl::StatusOr<TransitionReport>& report);
  // How many blocks, the null block included, a sequence of max_model_len needs.
  int32_t SmallestCache() const;
  void StartReload();
  void StartUpdate();
  // The command may change the weights now: nothing is computed, no block is cached, and they are stale.
  // False: it waits, or it has ended.
  bool BeginWeightsChange();
  void FinishWeights(const WeightsOutcome& outcome);
  void EndWeightsChange(const absl::Status& status);
  // What callers said of their updates.
  void EndUpdates();
  // Drops the commands of clients that have left, where the command has not begun.
  void DropAbandoned();
  // Ends the call under way, as operators' calls of AbortCall ask.
  void AbortCommands();
  void AbortCommand();
  // Notes the command under way for Stats.
  void NoteCommand();
  // engine_loop_check.cc: the check after a wake-up, and the fingerprint with which it compares.
  void StartSelfCheck();
  void CallSelfCheck();
  void FinishSelfCheck(const absl::Status& status, const SelfCheckResult& result, absl::Duration duration);
  void GiveUpDamaged(const SelfCheckResult& result);
  // The fingerprint is taken before anything else is done.
  void QueueSelfCheck();
  void NoteNewWeights();
  void NoteWoken(const std::vector<std::string>& tags, bool weights_stale);
  // Resident, and checked where that is asked for.
  bool MayServe() const { return residency_.awake() && !check_due_; }
  // The workers have the weights, and nothing else has.
  bool HasOnlyCopy() const { return !weights_.readable() && !LacksWeights(); }
  bool LacksWeights() const;
  // They have to be brought by a reload or an update.
  bool NeedsWeights() const { return !weights_.readable() && LacksWeights(); }
  // A change that failed or a recovery has ended: where it leaves the weights stale, requests wait for
  // stale_weights_timeout from now.
  void NoteStaleWeights();
  void CheckStaleWeights();
  // While a change is under way requests wait for it, however long others have failed before.
  MonotonicTime GivesUpStaleWeightsAt() const;
  // Whether a wake-up of these tags reads the checkpoint. An error: it cannot bring the weights.
  absl::StatusOr<bool> WillReadWeights(const std::vector<std::string>& tags) const;
  void CallSleep(const SleepSpec& spec);
  void CallWakeUp();
  Executor::LifecycleDone Call(const SleepSpec& spec, bool weights_stale = false);
  Executor::WeightsDone CallWeights();
  void FinishCall(LoopMail::CallResult event);
  void FinishSleep(const SleepSpec& spec, absl::StatusOr<TransitionReport> report);
  void FinishWakeUp(absl::StatusOr<TransitionReport> report);
  void EndWakeUp(absl::StatusOr<TransitionReport> report);
  void NoteTransition(const TransitionReport& report, bool wakes);
  void InterruptCommand(const absl::Status& reason);
  void EndCommand(absl::StatusOr<TransitionReport> result);
  std::map<std::string, TagOutcome> Outcomes() const;
  absl::Status CheckLifecycle() const;
  // Ends open requests as the command's mode says. False: the command waits for them, and CheckWait goes on
  // with it.
  bool SettleOpenRequests();
  void CheckWait();
  void EndWaitOf(const absl::Status& reason);
  void EndWait();
  void ReleaseHeldBack(const std::function<bool(const EngineRequest&)>& chosen);
  // engine_loop_expiry.cc: requests whose time is over, or would be before they are served.
  // Gives requests to the scheduler, and refuses those whose first token would come too late.
  void AddToScheduler(std::vector<EngineRequest> requests);
  bool IsHopeless(const Sequence& sequence);
  void EndExpired(const ExpiredSequence& expired);
  MonotonicTime NextExpiry() const;
  static MonotonicTime HeldBackUntil(const EngineRequest& request);
  void NotePrefill(const StepEvent& step);
  // Computes() and is not paused.
  bool Runs() const;
  bool IsIdle() const;
  // The state between two commands.
  EngineState RestingState() const;
  // No step is under way afterwards, and no sequence has a slot or a block; or the group is lost.
  // `loss`: why nothing stays cached.
  void Quiesce(CacheLoss loss);
  // No step is under way afterwards, and the workers have no slot; or the group is lost.
  void FlushFreedSlots();

  // What of the KV cache outlives a sleep. `changes`: with the tags that the call changes.
  bool KeepsKv(const SleepSpec& spec) const;
  // As Quiesce, but sequences keep their blocks where the sleep keeps the cache.
  void QuiesceForSleep(const SleepSpec& spec);
  HostTierBlocks ChooseKept(const SleepSpec& changes);
  int64_t KeepableBytes() const;
  // What the wake-up of these tags brings back.
  HostTierBlocks KeptFor(const std::vector<std::string>& woken) const;
  // The call has happened.
  void NoteSleptKv(const SleepSpec& changes);
  void NoteWokenKv(const std::vector<std::string>& tags);
  // The sleep has not happened. True: it should be tried once more, and keep nothing.
  bool RetriesWithoutKept(const SleepSpec& changes, const absl::Status& error);
  // The cache sleeps, and host tiers have memory for it.
  bool HoldsKept() const;
  // Whether that memory goes with a sleep that has no tag to change.
  bool DropsKept(const SleepSpec& spec) const;
  void CallDropKept();
  void FinishDropKept(absl::StatusOr<TransitionReport> report);

  const EngineOptions options_;
  Executor* const executor_;
  EngineObserver* const observer_;

  // The loop thread alone uses these.
  Scheduler scheduler_;
  std::deque<StepEvent> sent_;  // steps without a reply
  MonotonicTime last_reply_ = -absl::InfiniteDuration();
  StepDeadline step_deadline_;
  PreemptionCost preemption_cost_;
  absl::Duration decode_step_time_;  // the mean, in which the latest step counts an eighth
  Residency residency_;  // as of the last lifecycle call that has ended; weights that are replaced are stale
  Weights weights_;      // likewise
  // Of the KV cache's blocks, the null block included, as of the last lifecycle call that has ended.
  int32_t mapped_blocks_;
  int64_t num_cache_grows_ = 0, num_cache_shrinks_ = 0;
  std::optional<SelfCheckResult> checked_;  // of weights_; none: it has not been taken
  bool check_due_ = false;                  // a wake-up has brought back what it checks
  bool paused_ = false;
  bool waits_ = false;                    // command_ waits for open requests
  std::vector<EngineRequest> held_back_;  // meanwhile, in the order of their arrival
  bool recovering_ = false;
  bool restarting_ = false;  // the recovery under way is a restart
  // When those began that were within the last recovery_window and had not led to a token.
  std::deque<MonotonicTime> recoveries_;
  MonotonicTime lost_at_;       // when the recovery under way began
  int64_t num_recoveries_ = 0;  // that ended well
  int64_t group_epoch_ = 0;
  std::deque<LifecycleCommand> commands_;  // those that wait
  std::optional<LifecycleCommand> command_;
  std::optional<LifecycleCall> call_;  // whose result has not come
  int64_t last_call_ = 0;
  int64_t num_steps_ = 0;
  int64_t num_first_scheduled_ = 0;  // requests that have begun
  absl::Duration queue_time_;        // which they have waited for, together
  // When the last step was scheduled.
  SchedulerStats counters_seen_;
  int64_t watermark_refusals_seen_ = 0;
  bool idle_checked_ = false;
  MonotonicTime stale_deadline_ = absl::InfiniteDuration();  // until which requests wait for weights

  std::atomic<bool> gave_up_stale_weights_{false};  // written by the loop thread
  std::atomic<EngineState> state_;                  // written under mu_
  const std::shared_ptr<LoopMail> mail_ = std::make_shared<LoopMail>();
  PrefixBook prefixes_;
  mutable absl::Mutex mu_;
  // Mail of the callers.
  std::vector<EngineRequest> submitted_ ABSL_GUARDED_BY(mu_);
  std::vector<std::string> aborted_ ABSL_GUARDED_BY(mu_);
  std::vector<LifecycleCommand> arrived_commands_ ABSL_GUARDED_BY(mu_);
  struct UpdateEnd {
    std::string update_id;
    bool finishes = false;  // false: it is given up
    std::optional<ReceivedWeights> expected;
  };
  std::vector<UpdateEnd> update_ends_ ABSL_GUARDED_BY(mu_);
  std::vector<std::function<void(absl::Status)>> call_aborts_ ABSL_GUARDED_BY(mu_);  // answered by the loop
  LifecycleCallStats lifecycle_call_ ABSL_GUARDED_BY(mu_);
  // The oldest step without a reply (0: none), and since when it has been the oldest.
  int64_t awaited_step_ ABSL_GUARDED_BY(mu_) = 0;
  MonotonicTime awaited_since_ ABSL_GUARDED_BY(mu_);
  absl::Time awaited_at_ ABSL_GUARDED_BY(mu_);  // the same moment
  MonotonicTime drain_deadline_ ABSL_GUARDED_BY(mu_) = absl::InfiniteDuration();
  bool draining_ ABSL_GUARDED_BY(mu_) = false;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  StopSignal loop_ended_;
  std::string error_ ABSL_GUARDED_BY(mu_);
  bool may_revive_ ABSL_GUARDED_BY(mu_) = false;  // once it has failed
  EngineStats stats_ ABSL_GUARDED_BY(mu_);
  Weights published_weights_ ABSL_GUARDED_BY(mu_);
  int64_t num_preempted_ ABSL_GUARDED_BY(mu_) = 0;  // those that wait again
  QueueRoom room_ ABSL_GUARDED_BY(mu_);
  PrefillSpeed prefill_speed_ ABSL_GUARDED_BY(mu_);
  SleepWait sleep_wait_ ABSL_GUARDED_BY(mu_);
  StateHistory history_ ABSL_GUARDED_BY(mu_);

  absl::Mutex on_state_change_mu_;
  std::function<void()> on_state_change_ ABSL_GUARDED_BY(on_state_change_mu_);

  absl::Mutex join_mu_;
  std::thread thread_ ABSL_GUARDED_BY(join_mu_);
};

}  // namespace somnus
