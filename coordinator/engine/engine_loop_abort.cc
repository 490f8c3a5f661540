// EngineLoop's part for commands that end before their work is done: an operator ends the command, or the
// client has left before the command's begin.

#include <memory>
#include <utility>

#include "base/log.h"
#include "coordinator/engine/engine_loop.h"

namespace somnus {

absl::Status EngineLoop::AbortCall() {
  struct Abort {
    StopSignal done;
    absl::Status status;
  };
  const auto abort = std::make_shared<Abort>();
  {
    absl::MutexLock lock(&mu_);
    if (stopped_) return absl::UnavailableError("the engine has stopped");
    call_aborts_.push_back([abort](absl::Status status) {
      abort->status = std::move(status);
      abort->done.Stop();
    });
  }
  mail_->Wake();
  abort->done.WaitFor(absl::InfiniteDuration());
  return abort->status;
}

void EngineLoop::AbortCommands() {
  std::vector<std::function<void(absl::Status)>> aborts;
  {
    absl::MutexLock lock(&mu_);
    aborts.swap(call_aborts_);
  }
  for (std::function<void(absl::Status)>& reply : aborts) {
    if (!command_.has_value()) {
      reply(absl::FailedPreconditionError("no lifecycle call is under way"));
    } else if (restarting_ || command_->kind == LifecycleCommand::Kind::kRevive) {
      reply(absl::FailedPreconditionError("the workers are being restarted, which ends by itself"));
    } else {
      command_->on_end.push_back([reply = std::move(reply)] { reply(absl::OkStatus()); });
      AbortCommand();
    }
  }
}

void EngineLoop::AbortCommand() {
  if (!command_->given_up.ok()) return;  // its end is under way
  command_->given_up = absl::AbortedError(kEndedByOperator);
  LogWarning("{}{} is ended by an operator", options_.log_name, command_->Name());
  if (waits_) return EndWaitOf(command_->given_up);
  if (recovering_) return EndCommand(command_->given_up);
  if (!call_.has_value()) return EndWeightsChange(command_->given_up);  // tensors are coming
  // The time that a rank would still take is unknown; the loss of the group ends the command.
  executor_->LoseEpoch(command_->given_up);
}

void EngineLoop::DropAbandoned() {
  std::vector<LifecycleCommand> dropped;
  std::erase_if(commands_, [&](LifecycleCommand& command) {
    const bool drops = command.Abandoned();
    if (drops) dropped.push_back(std::move(command));
    return drops;
  });
  for (const LifecycleCommand& command : dropped) {
    LogInfo("{}{} is not carried out: its client has left", options_.log_name, command.Name());
    command.reply(absl::CancelledError(kAbandoned));
  }
}

void EngineLoop::NoteCommand() {
  absl::MutexLock lock(&mu_);
  lifecycle_call_ = LifecycleCallStats();
  if (!command_.has_value()) return;
  lifecycle_call_.name = command_->Name();
  lifecycle_call_.began = command_->began;
  if (command_->caller != nullptr) lifecycle_call_.client = command_->caller->name;
  lifecycle_call_.num_waiting = static_cast<int32_t>(commands_.size());
}

}  // namespace somnus
