// ReplicaSet's queue: which request goes to which replica, and which ends while it waits.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/heartbeat.h"
#include "coordinator/replicas/replica_set.h"

namespace somnus {

void ReplicaSet::Run() {
  const Heartbeat heartbeat(smallest_.log_name, "queue of the replicas");
  while (true) {
    heartbeat.Beat();
    const absl::Duration retry = RetryFailed();
    std::vector<Ending> endings;
    MonotonicTime next;
    bool stopped;
    {
      absl::MutexLock lock(&mu_);
      endings = TakeEndings();
      HandOut();
      next = next_expiry_;
      stopped = stopped_;
      has_queued_ = !queue_.empty();
    }
    for (Ending& ending : endings) Deliver(std::move(ending));
    if (stopped) return;
    mail_.WaitFor(std::min(next - smallest_.monotonic_now(), retry));
  }
}

void ReplicaSet::InsertQueued(EngineRequest request, Entry* entry) {
  const RequestProgress* progress = request.progress.get();
  entry->replica = -1;
  entry->tokens = static_cast<int64_t>(request.prompt.size() +
                                       (progress == nullptr ? 0 : progress->output_tokens.size()));
  entry->sequence = std::make_shared<Sequence>();
  Sequence& sequence = *entry->sequence;
  sequence.id = entry->order;
  sequence.visit = entry->visit;
  if (smallest_.scheduler.policy == SchedulingPolicy::kPriority) {
    sequence.effective_priority = progress == nullptr ? request.priority : progress->effective_priority;
    sequence.waited_steps = progress == nullptr ? 0 : progress->waited_steps;
  }
  sequence.request = std::move(request);
  queue_.Insert(entry->sequence, StepClock());
  num_queued_again_ += entry->was_scheduled ? 1 : 0;
  next_expiry_ = std::min(next_expiry_, ExpiryOf(*entry, sequence.request));
  has_queued_ = true;
}

EngineRequest ReplicaSet::TakeQueued(Entry* entry) {
  const SequencePtr sequence = std::move(entry->sequence);
  queue_.Erase(sequence.get(), StepClock());
  num_queued_again_ -= entry->was_scheduled ? 1 : 0;
  EngineRequest request = std::move(sequence->request);
  if (!NeedsFirstToken(*entry, request)) request.first_token_by = absl::InfiniteDuration();
  if (smallest_.scheduler.policy != SchedulingPolicy::kPriority && entry->visit == nullptr) return request;
  RequestProgress progress = request.progress == nullptr ? RequestProgress() : *request.progress;
  progress.effective_priority = sequence->effective_priority;
  progress.waited_steps = sequence->waited_steps;
  progress.num_charged = std::max(progress.num_charged, entry->num_charged);
  request.progress = std::make_shared<const RequestProgress>(std::move(progress));
  return request;
}

// Time for aging: the steps of the replica that has done most of them.
int64_t ReplicaSet::StepClock() const {
  if (smallest_.scheduler.policy != SchedulingPolicy::kPriority) return 0;
  int64_t steps = 0;
  for (const Replica& replica : replicas_) steps = std::max(steps, replica.loop->backlog().num_steps);
  return steps;
}

bool ReplicaSet::HasRoom(const Replica& replica) const {
  if (replica.is_rolling || replica.loop->state() != EngineState::kAwake) return false;
  const SchedulerOptions& scheduler = smallest_.scheduler;
  const EngineLoop::Backlog backlog = replica.loop->backlog();
  const int64_t ahead = std::max(1, scheduler.max_num_seqs / 8);
  return backlog.num_open < scheduler.max_num_seqs + ahead && backlog.num_preempted == 0 &&
         backlog.waiting_tokens < int64_t{2} * scheduler.max_num_batched_tokens;
}

std::vector<Router::Candidate> ReplicaSet::Candidates() const {
  std::vector<Router::Candidate> candidates;
  for (size_t i = 0; i < replicas_.size(); ++i) {
    if (HasRoom(replicas_[i])) candidates.push_back({static_cast<int>(i), replicas_[i].load});
  }
  return candidates;
}

SequencePtr ReplicaSet::NextQueued() {
  for (WaitingQueue::Map::const_iterator it = queue_.begin(); it != queue_.end();) {
    if (queue_.Refresh(&it)) continue;
    if (!IsHeldBack(it->second->id)) return it->second;
    ++it;
  }
  return nullptr;
}

void ReplicaSet::Charge(int replica, Entry* entry) const {
  if (entry->visit == nullptr || entry->num_charged > 0) return;
  const int64_t known = router_.CountKnown(entry->chain, replica) * smallest_.scheduler.blocks.block_size;
  entry->num_charged = static_cast<int64_t>(entry->sequence->request.prompt.size());
  entry->visit->Charge(UserAccounts::kPromptWeight * (entry->num_charged - known));
}

void ReplicaSet::HandOut() {
  if (stopping_ || queue_.empty()) return;
  queue_.Age(StepClock());
  for (std::vector<Router::Candidate> candidates = Candidates(); !candidates.empty();) {
    const SequencePtr next = NextQueued();
    if (next == nullptr) return;
    Entry& entry = entries_.at(next->request.id);
    const int chosen = router_.Choose(entry.chain, candidates);
    Charge(chosen, &entry);
    Replica& replica = replicas_[chosen];
    EngineRequest request = TakeQueued(&entry);
    // Before the replica has it, since it may tell of the request at once.
    entry.replica = chosen;
    if (!replica.loop->Offer(&request)) {  // it is awake no longer
      InsertQueued(std::move(request), &entry);
      std::erase_if(candidates, [&](const Router::Candidate& one) { return one.replica == chosen; });
      continue;
    }
    router_.Note(entry.chain, chosen);
    ++replica.num_open;
    ++replica.num_requests;
    replica.load += entry.tokens;
    candidates = Candidates();
  }
}

ReplicaSet::Ending ReplicaSet::EndQueued(const std::string& id, FinishReason reason,
                                         const absl::Status& error) {
  const auto it = entries_.find(id);
  Ending ending{TakeQueued(&it->second), reason, error, std::nullopt};
  room_.Remove(ending.request, it->second.was_scheduled);
  NoteEnded(it->second);
  entries_.erase(it);
  NoteChange();
  return ending;
}

std::vector<ReplicaSet::Ending> ReplicaSet::TakeEndings() {
  std::vector<Ending> endings;
  for (const std::string& id : std::exchange(aborted_, {}))
    endings.push_back(EndQueued(id, FinishReason::kAbort, absl::OkStatus()));
  TakeExpired(&endings);
  TakeHopeless(&endings);
  const absl::Status refusal = std::exchange(refusal_, absl::OkStatus());
  if (queue_.empty()) return endings;
  absl::Status error;
  if (state_ == EngineState::kFailed) {
    error = absl::UnavailableError(absl::StrCat("the engine failed: ", Errors()));
  } else if (GaveUpStaleWeights()) {
    error = absl::UnavailableError(kStaleForTooLong);
  } else if (!refusal.ok()) {
    error = refusal;
  } else if (!stopping_) {
    return endings;
  }
  const FinishReason reason = error.ok() ? FinishReason::kAbort : FinishReason::kError;
  while (!queue_.empty()) {
    const std::string id = queue_.begin()->second->request.id;
    endings.push_back(EndQueued(id, reason, error));
  }
  return endings;
}

// As a loop does at the end of a request. Without the lock.
void ReplicaSet::Deliver(Ending ending) {
  RequestOutput output;
  output.finish_reason = ending.reason;
  output.error = std::move(ending.error);
  const RequestProgress progress =
      ending.request.progress == nullptr ? RequestProgress() : *ending.request.progress;
  output.num_cached_tokens = progress.num_cached_tokens;
  if (observer_ != nullptr && ending.expired.has_value()) observer_->OnRequestExpired(*ending.expired);
  if (observer_ != nullptr) {
    observer_->OnRequestFinished(ending.request, ending.reason,
                                 static_cast<int32_t>(progress.output_tokens.size()), progress.scheduled_time,
                                 progress.first_token_time, smallest_.now());
  }
  ending.request.sink->OnOutput(std::move(output));
}

}  // namespace somnus
