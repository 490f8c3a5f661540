#pragma once
// The board on which an engine loop shows itself to callers: the engine's state with its history, the last
// snapshot of the statistics, the step and the lifecycle command under way, how fast prompts are computed.
//
// The loop writes, any thread reads. Two changes of the state come from callers: to draining, and from failed
// to recovering (BeginRevival). A change that IsAllowedChange forbids is not made: another change (a failure,
// a drain) has come in between. Thread safe.

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/monotonic.h"
#include "coordinator/engine/engine_options.h"
#include "coordinator/engine/engine_stats.h"
#include "coordinator/engine/prefill_speed.h"
#include "coordinator/engine/sleep_wait.h"
#include "coordinator/engine/state_history.h"
#include "coordinator/executor/executor.h"
#include "coordinator/residency/engine_state.h"
#include "coordinator/residency/weights.h"

namespace somnus {

class EngineBoard {
 public:
  // `options` and `executor` are borrowed.
  EngineBoard(const EngineOptions& options, const Executor* executor, EngineState state);

  EngineState state() const { return state_.load(); }
  // As Engine::OnStateChange.
  void OnStateChange(std::function<void()> callback);
  // The last snapshot, with everything that has changed since; without the figures of CallersMail::Queue.
  EngineStats Stats() const;
  // How long the oldest open request, which came at `arrival`, has waited for memory that sleeps.
  absl::Duration OldestWait(std::optional<absl::Time> arrival) const;
  // Unavailable: requests are refused, for the reason in the error.
  absl::Status CheckAdmits() const;
  // As of the last step.
  int64_t num_preempted() const;
  int64_t num_steps() const;
  Weights weights() const;
  bool gave_up_stale_weights() const { return gave_up_stale_weights_; }
  // As EngineLoop::PrefillTime.
  std::optional<absl::Duration> PrefillTime(int64_t num_tokens) const;
  // The engine has failed since its group was lost, and could begin again.
  bool may_revive() const;

  // Changes the state, and tells the observer of the state. The reason is that of the lifecycle command under
  // way where `why` is empty. Not to be called with a lock held.
  void SwitchState(EngineState to, std::string why = "");
  // Changes the state to draining. True: the state has changed, and the caller calls ReportStateChange.
  bool BeginDrain();
  // Changes the state to recovering where may_revive(). Returns as BeginDrain.
  bool BeginRevival();
  void ReportStateChange();

  // For the loop.
  void Fail(const std::string& error);
  void NoteMayRevive();
  void ClearError();
  // A change is reported as a change of the state.
  void SetGaveUpStaleWeights(bool gives_up);
  void Publish(EngineStats stats, const Weights& weights, int64_t num_preempted);
  void NoteCommand(LifecycleCallStats command);
  // From now on this step is the oldest step without a reply; 0: every step has a reply.
  void NoteAwaitedStep(int64_t step_id);
  void NotePrefill(int32_t num_tokens, absl::Duration duration, MonotonicTime now);

 private:
  // Returns whether the state has changed; the caller then reports the change, without the lock.
  bool ChangeState(EngineState to, std::string why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The reason why a worker does not get on; ok: every worker does.
  absl::Status Stall() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const EngineOptions& options_;
  const Executor* const executor_;

  std::atomic<EngineState> state_;  // written under mu_
  std::atomic<bool> gave_up_stale_weights_{false};
  mutable absl::Mutex mu_;
  EngineStats stats_ ABSL_GUARDED_BY(mu_);
  Weights weights_ ABSL_GUARDED_BY(mu_);
  int64_t num_preempted_ ABSL_GUARDED_BY(mu_) = 0;  // requests that wait again
  LifecycleCallStats command_ ABSL_GUARDED_BY(mu_);
  // When the command began, or has begun to hold up steps, by running_now.
  MonotonicTime command_since_ ABSL_GUARDED_BY(mu_);
  absl::Time command_at_ ABSL_GUARDED_BY(mu_);    // the same moment
  std::string error_ ABSL_GUARDED_BY(mu_);        // why the engine has failed
  bool may_revive_ ABSL_GUARDED_BY(mu_) = false;  // once the engine has failed
  int64_t awaited_step_ ABSL_GUARDED_BY(mu_) = 0;
  MonotonicTime awaited_since_ ABSL_GUARDED_BY(mu_);  // since when the step is the oldest, by running_now
  absl::Time awaited_at_ ABSL_GUARDED_BY(mu_);        // the same moment
  PrefillSpeed prefill_speed_ ABSL_GUARDED_BY(mu_);
  SleepWait sleep_wait_ ABSL_GUARDED_BY(mu_);
  StateHistory history_ ABSL_GUARDED_BY(mu_);

  absl::Mutex on_state_change_mu_;
  std::function<void()> on_state_change_ ABSL_GUARDED_BY(on_state_change_mu_);
};

}  // namespace somnus
