#pragma once
// The part that a sleep and a wake-up have in common: the tags that the client named, and the report of how
// the state of the tags has changed since the command began.

#include <optional>
#include <string>
#include <vector>

#include "coordinator/engine/lifecycle_command.h"
#include "coordinator/residency/residency.h"

namespace somnus {

class TransitionCommand : public LifecycleCommand {
 protected:
  // `tags`: of memory; empty: all.
  explicit TransitionCommand(std::vector<std::string> tags, SleepMode mode = SleepMode::kKeep)
      : LifecycleCommand(mode), tags_(std::move(tags)) {}

  const std::vector<std::string>& tags() const { return tags_; }
  // To be called by Start. The report of a command that begins again is of everything since the first begin.
  void NoteBegin(const LoopAccess& loop);
  // Tells the observer of a transition that has changed something.
  void ReportTransition(LoopAccess* loop, const TransitionReport& report, bool wakes) const;
  // Ends the command well: adds the outcome of each tag to the report.
  void Done(LoopAccess* loop, TransitionReport report) const;

 private:
  const std::vector<std::string> tags_;
  std::optional<Residency> before_;  // when the command began first
};

}  // namespace somnus
