#include "coordinator/replicas/replica_set.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "coordinator/engine/engine_report.h"
#include "coordinator/replicas/replica_prefixes.h"
#include "coordinator/request/request_bytes.h"

namespace somnus {
namespace {

// A request is accepted only if every replica can serve it: it may have to go on at any of them.
EngineOptions Smallest(const std::vector<ReplicaOptions>& replicas) {
  SOMNUS_CHECK(replicas.size() >= 2 && replicas.size() <= Router::kMaxReplicas);
  EngineOptions smallest = replicas[0].engine;
  for (const ReplicaOptions& replica : replicas) {
    const SchedulerOptions& scheduler = replica.engine.scheduler;
    smallest.scheduler.max_model_len = std::min(smallest.scheduler.max_model_len, scheduler.max_model_len);
    smallest.scheduler.blocks.num_blocks =
        std::min(smallest.scheduler.blocks.num_blocks, scheduler.blocks.num_blocks);
  }
  return smallest;
}

// What all prefix caches together can hold.
int64_t TotalBlocksOf(const std::vector<ReplicaOptions>& replicas) {
  int64_t total = 0;
  for (const ReplicaOptions& replica : replicas) {
    const BlockManagerOptions& blocks = replica.engine.scheduler.blocks;
    if (blocks.enable_prefix_caching) total += blocks.num_blocks;
  }
  constexpr int64_t kMaxBlocks = 1 << 18;
  return std::min(total, kMaxBlocks);
}

// What is a sum over replicas, or the largest of theirs.
void AddSums(const EngineStats& one, EngineStats* sum) {
  for (const auto& [tag, bytes] : one.resident_bytes) sum->resident_bytes[tag] += bytes;
  for (const auto& [tag, bytes] : one.host_bytes) sum->host_bytes[tag] += bytes;
  for (const auto& [tag, bytes] : one.sleeping_bytes) sum->sleeping_bytes[tag] += bytes;
  sum->num_running += one.num_running;
  sum->num_waiting += one.num_waiting;
  sum->total_blocks += one.total_blocks;
  sum->free_blocks += one.free_blocks;
  sum->used_blocks += one.used_blocks;
  sum->block_size = one.block_size;
  sum->mapped_blocks += one.mapped_blocks;
  sum->longest_blocks += one.longest_blocks;
  sum->max_blocks += one.max_blocks;
  sum->waiting_tokens += one.waiting_tokens;
  sum->num_preemptions += one.num_preemptions;
  sum->preemptions.Add(one.preemptions);
  sum->swaps.Add(one.swaps);
  sum->prompt_tokens += one.prompt_tokens;
  sum->generation_tokens += one.generation_tokens;
  sum->prefix_cache_queries += one.prefix_cache_queries;
  sum->prefix_cache_hits += one.prefix_cache_hits;
  sum->copied_blocks += one.copied_blocks;
  sum->watermark_refusals += one.watermark_refusals;
  sum->num_first_scheduled += one.num_first_scheduled;
  sum->queue_time += one.queue_time;
  sum->prefix_cache_misses.Add(one.prefix_cache_misses);
  sum->cached_blocks.Add(one.cached_blocks);
  sum->total_host_blocks += one.total_host_blocks;
  sum->used_host_blocks += one.used_host_blocks;
  sum->cached_host_blocks += one.cached_host_blocks;
  sum->keepable_bytes += one.keepable_bytes;
  sum->speculation.Add(one.speculation);
  sum->num_forks += one.num_forks;
  sum->pinned_blocks += one.pinned_blocks;
  sum->pin_releases.Add(one.pin_releases);
  sum->num_cache_grows += one.num_cache_grows;
  sum->num_cache_shrinks += one.num_cache_shrinks;
  sum->kept_blocks += one.kept_blocks;
  sum->kept_tokens += one.kept_tokens;
  sum->num_steps += one.num_steps;
  sum->decode_step_time = std::max(sum->decode_step_time, one.decode_step_time);
  sum->num_recoveries += one.num_recoveries;
  sum->group_epoch = std::max(sum->group_epoch, one.group_epoch);
}

// For the report of the set's state: the reasons of a replica that is in this state, where there is one.
void AddReasons(const EngineStats& one, EngineStats* sum) {
  if (sum->note.why.empty() || (one.state == sum->state && !one.note.why.empty()))
    sum->note.why = one.note.why;
  if (sum->lifecycle_call.name.empty()) sum->lifecycle_call = one.lifecycle_call;
  sum->may_revive |= one.state == EngineState::kFailed && one.may_revive;
  if (one.state != EngineState::kAwake || one.stall.ok() || !sum->stall.ok()) return;
  sum->stall = one.stall;
  sum->stalled_since = one.stalled_since;
}

}  // namespace

// Passes a loop's events on, and tells the set what it needs to know of them.
class ReplicaSet::ReplicaObserver : public PassingObserver {
 public:
  ReplicaObserver(ReplicaSet* set, int32_t replica, EngineObserver* next)
      : PassingObserver(next), set_(set), replica_(replica) {}

  void OnRequestScheduled(const EngineRequest& request) override {
    set_->OnRequestScheduled(request);
    PassingObserver::OnRequestScheduled(request);
  }
  void OnStep(const StepEvent& event) override {
    if (set_->has_queued_) set_->mail_.Wake();
    StepEvent of_replica = event;
    of_replica.replica = replica_;
    PassingObserver::OnStep(of_replica);
  }
  // The set reports the transitions of all replicas, and changes of their weights, as one.
  void OnTransition(const TransitionEvent& /*event*/) override {}
  void OnWeightsChanged(const WeightsEvent& /*event*/) override {}
  void OnRequestFinished(const EngineRequest& request, FinishReason reason, int32_t num_output_tokens,
                         absl::Time scheduled, absl::Time first_token, absl::Time finished) override {
    set_->OnRequestEnded(request);
    PassingObserver::OnRequestFinished(request, reason, num_output_tokens, scheduled, first_token, finished);
  }

 private:
  ReplicaSet* const set_;
  const int32_t replica_;
};

ReplicaSet::ReplicaSet(std::vector<ReplicaOptions> replicas, EngineObserver* observer,
                       const ReplicaRetry& retry)
    : smallest_(Smallest(replicas)),
      retry_(retry),
      observer_(observer),
      room_(smallest_.queue),
      queue_(smallest_.scheduler.policy == SchedulingPolicy::kPriority
                 ? smallest_.scheduler.priority_aging_steps
                 : 0,
             /*brief_tokens=*/0),
      router_(smallest_.scheduler.blocks.block_size, TotalBlocksOf(replicas)),
      state_(EngineState::kLoading) {
  replicas_.resize(replicas.size());
  for (size_t i = 0; i < replicas.size(); ++i) {
    EngineOptions options = std::move(replicas[i].engine);
    absl::StrAppend(&options.log_name, "replica ", i, ": ");
    options.data_parallel_rank = static_cast<int32_t>(i);
    options.hand_over = [this](std::vector<EngineRequest> requests) { OnHandOver(std::move(requests)); };
    replicas_[i].retry = RetryBackoff(retry.first_pause, retry.longest_pause);
    replicas_[i].observer = std::make_unique<ReplicaObserver>(this, static_cast<int32_t>(i), observer);
    replicas_[i].loop =
        std::make_unique<EngineLoop>(std::move(options), replicas[i].executor, replicas_[i].observer.get());
  }
  std::vector<PinnedPrefixes*> prefixes;
  for (const Replica& replica : replicas_) prefixes.push_back(&replica.loop->pinned_prefixes());
  prefixes_ = MakeReplicaPrefixes(std::move(prefixes));
  for (size_t i = 0; i < replicas_.size(); ++i)
    replicas_[i].loop->OnStateChange([this, i] { OnReplicaStateChange(i); });
  absl::MutexLock lock(&join_mu_);
  thread_ = std::thread([this] { Run(); });
}

ReplicaSet::~ReplicaSet() { DrainAndStop(absl::ZeroDuration()); }

absl::Status ReplicaSet::SubmitAll(std::vector<EngineRequest> requests) {
  RETURN_IF_ERROR(EngineLoop::CheckRequests(smallest_, requests));
  SetQueuedBytes(&requests);
  std::vector<PrefixChain> chains;
  for (const EngineRequest& request : requests) {
    chains.push_back(
        MakePrefixChain(request.prompt, request.cache_salt, smallest_.scheduler.blocks.block_size));
  }
  {
    absl::MutexLock lock(&mu_);
    const EngineState state = state_;
    if (draining_) return absl::UnavailableError(WhyNotReady(EngineState::kDraining));
    if (!AdmitsRequests(state)) return absl::UnavailableError(ReportState(StatsOfReplicas()).Line());
    if (GaveUpStaleWeights()) return absl::UnavailableError(kStaleForTooLong);
    RETURN_IF_ERROR(room_.Check(requests, NumPreempted()));
    for (size_t i = 0; i < requests.size(); ++i) {
      room_.Add(requests[i]);
      Entry& entry = entries_[requests[i].id];
      entry.chain = std::move(chains[i]);
      entry.order = next_order_++;
      if (smallest_.scheduler.accounts != nullptr)
        entry.visit = smallest_.scheduler.accounts->Enter(requests[i].user);
      if (requests[i].first_token_by != absl::InfiniteDuration()) unjudged_.push_back(requests[i].id);
      InsertQueued(std::move(requests[i]), &entry);
    }
  }
  mail_.Wake();
  return absl::OkStatus();
}

// Of the requests that were scheduled before, those that wait: here, and at the replicas.
int64_t ReplicaSet::NumPreempted() const {
  int64_t count = num_queued_again_;
  for (const Replica& replica : replicas_) count += replica.loop->backlog().num_preempted;
  return count;
}

void ReplicaSet::Abort(const std::string& request_id) {
  {
    absl::MutexLock lock(&mu_);
    const auto it = entries_.find(request_id);
    if (it == entries_.end() || it->second.aborted) return;
    it->second.aborted = true;
    // When the replica hands it over in this moment, OnHandOver sees that it is aborted.
    if (it->second.replica >= 0) return replicas_[it->second.replica].loop->Abort(request_id);
    aborted_.push_back(request_id);
  }
  mail_.Wake();
}

absl::Status ReplicaSet::Health() const {
  const StateReport report = ReportState(StatsOfReplicas());
  return report.serving() ? absl::OkStatus() : absl::UnavailableError(report.Line());
}

std::string ReplicaSet::Errors() const {
  std::string errors;
  for (size_t i = 0; i < replicas_.size(); ++i) {
    const std::string error = replicas_[i].loop->Stats().error;
    if (!error.empty()) absl::StrAppend(&errors, errors.empty() ? "" : "; ", "replica ", i, ": ", error);
  }
  return errors;
}

EngineStats ReplicaSet::StatsOfReplicas() const {
  EngineStats sum;
  sum.state = state_;
  bool one_serves = false;
  sum.sleep_level = std::numeric_limits<int>::max();
  sum.paused = true;
  for (const Replica& replica : replicas_) {
    const EngineStats one = replica.loop->Stats();
    if (one.state != EngineState::kFailed && one.sleep_level < sum.sleep_level) {
      sum.sleep_level = one.sleep_level;
      sum.residency = one.residency;
    }
    if (one.state != EngineState::kFailed && one.weights_version > sum.weights_version) {
      sum.weights_version = one.weights_version;
      sum.weights_source = one.weights_source;
    }
    if (one.state != EngineState::kFailed) {
      sum.only_copy |= one.only_copy;
      sum.needs_weights |= one.needs_weights;
    }
    one_serves |= one.state == EngineState::kAwake && one.stall.ok();
    AddReasons(one, &sum);
    sum.paused = sum.paused && (one.paused || one.state == EngineState::kFailed);
    AddSums(one, &sum);
    sum.replicas.push_back({.state = one.state,
                            .error = one.error,
                            .num_running = one.num_running,
                            .num_waiting = one.num_waiting,
                            .num_recoveries = one.num_recoveries,
                            .group_epoch = one.group_epoch});
  }
  if (sum.state == EngineState::kFailed) {
    sum.sleep_level = 0;
    sum.paused = false;
    sum.error = Errors();
  }
  sum.gave_up_stale_weights = GaveUpStaleWeights();
  absl::MutexLock wait_lock(&wait_mu_);
  sum.note.since = history_.note().since;
  if (one_serves) {
    sum.stall = absl::OkStatus();
  } else if (sum.stall.ok()) {  // of a set that was awake a moment ago
    sum.stall = absl::UnavailableError(WhyNotReady(EngineState::kRecovering));
    sum.stalled_since = sum.note.since;
  }
  return sum;
}

EngineStats ReplicaSet::Stats() const {
  EngineStats sum = StatsOfReplicas();
  absl::MutexLock lock(&mu_);
  sum.num_waiting += static_cast<int32_t>(queue_.size());
  sum.num_moved = num_moved_;
  sum.lifecycle_call = lifecycle_call_.name.empty() && rolls_ ? roll_call_ : lifecycle_call_;
  sum.lifecycle_call.num_waiting = turns_.num_waiting();
  for (size_t i = 0; i < replicas_.size(); ++i) sum.replicas[i].num_requests = replicas_[i].num_requests;
  absl::MutexLock wait_lock(&wait_mu_);
  sum.oldest_wait = sleep_wait_.Of(room_.oldest_arrival(), smallest_.now(), smallest_.monotonic_now());
  return sum;
}

void ReplicaSet::OnStateChange(std::function<void()> callback) {
  absl::MutexLock lock(&state_mu_);
  on_state_change_ = std::move(callback);
  if (on_state_change_) on_state_change_();
}

void ReplicaSet::UpdateState() {
  std::vector<EngineState> states;
  absl::MutexLock lock(&state_mu_);
  for (const Replica& replica : replicas_) states.push_back(replica.loop->state());
  const EngineState state = SetState(states, call_, state_drains_);
  {
    absl::MutexLock wait_lock(&wait_mu_);
    sleep_wait_.NoteState(state, smallest_.monotonic_now());
    if (state != state_) history_.NoteState(state, smallest_.now(), "");
  }
  if (state == state_) return;
  state_ = state;
  if (on_state_change_) on_state_change_();
}

void ReplicaSet::OnReplicaStateChange(size_t replica) {
  UpdateState();
  {
    absl::MutexLock lock(&mu_);  // whoever awaits something of the replicas looks again
    NoteChange();
    const EngineState state = replicas_[replica].loop->state();
    // Whatever a replica does that is not awake empties its cache.
    if (state != EngineState::kAwake) router_.Forget(static_cast<int>(replica));
    RetryBackoff& retry = replicas_[replica].retry;
    if (state == EngineState::kAwake) retry.NoteServing(smallest_.monotonic_now());
    if (replicas_[replica].loop->may_revive() && retry.due() == absl::InfiniteDuration()) {
      const absl::Duration pause = retry.NoteFailed(smallest_.monotonic_now());
      if (pause < absl::InfiniteDuration())
        LogInfo("{}replica {} is tried again in {}", smallest_.log_name, replica,
                absl::FormatDuration(pause));
    }
  }
  mail_.Wake();
}

void ReplicaSet::AwaitFor(const std::function<bool()>& condition, absl::Duration timeout) {
  const MonotonicTime deadline = MonotonicNow() + timeout;
  while (!condition() && MonotonicNow() < deadline) {
    if (changed_ == nullptr) changed_ = std::make_shared<StopSignal>();
    const std::shared_ptr<StopSignal> changed = changed_;
    mu_.Unlock();
    changed->WaitFor(deadline - MonotonicNow());
    mu_.Lock();
  }
}

void ReplicaSet::NoteChange() {
  if (changed_ != nullptr) std::exchange(changed_, nullptr)->Stop();
}

void ReplicaSet::OnRequestScheduled(const EngineRequest& request) {
  absl::MutexLock lock(&mu_);
  entries_.at(request.id).was_scheduled = true;
  room_.NoteScheduled(request);
}

void ReplicaSet::OnRequestEnded(const EngineRequest& request) {
  {
    absl::MutexLock lock(&mu_);
    const auto it = entries_.find(request.id);
    Replica& replica = replicas_[it->second.replica];
    --replica.num_open;
    replica.load -= it->second.tokens;
    room_.Remove(request, it->second.was_scheduled);
    NoteEnded(it->second);
    entries_.erase(it);
    NoteChange();
  }
  if (has_queued_) mail_.Wake();
}

void ReplicaSet::OnHandOver(std::vector<EngineRequest> requests) {
  {
    absl::MutexLock lock(&mu_);
    for (EngineRequest& request : requests) {
      Entry& entry = entries_.at(request.id);
      Replica& replica = replicas_[entry.replica];
      --replica.num_open;
      replica.load -= entry.tokens;
      ++num_moved_;
      if (entry.aborted) aborted_.push_back(request.id);
      InsertQueued(std::move(request), &entry);
    }
    NoteChange();
  }
  mail_.Wake();
}

}  // namespace somnus
