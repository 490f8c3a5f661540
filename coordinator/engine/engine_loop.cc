#include "coordinator/engine/engine_loop.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/heartbeat.h"
#include "base/log.h"
#include "base/null_block.h"
#include "base/running_clock.h"

namespace somnus {
namespace {

// By how much counters have grown.
template <size_t n>
std::array<int32_t, n> Gains(const std::array<int64_t, n>& counters, const std::array<int64_t, n>& before) {
  std::array<int32_t, n> gains;
  for (size_t i = 0; i < n; ++i) gains[i] = static_cast<int32_t>(counters[i] - before[i]);
  return gains;
}

}  // namespace

void EngineLoop::Run() {
  const Heartbeat heartbeat(options_.log_name, "engine loop");
  QueueSelfCheck();
  while (ProcessMail()) {
    heartbeat.Beat();
    const bool worked = Step();
    PublishStats();
    if (!worked) WaitForMail();
  }
  {
    absl::MutexLock lock(&mu_);
    stopped_ = true;
  }
  loop_ended_.Stop();
  recovering_ = false;  // nothing waits for it any more
  if (command_.has_value()) EndCommand(CheckLifecycle());
  // Commands that came too late are run all the same: each sees a draining or failed engine and lets its
  // caller go on.
  ProcessMail();
}

bool EngineLoop::ProcessMail() {
  std::vector<EngineRequest> submitted;
  std::vector<std::string> aborted;
  bool draining;
  {
    absl::MutexLock lock(&mu_);
    submitted.swap(submitted_);
    aborted.swap(aborted_);
    commands_.insert(commands_.end(), std::make_move_iterator(arrived_commands_.begin()),
                     std::make_move_iterator(arrived_commands_.end()));
    arrived_commands_.clear();
    draining = draining_;
  }
  EndUpdates();
  AbortCommands();
  prefixes_.Apply(&scheduler_);
  ProcessRequests(std::move(submitted), aborted);
  // After the commands were taken: a command that came after a loss is run after it, too.
  ProcessEvents();
  StartCommands();
  CheckStaleWeights();
  return !draining || !DrainIsOver();
}

void EngineLoop::ProcessRequests(std::vector<EngineRequest> submitted,
                                 const std::vector<std::string>& aborted) {
  if (!submitted.empty()) idle_checked_ = false;
  held_back_.insert(held_back_.end(), std::make_move_iterator(submitted.begin()),
                    std::make_move_iterator(submitted.end()));
  const MonotonicTime now = options_.monotonic_now();
  if (!held_back_.empty()) {
    // One that ends while it is held back ends in the scheduler.
    ReleaseHeldBack([&](const EngineRequest& request) {
      return !waits_ || HeldBackUntil(request) <= now ||
             std::find(aborted.begin(), aborted.end(), request.id) != aborted.end();
    });
  }
  for (const std::string& id : aborted) {
    if (SequencePtr sequence = scheduler_.Abort(id)) End(sequence, FinishReason::kAbort, absl::OkStatus());
  }
  for (const ExpiredSequence& expired : scheduler_.Expire(now)) EndExpired(expired);
}

// Until there are no more: a recovery that cannot even begin has ended within the call that asks for it.
void EngineLoop::ProcessEvents() {
  for (LoopMail::Events events = mail_->Take(); !events.empty(); events = mail_->Take()) {
    if (events.call_result.has_value()) FinishCall(*std::move(events.call_result));
    if (events.recovered.has_value()) FinishRecovery(*events.recovered);
    // Not that of an epoch whose recovery has ended since.
    if (events.failure.has_value() && !executor_->Health().ok()) Lose(*events.failure);
  }
}

// True once no request is open. Aborts those that are when the grace is over, or when the engine could not
// finish them: it is paused, or it sleeps and is not being woken.
bool EngineLoop::DrainIsOver() {
  MonotonicTime deadline;
  {
    absl::MutexLock lock(&mu_);
    deadline = drain_deadline_;
  }
  const bool stands = paused_ || (!MayServe() && !call_.has_value());
  if (options_.monotonic_now() >= deadline || stands) {
    for (const SequencePtr& sequence : scheduler_.AbortAll())
      End(sequence, FinishReason::kAbort, absl::OkStatus());
  }
  return !scheduler_.has_sequences();
}

bool EngineLoop::Computes() const {
  return state() != EngineState::kFailed && !recovering_ && residency_.awake();
}

bool EngineLoop::Step() {
  if ((command_.has_value() && !waits_) || !Runs()) return false;
  bool sent = false;
  if (scheduler_.has_sequences()) {
    const MonotonicTime began = options_.monotonic_now();
    StepPlan plan = scheduler_.Schedule();
    sent = !plan.empty();
    if (sent) Send(std::move(plan), options_.monotonic_now() - began);
    if (!Computes()) return true;
  }
  const size_t max_ahead = options_.async_scheduling ? 1 : 0;  // steps beyond the one whose reply is awaited
  if (sent_.size() > max_ahead || (!sent && !sent_.empty())) {
    Receive();
    return true;
  }
  if (!sent && scheduler_.has_sequences()) {
    Fail(absl::InternalError("the scheduler can place no sequence though nothing runs"));
    return true;
  }
  if (!sent) CheckIdle();
  return sent;
}

void EngineLoop::CheckIdle() {
  if (idle_checked_) return;
  idle_checked_ = true;
  absl::Status integrity = scheduler_.CheckSome();
  if (!integrity.ok()) Fail(absl::InternalError(absl::StrCat("integrity check: ", integrity.message())));
}

void EngineLoop::WaitForMail() {
  absl::Duration duration = NextExpiry() - options_.monotonic_now();
  {
    absl::MutexLock lock(&mu_);
    if (draining_) duration = std::min(duration, drain_deadline_ - options_.monotonic_now());
  }
  if (!gave_up_stale_weights_)
    duration = std::min(duration, GivesUpStaleWeightsAt() - options_.monotonic_now());
  mail_->WaitFor(duration);
}

StepEvent EngineLoop::Describe(const StepPlan& plan) {
  StepEvent step;
  step.step_id = plan.request.step_id();
  step.group_epoch = group_epoch_;
  step.num_tokens = plan.num_tokens;
  step.num_sequences = plan.request.sequences_size();
  for (const v1::ScheduledSequence& sequence : plan.request.sequences()) {
    step.num_decodes += sequence.num_tokens() - sequence.num_draft_tokens() == 1 ? 1 : 0;
    step.num_draft_tokens += sequence.num_draft_tokens();
  }
  step.num_new = plan.request.new_sequences_size();
  step.num_forks = plan.request.forks_size();
  step.num_copies = plan.request.copies_size();
  step.num_swap_outs = plan.request.swap_outs_size();
  step.num_swap_ins = plan.request.swap_ins_size();
  const SchedulerStats before = std::exchange(counters_seen_, scheduler_.stats());
  step.preempted_by_swap = Gains(counters_seen_.preemptions.by_swap, before.preemptions.by_swap);
  step.preempted_by_recompute =
      Gains(counters_seen_.preemptions.by_recompute, before.preemptions.by_recompute);
  step.swap_obstacles = Gains(counters_seen_.swaps.obstacles, before.swaps.obstacles);
  step.num_cached_tokens = static_cast<int32_t>(counters_seen_.prefix_cache_hits - before.prefix_cache_hits);
  const int64_t num_refusals = scheduler_.blocks().num_watermark_refusals();
  step.num_watermark_refusals =
      static_cast<int32_t>(num_refusals - std::exchange(watermark_refusals_seen_, num_refusals));
  step.num_running = scheduler_.num_running();
  step.num_waiting = scheduler_.num_waiting();
  step.used_blocks = scheduler_.blocks().used_blocks();
  step.sent = options_.monotonic_now();
  return step;
}

void EngineLoop::Send(StepPlan plan, absl::Duration schedule) {
  const absl::Time now = options_.now();
  for (const SequencePtr& sequence : plan.first_scheduled) {
    sequence->scheduled_time = now;
    queue_time_ += now - sequence->request.arrival;
  }
  num_first_scheduled_ += static_cast<int64_t>(plan.first_scheduled.size());
  NoteFirstScheduled(plan.first_scheduled);
  if (observer_ != nullptr) {
    for (const SequencePtr& sequence : plan.first_scheduled) observer_->OnRequestScheduled(sequence->request);
  }
  sent_.push_back(Describe(plan));
  sent_.back().schedule = schedule;
  if (sent_.size() == 1) NoteAwaitedStep();
  absl::Status status = executor_->ExecuteAsync(&plan.request);
  scheduler_.Reuse(std::move(plan.request));
  if (status.ok()) return;
  // The size of a message is the scheduler's fault, which a recovery does not mend.
  if (absl::IsInvalidArgument(status)) return Fail(status);
  Lose(status);
}

// The oldest step in sent_ is the one that is waited for from now on.
void EngineLoop::NoteAwaitedStep() {
  absl::MutexLock lock(&mu_);
  awaited_step_ = sent_.empty() ? 0 : sent_.front().step_id;
  awaited_since_ = options_.running_now();
  awaited_at_ = options_.now();
}

void EngineLoop::NoteFirstScheduled(const std::vector<SequencePtr>& sequences) {
  if (sequences.empty()) return;
  absl::MutexLock lock(&mu_);
  for (const SequencePtr& sequence : sequences) room_.NoteScheduled(sequence->request);
}

void EngineLoop::Receive() {
  StepEvent step = sent_.front();
  const absl::Duration stood_still = StoodStill();
  absl::StatusOr<v1::StepReply> reply = executor_->Wait(step_deadline_.Timeout(step.num_tokens));
  sent_.pop_front();
  NoteAwaitedStep();
  if (!reply.ok()) return Lose(reply.status());
  if (reply->weights_version() != weights_.version) {
    return Lose(
        absl::InternalError(absl::StrCat("the workers computed with version ", reply->weights_version(),
                                         " of the weights, not ", weights_.version)));
  }
  for (const v1::SampledToken& token : reply->tokens()) {
    if (token.token_id() < 0 || token.token_id() >= options_.vocab_size) {
      return Fail(absl::InternalError(absl::StrCat("a worker sampled token ", token.token_id(),
                                                   " of a vocabulary of ", options_.vocab_size)));
    }
  }
  if (reply->tokens_size() > 0) recoveries_.clear();  // the last one has led to something
  const int64_t num_accepted = scheduler_.speculation().num_accepted_tokens;
  absl::StatusOr<std::vector<SequenceOutput>> outputs = scheduler_.Update(*reply);
  if (!outputs.ok()) return Fail(outputs.status());
  step.num_accepted_tokens =
      static_cast<int32_t>(scheduler_.speculation().num_accepted_tokens - num_accepted);
  const absl::Time now = options_.now();
  ++num_steps_;
  step.replied = options_.monotonic_now();
  // The time for which this process stood still is no measure for the steps to come.
  step.duration = std::max(absl::ZeroDuration(),
                           step.replied - std::max(step.sent, last_reply_) - (StoodStill() - stood_still));
  step_deadline_.Observe(step.num_tokens, step.duration);
  NotePrefill(step);
  const bool only_decodes = step.num_tokens > 0 && step.num_tokens == step.num_sequences;
  if (only_decodes) NoteDecodeStep(step.duration);
  preemption_cost_.Observe(step.num_tokens, step.num_swap_outs + step.num_swap_ins, only_decodes,
                           absl::ToDoubleSeconds(step.duration));
  scheduler_.SetPrices(preemption_cost_.prices());
  scheduler_.NoteStepTime(absl::ToDoubleSeconds(step.duration));
  if (observer_ != nullptr) observer_->OnStep(step);
  last_reply_ = step.replied;
  PublishStats();  // before the outputs: a client that has its last one finds the blocks free
  for (SequenceOutput& output : *outputs) {
    output.output.weights_version = reply->weights_version();
    if (output.output.finish_reason == FinishReason::kError) {
      LogWarning("{}request {} ended: {}", options_.log_name, output.sequence->request.id,
                 std::string(output.output.error.message()));
    }
    Deliver(std::move(output), now);
  }
}

void EngineLoop::NoteDecodeStep(absl::Duration duration) {
  const bool first = decode_step_time_ == absl::ZeroDuration();
  decode_step_time_ = first ? duration : (7 * decode_step_time_ + duration) / 8;
}

void EngineLoop::ReceiveAll() {
  while (!sent_.empty() && state() != EngineState::kFailed) Receive();
}

void EngineLoop::Deliver(SequenceOutput output, absl::Time now) {
  Sequence& sequence = *output.sequence;
  Exonerate(&sequence);
  const bool has_tokens = !output.output.token_ids.empty() || !output.output.beams.empty();
  if (has_tokens && sequence.first_token_time == absl::InfinitePast()) {
    sequence.first_token_time = now;
  }
  const FinishReason reason = output.output.finish_reason;
  if (reason != FinishReason::kNone) Forget(sequence);
  // The observer is called first, so that metrics read after the last output count the request.
  if (reason != FinishReason::kNone && observer_ != nullptr) {
    observer_->OnRequestFinished(sequence.request, reason, static_cast<int32_t>(sequence.num_outputs()),
                                 sequence.scheduled_time, sequence.first_token_time, now);
  }
  sequence.request.sink->OnOutput(std::move(output.output));
}

void EngineLoop::End(const SequencePtr& sequence, FinishReason reason, const absl::Status& error) {
  SequenceOutput output{sequence, {}};
  output.output.finish_reason = reason;
  output.output.error = error;
  output.output.num_cached_tokens = sequence->num_cached;
  output.output.weights_version = residency_.weights_stale() ? 0 : weights_.version;
  PublishStats();
  Deliver(std::move(output), options_.now());
}

// Makes the id free for use again, and what the request held of the queue's bounds.
void EngineLoop::Forget(const Sequence& sequence) {
  absl::MutexLock lock(&mu_);
  room_.Remove(sequence.request, sequence.was_scheduled);
}

void EngineLoop::PublishStats() {
  PublishKvEvents();
  EngineStats stats;
  const BlockManager& blocks = scheduler_.blocks();
  const SchedulerStats& counters = scheduler_.stats();
  stats.sleep_level = residency_.level();
  stats.residency = residency_;
  if (!residency_.weights_stale()) {
    stats.weights_version = weights_.version;
    stats.weights_source = weights_.source();
  }
  stats.only_copy = HasOnlyCopy();
  stats.needs_weights = NeedsWeights();
  stats.paused = paused_;
  GroupBytes bytes = executor_->bytes();
  stats.resident_bytes = std::move(bytes.resident);
  stats.host_bytes = std::move(bytes.host);
  stats.sleeping_bytes = std::move(bytes.sleeping);
  stats.num_running = scheduler_.num_running();
  stats.num_waiting = scheduler_.num_waiting() + static_cast<int32_t>(held_back_.size());
  stats.total_blocks = blocks.total_blocks();
  stats.free_blocks = blocks.free_blocks();
  stats.used_blocks = blocks.used_blocks();
  stats.block_size = blocks.block_size();
  stats.mapped_blocks = static_cast<int32_t>(TotalBlocks(mapped_blocks_));
  stats.longest_blocks = static_cast<int32_t>(TotalBlocks(SmallestCache()));
  stats.max_blocks = static_cast<int32_t>(TotalBlocks(options_.scheduler.blocks.num_blocks));
  stats.num_preemptions = counters.num_preemptions();
  stats.preemptions = counters.preemptions;
  stats.swaps = counters.swaps;
  stats.prompt_tokens = counters.prompt_tokens;
  stats.generation_tokens = counters.generation_tokens;
  stats.prefix_cache_queries = counters.prefix_cache_queries;
  stats.prefix_cache_hits = counters.prefix_cache_hits;
  stats.copied_blocks = counters.block_copies;
  stats.watermark_refusals = blocks.num_watermark_refusals();
  stats.num_first_scheduled = num_first_scheduled_;
  stats.queue_time = queue_time_;
  stats.prefix_cache_misses = counters.prefix_cache_misses;
  stats.cached_blocks = blocks.cache_counts();
  stats.total_host_blocks = blocks.total_host_blocks();
  stats.used_host_blocks = blocks.used_host_blocks();
  stats.cached_host_blocks = blocks.cached_host_blocks();
  stats.keepable_bytes = KeepableBytes();
  stats.speculation = scheduler_.speculation();
  prefixes_.Publish(scheduler_, &stats);
  stats.num_forks = counters.num_forks;
  stats.num_cache_grows = num_cache_grows_;
  stats.num_cache_shrinks = num_cache_shrinks_;
  stats.kept_blocks = counters.kept_blocks;
  stats.kept_tokens = counters.kept_tokens;
  stats.num_steps = num_steps_;
  stats.decode_step_time = decode_step_time_;
  stats.group_epoch = group_epoch_;
  stats.num_recoveries = num_recoveries_;
  absl::MutexLock lock(&mu_);
  stats_ = std::move(stats);
  published_weights_ = weights_;
  num_preempted_ = scheduler_.num_preempted();
}

void EngineLoop::PublishKvEvents() {
  if (options_.kv_events == nullptr) return;
  options_.kv_events->Append(options_.data_parallel_rank, scheduler_.TakeCacheEvents(), options_.now());
}

// Does nothing when a failure or a drain has come in between. Whoever sees the state sees what came with it.
void EngineLoop::SwitchState(EngineState to, std::string why) {
  PublishStats();
  {
    absl::MutexLock lock(&mu_);
    if (!ChangeState(to, std::move(why))) return;
  }
  ReportStateChange();
}

}  // namespace somnus
