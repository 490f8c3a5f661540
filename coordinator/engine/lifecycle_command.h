#pragma once
// A lifecycle call of a client (a sleep, a reload, ...) as the engine loop carries the call out: one class
// for each kind, in commands/. A new kind is a class there and a line of EngineLoop that sends the command.
//
// Life. A client makes a command, sends it (CallersMail::Send) and waits for ended(). The loop starts the
// command when its turn comes: one command at a time, in the order of arrival. A command has ended when
// LoopAccess::End was called; until then the command waits for the result of a call of the executor
// (OnResult), for open requests, for the end of a recovery, or for its client (OnTurn). A command that has
// not begun ends with Cancelled when its client leaves.
//
// Losses. Where the group is lost while a command is under way, the command begins again after the recovery,
// unless OnLoss forbids it or the losses are too many (CommandLane). A transition that was committed by then
// has happened: OnLoss says so to the loop's books, so that Start finds what is left to do. A result of an
// earlier call never comes.
//
// Threads. Everything but ended(), result() and the results of subclasses is for the loop thread once the
// command was sent; result() and the results of subclasses are for the client once ended() has stopped.

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/monotonic.h"
#include "coordinator/engine/caller.h"
#include "coordinator/engine/lifecycle_requests.h"
#include "coordinator/engine/loop_mail.h"
#include "coordinator/residency/transition_report.h"

namespace somnus {

class LoopAccess;

class LifecycleCommand {
 public:
  virtual ~LifecycleCommand() = default;

  // As of the call's route: "update_weights".
  virtual const char* Name() const = 0;
  // Begins the command, or begins it again.
  virtual void Start(LoopAccess* loop) = 0;
  // The executor's call that Start, or an earlier result, has led to has this result.
  virtual void OnResult(LoopAccess* loop, LoopMail::CallResult result);
  // The group was lost. False: the command cannot begin again.
  virtual bool OnLoss(LoopAccess* loop);
  // The group is whole again.
  virtual void OnRecovered(LoopAccess* loop) { Start(loop); }
  // A turn of the loop begins while the command is under way.
  virtual void OnTurn(LoopAccess* loop);
  // An operator ends the command, which waits for its client.
  virtual void OnGivenUp(LoopAccess* loop, const absl::Status& reason);
  // The command ends, before anybody gets the result.
  virtual void OnEnd(LoopAccess* loop);
  // Hands the result to the client: the last call of the loop.
  virtual void Finish(absl::StatusOr<TransitionReport> result);

  // Steps are computed until the executor's call that is under way has ended.
  virtual bool LetsStepsGoOn() const { return false; }
  // The arrival of the command ends another command's wait for open requests.
  virtual bool EndsWaits() const { return false; }
  virtual bool ChangesWeights() const { return false; }
  // No operator can end the command now, since the command restarts workers.
  virtual bool EndsByItself() const { return false; }

  // The wait for open requests is over. The command does not wait for requests that were held back meanwhile.
  void OnSettled(LoopAccess* loop);

  // Null: the server itself.
  void set_caller(std::shared_ptr<const Caller> caller) { caller_ = std::move(caller); }
  const Caller* caller() const { return caller_.get(); }
  // The client has left.
  bool Abandoned() const { return caller_ != nullptr && caller_->has_left(); }
  void set_began(MonotonicTime began) { began_ = began; }
  MonotonicTime began() const { return began_; }

  const StopSignal& ended() const { return ended_; }
  const absl::StatusOr<TransitionReport>& result() const { return result_; }

 protected:
  // `mode`: the fate of open requests, for commands that call SettleOpenRequests.
  explicit LifecycleCommand(SleepMode mode = SleepMode::kKeep) : mode_(mode) {}

  // False: the command waits for open requests, and begins again at the requests' end.
  bool SettleOpenRequests(LoopAccess* loop);
  SleepMode mode() const { return mode_; }

 private:
  SleepMode mode_;  // kKeep once the wait of kWait is over
  std::shared_ptr<const Caller> caller_;
  MonotonicTime began_;
  absl::StatusOr<TransitionReport> result_;
  StopSignal ended_;
};

}  // namespace somnus
