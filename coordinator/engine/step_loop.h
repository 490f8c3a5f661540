#pragma once
// The thread of an EngineLoop: takes mail, carries out one lifecycle command at a time, and computes steps.
//
// Mail. The loop never waits for a lifecycle call of the executor: the call's result comes as mail
// (loop_mail.h), and only then the state changes and the command's client gets the result. Meanwhile requests
// are queued, aborted and expire as ever, and further commands wait in their order (command_lane.h). While a
// command waits for open requests (SleepMode::kWait), the loop goes on with steps, and holds back requests
// that arrive.
//
// Failures. A group that is lost (a rank ended, hung, or failed a step) is recovered by the executor: open
// requests wait and go on with the tokens they have; commands wait, too, and a command that the loss has
// interrupted begins again afterwards (lifecycle_command.h, command_lane.h). recovery_book.h has the bounds
// for groups and for requests. When the executor cannot recover the group, when the group was lost too often,
// or when the engine's own books are wrong, the engine is kFailed for good: every open request ends with
// kError and the reason, commands end with the reason, and requests are refused. Only Revive begins again.
//
// Replicas. With options.hand_over the engine is one of several (coordinator/replicas): open requests do not
// wait for a recovery, but are handed over at the beginning of the recovery; so are the requests of an engine
// that fails. Requests in flight are not handed over where the engine's own books have failed, since such a
// request may be the cause.
//
// Ownership: owns the scheduler and everything that commands change (LoopParts); borrows the rest. All
// functions are for the loop's thread; mail and board are the ways to other threads.

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "coordinator/engine/callers_mail.h"
#include "coordinator/engine/command_lane.h"
#include "coordinator/engine/engine_board.h"
#include "coordinator/engine/held_back_requests.h"
#include "coordinator/engine/loop_access.h"
#include "coordinator/engine/loop_mail.h"
#include "coordinator/engine/loop_requests.h"
#include "coordinator/engine/prefix_book.h"
#include "coordinator/engine/steps_in_flight.h"
#include "coordinator/engine/view_board.h"

namespace somnus {

class StepLoop : private LoopAccess {
 public:
  // The ways between the loop and the callers' threads; borrowed, but for the events, which the executor's
  // callbacks share.
  struct Shared {
    CallersMail* mail;
    EngineBoard* board;
    PrefixBook* prefixes;
    ViewBoard* views;
    std::shared_ptr<LoopMail> events;
  };

  // `observer` may be null. Publishes the first statistics.
  StepLoop(const EngineOptions& options, Executor* executor, EngineObserver* observer, Shared shared);

  // Returns once the engine was told to end and no request is open. Commands that come later end by the
  // state, which is draining or failed.
  void Run();

 private:
  // Turns of the loop.
  bool ProcessMail();  // false: stop
  void ProcessRequests(CallersMail::Arrived* arrived);
  void ProcessEvents();
  void CheckStaleWeights();
  bool DrainIsOver();
  bool Step();  // false: nothing to do
  void ShowView();
  void CheckIdle();
  void WaitForMail();
  // When requests that wait for weights are refused.
  MonotonicTime GivesUpStaleWeightsAt() const;
  // `schedule`: how long the step was in the making.
  void Send(StepPlan plan, absl::Duration schedule = absl::ZeroDuration());
  void Receive();

  // Failures.
  void Fail(const absl::Status& status);
  // As Fail, but the group alone has failed: Revive may begin again.
  void FailGroup(const absl::Status& status);
  // Starts to recover the group, or, after too many losses, to end the group.
  void Lose(const absl::Status& reason) override;
  void FinishRecovery(const absl::Status& status);
  void InterruptCommand(const absl::Status& reason);

  // Commands.
  void StartCommands();
  // Goes on with a command that has waited until the open requests have ended, or ends the wait.
  void CheckWait();
  // Ends the wait of the command under way, which has changed nothing.
  void EndWaitingCommand(const absl::Status& reason);
  void FinishCall(LoopMail::CallResult result);
  // Ends the command under way, as operators ask by AbortCall.
  void AbortCommand(CallersMail::AbortReply reply);

  // LoopAccess.
  EngineState state() const override { return board_.state(); }
  bool IsIdle() const override;
  void SwitchState(EngineState to, std::string why = "") override;
  void PublishStats() override;
  bool SettleOpenRequests(SleepMode mode) override;
  void EndOpenRequests(FinishReason reason, const absl::Status& error) override;
  void HandOver() override;
  bool FinishSteps() override;
  bool FlushFreedSlots() override;
  void RestartStepDeadline() override { steps_.RestartDeadline(); }
  void NoteNewEpoch() override { group_epoch_ = parts_.executor.group_epoch(); }
  void QueueSelfCheck() override;
  void End(absl::StatusOr<TransitionReport> result) override;
  int64_t NewCall() override { return lane_.NewCall(); }
  bool waits() const override { return held_back_.waits(); }

  LoopParts parts_;
  CallersMail& mail_;
  EngineBoard& board_;
  PrefixBook& prefixes_;
  ViewBoard& views_;
  const std::shared_ptr<LoopMail> events_;
  StepsInFlight steps_;
  LoopRequests requests_;
  HeldBackRequests held_back_;
  CommandLane lane_;
  std::weak_ptr<LifecycleCommand> self_check_;  // that waits or is under way
  int64_t group_epoch_ = 0;
  bool idle_checked_ = false;  // the scheduler's books, since requests came last
};

}  // namespace somnus
