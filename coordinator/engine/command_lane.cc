#include "coordinator/engine/command_lane.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/log.h"

namespace somnus {

void CommandLane::Add(std::vector<std::shared_ptr<LifecycleCommand>> commands) {
  waiting_.insert(waiting_.end(), std::make_move_iterator(commands.begin()),
                  std::make_move_iterator(commands.end()));
}

void CommandLane::DropAbandoned() {
  std::vector<std::shared_ptr<LifecycleCommand>> dropped;
  std::erase_if(waiting_, [&](const std::shared_ptr<LifecycleCommand>& command) {
    const bool drops = command->Abandoned();
    if (drops) dropped.push_back(command);
    return drops;
  });
  for (const std::shared_ptr<LifecycleCommand>& command : dropped) {
    LogInfo("{}{} is not carried out: its client has left", log_name_, command->Name());
    command->Finish(absl::CancelledError(kAbandoned));
  }
}

bool CommandLane::EndsWaits() const {
  return std::any_of(waiting_.begin(), waiting_.end(),
                     [](const std::shared_ptr<LifecycleCommand>& command) { return command->EndsWaits(); });
}

bool CommandLane::BeginNext(MonotonicTime now) {
  if (under_way_.has_value() || waiting_.empty()) return false;
  under_way_.emplace();
  under_way_->command = std::move(waiting_.front());
  waiting_.pop_front();
  under_way_->command->set_began(now);
  Show();
  return true;
}

void CommandLane::Show() const {
  LifecycleCallStats shown;
  if (const LifecycleCommand* const command = current(); command != nullptr) {
    shown.name = command->Name();
    shown.began = command->began();
    if (command->caller() != nullptr) shown.client = command->caller()->name;
    shown.num_waiting = static_cast<int32_t>(waiting_.size());
    shown.steps_go_on = lets_steps_go_on();
  }
  board_->NoteCommand(std::move(shown));
}

int64_t CommandLane::NewCall() {
  under_way_->call = ++last_call_;
  return last_call_;
}

bool CommandLane::GiveUp(const absl::Status& reason, std::function<void(absl::Status)> reply) {
  under_way_->replies.push_back(std::move(reply));
  if (!under_way_->given_up.ok()) return false;
  under_way_->given_up = reason;
  LogWarning("{}{} is ended by an operator", log_name_, under_way_->command->Name());
  return true;
}

CommandLane::Ended CommandLane::Retire() {
  UnderWay under_way = *std::exchange(under_way_, std::nullopt);
  return {std::move(under_way.command), std::move(under_way.replies)};
}

}  // namespace somnus
