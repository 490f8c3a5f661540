#include "coordinator/replicas/replica_queue.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace somnus {
namespace {

int64_t AgingSteps(const SchedulerOptions& scheduler) {
  return scheduler.policy == SchedulingPolicy::kPriority ? scheduler.priority_aging_steps : 0;
}

}  // namespace

ReplicaQueue::ReplicaQueue(const EngineOptions* options, int64_t max_blocks, const ReplicaLoops* loops,
                           const SetBoard* board, size_t num_replicas)
    : options_(*options),
      loops_(*loops),
      board_(*board),
      room_(options->queue),
      waiting_(AgingSteps(options->scheduler), /*brief_tokens=*/0),
      places_(&options->scheduler, max_blocks, loops, num_replicas),
      deadlines_(loops) {}

absl::Status ReplicaQueue::Submit(std::vector<EngineRequest> requests) {
  const SchedulerOptions& scheduler = options_.scheduler;
  std::vector<PrefixChain> chains;
  for (const EngineRequest& request : requests)
    chains.push_back(MakePrefixChain(request.prompt, request.cache_salt, scheduler.blocks.block_size));
  {
    absl::MutexLock lock(&mu_);
    if (stage_ != Stage::kOpen) return absl::UnavailableError(WhyNotReady(EngineState::kDraining));
    // Requests that were scheduled before and wait again: here, and at the replicas.
    RETURN_IF_ERROR(room_.Check(requests, num_queued_again_ + loops_.NumPreempted()));
    for (size_t i = 0; i < requests.size(); ++i) {
      room_.Add(requests[i]);
      AcceptedRequest& entry = accepted_[requests[i].id];
      entry.chain = std::move(chains[i]);
      entry.order = next_order_++;
      if (scheduler.accounts != nullptr) entry.visit = scheduler.accounts->Enter(requests[i].user);
      deadlines_.NoteArrival(requests[i]);
      Insert(std::move(requests[i]), &entry);
    }
  }
  mail_.Wake();
  return absl::OkStatus();
}

void ReplicaQueue::Abort(const std::string& id) {
  {
    absl::MutexLock lock(&mu_);
    const auto it = accepted_.find(id);
    if (it == accepted_.end() || it->second.aborted) return;
    it->second.aborted = true;
    // When the replica hands the request over in this moment, TakeBack sees that the request is aborted.
    if (it->second.replica >= 0) return loops_.loop(it->second.replica).Abort(id);
    aborted_.push_back(id);
  }
  mail_.Wake();
}

void ReplicaQueue::NoteScheduled(const EngineRequest& request) {
  absl::MutexLock lock(&mu_);
  accepted_.at(request.id).was_scheduled = true;
  room_.NoteScheduled(request);
}

void ReplicaQueue::NoteEnded(const EngineRequest& request) {
  {
    absl::MutexLock lock(&mu_);
    const auto it = accepted_.find(request.id);
    places_.NoteLeft(it->second);
    room_.Remove(request, it->second.was_scheduled);
    awaited_.NoteEnded(it->second.order);
    accepted_.erase(it);
  }
  WakeIfQueued();
}

void ReplicaQueue::TakeBack(std::vector<EngineRequest> requests) {
  {
    absl::MutexLock lock(&mu_);
    for (EngineRequest& request : requests) {
      AcceptedRequest& entry = accepted_.at(request.id);
      places_.NoteLeft(entry);
      ++num_moved_;
      if (entry.aborted) aborted_.push_back(request.id);
      Insert(std::move(request), &entry);
    }
  }
  mail_.Wake();
}

void ReplicaQueue::NoteCacheEmpty(size_t replica) {
  absl::MutexLock lock(&mu_);
  places_.Forget(static_cast<int>(replica));
}

void ReplicaQueue::NoteCachesEmpty() {
  for (size_t i = 0; i < loops_.size(); ++i) NoteCacheEmpty(i);
}

ReplicaQueue::Pass ReplicaQueue::TakePass() {
  absl::MutexLock lock(&mu_);
  Pass pass;
  pass.endings = TakeEndings();
  HandOut();
  pass.next_expiry = deadlines_.next();
  pass.stopped = stage_ == Stage::kStopped;
  has_queued_ = !waiting_.empty();
  return pass;
}

void ReplicaQueue::WakeIfQueued() {
  if (has_queued_) mail_.Wake();
}

void ReplicaQueue::Insert(EngineRequest request, AcceptedRequest* entry) {
  const RequestProgress* progress = request.progress.get();
  entry->replica = -1;
  entry->tokens = static_cast<int64_t>(request.prompt.size() +
                                       (progress == nullptr ? 0 : progress->output_tokens.size()));
  entry->sequence = std::make_shared<Sequence>();
  Sequence& sequence = *entry->sequence;
  sequence.id = entry->order;
  sequence.visit = entry->visit;
  if (options_.scheduler.policy == SchedulingPolicy::kPriority) {
    sequence.effective_priority = progress == nullptr ? request.priority : progress->effective_priority;
    sequence.waited_steps = progress == nullptr ? 0 : progress->waited_steps;
  }
  sequence.request = std::move(request);
  waiting_.Insert(entry->sequence, StepClock());
  num_queued_again_ += entry->was_scheduled ? 1 : 0;
  deadlines_.NoteQueued(*entry, accepted_);
  has_queued_ = true;
}

EngineRequest ReplicaQueue::Take(AcceptedRequest* entry) {
  const SequencePtr sequence = std::move(entry->sequence);
  waiting_.Erase(sequence.get(), StepClock());
  num_queued_again_ -= entry->was_scheduled ? 1 : 0;
  EngineRequest request = std::move(sequence->request);
  if (!QueueDeadlines::NeedsFirstToken(*entry, request, accepted_))
    request.first_token_by = absl::InfiniteDuration();
  if (options_.scheduler.policy != SchedulingPolicy::kPriority && entry->visit == nullptr) return request;
  RequestProgress progress = request.progress == nullptr ? RequestProgress() : *request.progress;
  progress.effective_priority = sequence->effective_priority;
  progress.waited_steps = sequence->waited_steps;
  progress.num_charged = std::max(progress.num_charged, entry->num_charged);
  request.progress = std::make_shared<const RequestProgress>(std::move(progress));
  return request;
}

int64_t ReplicaQueue::StepClock() const {
  return options_.scheduler.policy == SchedulingPolicy::kPriority ? loops_.NumSteps() : 0;
}

SequencePtr ReplicaQueue::Next() {
  for (WaitingQueue::Map::const_iterator it = waiting_.begin(); it != waiting_.end();) {
    if (waiting_.Refresh(&it)) continue;
    if (!awaited_.HoldsBack(it->second->id)) return it->second;
    ++it;
  }
  return nullptr;
}

void ReplicaQueue::Charge(int replica, AcceptedRequest* entry) const {
  if (entry->visit == nullptr || entry->num_charged > 0) return;
  entry->num_charged = static_cast<int64_t>(entry->sequence->request.prompt.size());
  const int64_t known = places_.KnownTokens(*entry, replica);
  entry->visit->Charge(UserAccounts::kPromptWeight * (entry->num_charged - known));
}

void ReplicaQueue::HandOut() {
  if (stage_ >= Stage::kEnding || waiting_.empty()) return;
  waiting_.Age(StepClock());
  for (std::vector<Router::Candidate> candidates = places_.WithRoom(); !candidates.empty();) {
    const SequencePtr next = Next();
    if (next == nullptr) return;
    AcceptedRequest& entry = accepted_.at(next->request.id);
    const int chosen = places_.Choose(entry, candidates);
    Charge(chosen, &entry);
    EngineRequest request = Take(&entry);
    entry.replica = chosen;
    if (loops_.loop(chosen).Offer(&request)) {
      places_.NoteTaken(entry);
      candidates = places_.WithRoom();
      continue;
    }
    // The replica is awake no longer.
    Insert(std::move(request), &entry);
    std::erase_if(candidates, [&](const Router::Candidate& one) { return one.replica == chosen; });
  }
}

ReplicaQueue::Ending ReplicaQueue::End(const std::string& id, FinishReason reason,
                                       const absl::Status& error) {
  const auto it = accepted_.find(id);
  Ending ending{Take(&it->second), reason, error, std::nullopt};
  room_.Remove(ending.request, it->second.was_scheduled);
  awaited_.NoteEnded(it->second.order);
  accepted_.erase(it);
  return ending;
}

ReplicaQueue::Ending ReplicaQueue::Expire(const std::string& id, ExpiryCause cause) {
  Ending ending = End(id, FinishReason::kError, ExpiryError(cause));
  ending.expired = cause;
  return ending;
}

std::vector<ReplicaQueue::Ending> ReplicaQueue::TakeEndings() {
  std::vector<Ending> endings;
  for (const std::string& id : std::exchange(aborted_, {}))
    endings.push_back(End(id, FinishReason::kAbort, absl::OkStatus()));
  const MonotonicTime now = options_.monotonic_now();
  const QueueDeadlines::Queue queue{waiting_, accepted_, places_};
  for (const auto& [id, cause] : deadlines_.Expired(queue, now)) endings.push_back(Expire(id, cause));
  while (const std::optional<std::string> id = deadlines_.NextHopeless(queue, now))
    endings.push_back(Expire(*id, ExpiryCause::kTtftEstimate));
  const std::optional<absl::Status> error = WhyAllEnd();
  if (!error.has_value()) return endings;
  const FinishReason reason = error->ok() ? FinishReason::kAbort : FinishReason::kError;
  while (!waiting_.empty()) {
    const std::string id = waiting_.begin()->second->request.id;
    endings.push_back(End(id, reason, *error));
  }
  return endings;
}

std::optional<absl::Status> ReplicaQueue::WhyAllEnd() {
  const absl::Status refusal = std::exchange(refusal_, absl::OkStatus());
  if (waiting_.empty()) return std::nullopt;
  if (board_.state() == EngineState::kFailed)
    return absl::UnavailableError(absl::StrCat("the engine failed: ", loops_.Errors()));
  if (loops_.GaveUpStaleWeights()) return absl::UnavailableError(kStaleForTooLong);
  if (!refusal.ok()) return refusal;
  if (stage_ >= Stage::kEnding) return absl::OkStatus();
  return std::nullopt;
}

void ReplicaQueue::Refuse(const absl::Status& error) {
  {
    absl::MutexLock lock(&mu_);
    refusal_ = error;
  }
  mail_.Wake();
}

void ReplicaQueue::HoldOff(size_t replica, bool held_off) {
  {
    absl::MutexLock lock(&mu_);
    places_.HoldOff(replica, held_off);
  }
  if (!held_off) mail_.Wake();
}

std::vector<std::string> ReplicaQueue::HoldBackLater() {
  absl::MutexLock lock(&mu_);
  awaited_.Begin(next_order_, static_cast<int64_t>(accepted_.size()));
  std::vector<std::pair<int64_t, std::string>> by_order;
  for (const auto& [id, entry] : accepted_) by_order.emplace_back(entry.order, id);
  std::sort(by_order.begin(), by_order.end());
  std::vector<std::string> open;
  for (auto& [order, id] : by_order) open.push_back(std::move(id));
  return open;
}

void ReplicaQueue::EndHoldBack() {
  absl::MutexLock lock(&mu_);
  awaited_.End();
}

void ReplicaQueue::SetStage(Stage stage) {
  {
    absl::MutexLock lock(&mu_);
    stage_ = std::max(stage_, stage);
  }
  mail_.Wake();
}

int64_t ReplicaQueue::num_awaited() const {
  absl::MutexLock lock(&mu_);
  return awaited_.num_left();
}

int64_t ReplicaQueue::num_open() const {
  absl::MutexLock lock(&mu_);
  return static_cast<int64_t>(accepted_.size());
}

int64_t ReplicaQueue::num_open(size_t replica) const {
  absl::MutexLock lock(&mu_);
  return places_.num_open(replica);
}

bool ReplicaQueue::ends() const {
  absl::MutexLock lock(&mu_);
  return stage_ >= Stage::kEnding;
}

std::optional<absl::Time> ReplicaQueue::AddTo(EngineStats* stats) const {
  absl::MutexLock lock(&mu_);
  stats->num_waiting += static_cast<int32_t>(waiting_.size());
  stats->waiting_tokens = room_.waiting_tokens();  // here and at the replicas
  stats->num_moved = num_moved_;
  for (size_t i = 0; i < stats->replicas.size(); ++i)
    stats->replicas[i].num_requests = places_.num_requests(i);
  return room_.oldest_arrival();
}

std::vector<RequestView> ReplicaQueue::View(int32_t most) const {
  std::vector<RequestView> views;
  absl::MutexLock lock(&mu_);
  for (const auto& [key, sequence] : waiting_) {
    if (static_cast<int32_t>(views.size()) >= most) break;
    const EngineRequest& request = sequence->request;
    const RequestProgress* progress = request.progress.get();  // of a request that a replica has handed over
    views.push_back({.id = request.name(),
                     .state = progress == nullptr ? "waiting" : "preempted",
                     .arrival = request.arrival,
                     .num_prompt_tokens = static_cast<int64_t>(request.prompt.size())});
    if (progress != nullptr)
      views.back().num_output_tokens = static_cast<int64_t>(progress->output_tokens.size());
  }
  return views;
}

}  // namespace somnus
