#include "coordinator/scheduler/step_ledger.h"

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"

namespace somnus {

int64_t StepLedger::Add(InFlightStep step) {
  step.step_id = next_step_++;
  steps_.push_back(std::move(step));
  return steps_.back().step_id;
}

absl::StatusOr<InFlightStep> StepLedger::Take(int64_t step_id) {
  if (steps_.empty() || steps_.front().step_id != step_id)
    return absl::InternalError(absl::StrCat("reply to step ", step_id, " is not due"));
  InFlightStep step = std::move(steps_.front());
  steps_.pop_front();
  return step;
}

void StepLedger::Drop(const SequencePtr& sequence) {
  for (InFlightStep& step : steps_) {
    for (ScheduledEntry& entry : step.entries) {
      if (entry.dropped || entry.owner() != sequence) continue;
      entry.dropped = true;
      if (entry.samples) --entry.sequence->num_pending;
    }
  }
}

std::vector<SequencePtr> StepLedger::Adopters(const SequencePtr& bad,
                                              absl::FunctionRef<bool(const Sequence&)> may_share) const {
  std::vector<SequencePtr> adopters;
  for (const InFlightStep& step : steps_) {
    for (const ScheduledEntry& entry : step.entries) {
      const bool may_adopt = entry.adopted && entry.owner() != bad && !entry.owner()->finished();
      if (may_adopt && may_share(*entry.sequence)) adopters.push_back(entry.owner());
    }
  }
  return adopters;
}

std::vector<SequencePtr> StepLedger::DropAll() {
  std::vector<SequencePtr> sequences;
  absl::flat_hash_set<int64_t> seen;
  for (const InFlightStep& step : steps_) {
    for (const ScheduledEntry& entry : step.entries) {
      if (entry.samples && !entry.dropped) --entry.sequence->num_pending;
      const SequencePtr& sequence = entry.owner();
      if (!sequence->finished() && seen.insert(sequence->id).second) sequences.push_back(sequence);
    }
  }
  steps_.clear();
  return sequences;
}

void StepLedger::Reuse(v1::StepRequest sent) {
  // Tokens and block tables that are sent whole take memory that hardly a step needs.
  if (sent.new_sequences_size() + sent.forks_size() + sent.branches_size() > 0) return;
  sent.Clear();
  spare_request_ = std::move(sent);
}

void StepLedger::Reuse(std::vector<ScheduledEntry> entries) {
  entries.clear();
  spare_entries_ = std::move(entries);
}

}  // namespace somnus
