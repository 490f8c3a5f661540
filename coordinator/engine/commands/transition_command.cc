#include "coordinator/engine/commands/transition_command.h"

#include <algorithm>
#include <utility>

#include "base/memory_tags.h"
#include "coordinator/engine/loop_access.h"

namespace somnus {

void TransitionCommand::NoteBegin(const LoopAccess& loop) {
  if (!before_.has_value()) before_ = loop.parts().holdings.residency();
}

void TransitionCommand::ReportTransition(LoopAccess* loop, const TransitionReport& report, bool wakes) const {
  TransitionEvent event;
  event.wakes = wakes;
  event.level = loop->parts().holdings.residency().level();
  event.duration = loop->parts().options.monotonic_now() - began();
  event.report = report;
  loop->parts().observer.OnTransition(event);
}

void TransitionCommand::Done(LoopAccess* loop, TransitionReport report) const {
  const Residency& residency = loop->parts().holdings.residency();
  for (const std::string tag : kMemoryTags) {
    const bool named = tags_.empty() || std::find(tags_.begin(), tags_.end(), tag) != tags_.end();
    const TagState state = residency.state(tag);
    const bool changed = state != before_->state(tag);
    if (named || changed) report.tags[tag] = {state, changed};
  }
  loop->End(std::move(report));
}

}  // namespace somnus
