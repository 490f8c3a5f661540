#pragma once
// The lifecycle commands of one engine loop: commands that wait, in the order of arrival, and the command
// that is under way, with the number of the executor's call for which the command waits. Shows the command
// under way on the board.
//
// Bounds. A command that kMaxInterruptions losses of the group have interrupted ends at the next loss.
// Plain state of the loop thread.

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/monotonic.h"
#include "coordinator/engine/engine_board.h"
#include "coordinator/engine/lifecycle_command.h"

namespace somnus {

class CommandLane {
 public:
  static constexpr int kMaxInterruptions = 3;

  // `log_name`: as EngineOptions. The board is borrowed.
  CommandLane(std::string log_name, EngineBoard* board) : log_name_(std::move(log_name)), board_(board) {}

  void Add(std::vector<std::shared_ptr<LifecycleCommand>> commands);
  // The command's turn comes before all commands that wait.
  void AddFirst(std::shared_ptr<LifecycleCommand> command) { waiting_.push_front(std::move(command)); }
  // Ends waiting commands that a client has left.
  void DropAbandoned();
  // A command that waits ends the wait of the command under way for open requests.
  bool EndsWaits() const;

  // Null: no command is under way.
  LifecycleCommand* current() const { return under_way_.has_value() ? under_way_->command.get() : nullptr; }
  // Takes the next command; the caller starts it. False: a command is under way, or none waits.
  bool BeginNext(MonotonicTime now);
  // Shows the command under way and the number of commands that wait.
  void Show() const;

  // The command under way calls the executor. Calls are numbered in their order.
  int64_t NewCall();
  // The command under way has called the executor, and steps are computed meanwhile.
  bool lets_steps_go_on() const { return has_call() && current()->LetsStepsGoOn(); }
  bool has_call() const { return under_way_.has_value() && under_way_->call.has_value(); }
  bool Awaits(int64_t call) const { return has_call() && under_way_->call == call; }
  // The result has come, or will never come.
  void EndCall() { under_way_->call.reset(); }
  // A loss has interrupted the command under way. False: too often.
  bool CountInterruption() { return ++under_way_->num_interruptions <= kMaxInterruptions; }

  // An operator ends the command under way; `reply` is called once the command has ended. False: an operator
  // has done so before.
  bool GiveUp(const absl::Status& reason, std::function<void(absl::Status)> reply);
  // Not ok: an operator ends the command under way.
  absl::Status given_up() const { return under_way_.has_value() ? under_way_->given_up : absl::OkStatus(); }

  // A command that has ended, and the operators who wait for that.
  struct Ended {
    std::shared_ptr<LifecycleCommand> command;
    std::vector<std::function<void(absl::Status)>> replies;
  };
  // No command is under way afterwards.
  Ended Retire();

 private:
  struct UnderWay {
    std::shared_ptr<LifecycleCommand> command;
    std::optional<int64_t> call;  // of the executor; set until the result comes
    int num_interruptions = 0;    // losses of the group
    absl::Status given_up;
    std::vector<std::function<void(absl::Status)>> replies;  // to operators
  };

  const std::string log_name_;
  EngineBoard* const board_;
  std::deque<std::shared_ptr<LifecycleCommand>> waiting_;
  std::optional<UnderWay> under_way_;
  int64_t last_call_ = 0;
};

}  // namespace somnus
