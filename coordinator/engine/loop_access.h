#pragma once
// The engine loop as lifecycle commands see the loop: the parts that commands change, and the verbs that
// commands need.
// For the loop thread.

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordinator/engine/engine_observer.h"
#include "coordinator/engine/engine_options.h"
#include "coordinator/engine/group_holdings.h"
#include "coordinator/engine/kept_kv.h"
#include "coordinator/engine/lifecycle_requests.h"
#include "coordinator/engine/loop_mail.h"
#include "coordinator/engine/recovery_book.h"
#include "coordinator/engine/stale_weights.h"
#include "coordinator/engine/wake_check.h"
#include "coordinator/executor/executor.h"
#include "coordinator/residency/engine_state.h"
#include "coordinator/scheduler/scheduler.h"

namespace somnus {

// The parts of an engine loop on which commands work, and on which the loop itself works between commands.
struct LoopParts {
  LoopParts(const EngineOptions& options_in, Executor* executor_in, EngineObserver* observer_in);

  const EngineOptions& options;
  Executor& executor;
  PassingObserver observer;  // the engine's observer, or nobody
  Scheduler scheduler;
  GroupHoldings holdings;
  KeptKv kept;
  WakeCheck check;
  StaleWeights stale;
  RecoveryBook recovery;
  bool paused = false;  // by an operator, until Resume or a whole wake-up
};

class LoopAccess {
 public:
  // Borrows both.
  LoopAccess(LoopParts* parts, std::shared_ptr<LoopMail> events)
      : parts_(parts), events_(std::move(events)) {}
  virtual ~LoopAccess() = default;

  // Commands change the parts by the functions of the parts; the verbs below are for the loop as a whole.
  LoopParts& parts() { return *parts_; }
  const LoopParts& parts() const { return *parts_; }

  virtual EngineState state() const = 0;
  // Declined: the engine has failed, or ends.
  absl::Status CheckLifecycle() const;
  // Every tag is resident, and checked where a check is asked for.
  bool MayServe() const { return parts_->holdings.awake() && !parts_->check.due(); }
  // Steps can be computed: the group is whole, and everything is resident.
  bool Computes() const;
  // Steps are computed: Computes, checked, and not paused.
  bool Runs() const { return Computes() && !parts_->check.due() && !parts_->paused; }
  // Runs, and no request is open.
  virtual bool IsIdle() const = 0;

  // Publishes the statistics, and then the state. Does nothing when a failure or a drain has come in between.
  virtual void SwitchState(EngineState to, std::string why = "") = 0;
  // Switches to the state between two commands.
  void SwitchToRest(std::string why = "") { SwitchState(RestingState(), std::move(why)); }
  virtual void PublishStats() = 0;

  // Ends open requests as `mode` says. False: the command under way waits for open requests, while the loop
  // goes on with steps.
  virtual bool SettleOpenRequests(SleepMode mode) = 0;
  virtual void EndOpenRequests(FinishReason reason, const absl::Status& error) = 0;
  // Gives open requests to other replicas, where there are any. No step may be in flight.
  virtual void HandOver() = 0;

  // The next four functions leave no step in flight, and return Computes(). False: the group was lost
  // meanwhile, and the command begins again after the recovery, or has ended with the engine; in either case
  // the command must return at once.
  virtual bool FinishSteps() = 0;
  // The workers have no slot either that no sequence uses.
  virtual bool FlushFreedSlots() = 0;
  // No sequence runs or has a slot, and every sequence keeps its blocks.
  bool Suspend();
  // No sequence has a slot or a block, and nothing stays cached, for this reason.
  bool Quiesce(CacheLoss loss);
  // The next step may be slow.
  virtual void RestartStepDeadline() = 0;

  // The callback for the one call of the executor that is made now: the command gets the result by OnResult.
  Executor::LifecycleDone ExpectTransition();
  Executor::WeightsDone ExpectWeights();
  Executor::SelfCheckDone ExpectCheck();

  // The group counts as lost, since the result of a call shows that its ranks are wrong.
  virtual void Lose(const absl::Status& reason) = 0;
  // The recovery that the command has begun (parts().recovery) goes on as executor calls say.
  virtual void NoteNewEpoch() = 0;
  // The fingerprint is taken before anything else is done, where self-checks are asked for.
  virtual void QueueSelfCheck() = 0;
  // The command under way has ended, and may be destroyed during this call.
  virtual void End(absl::StatusOr<TransitionReport> result) = 0;

 protected:
  // A number for a call of the executor; the command under way gets the result.
  virtual int64_t NewCall() = 0;
  // A command waits for open requests.
  virtual bool waits() const = 0;

 private:
  EngineState RestingState() const;

  LoopParts* const parts_;
  const std::shared_ptr<LoopMail> events_;
};

}  // namespace somnus
