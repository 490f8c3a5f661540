#include "coordinator/engine/engine_loop.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/request_bounds.h"
#include "base/status_macros.h"

namespace somnus {
namespace {

constexpr absl::Duration kRecoveryPoll = absl::Milliseconds(50);

}  // namespace

void EngineLoop::Run() {
  while (ProcessMail()) {
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
  // Commands that came too late are run all the same: each sees a draining or failed engine and lets its
  // caller go on.
  ProcessMail();
}

bool EngineLoop::ProcessMail() {
  std::vector<EngineRequest> submitted;
  std::vector<std::string> aborted;
  std::deque<std::function<void()>> commands;
  std::optional<absl::Status> failure, recovered;
  bool draining;
  {
    absl::MutexLock lock(&mu_);
    submitted.swap(submitted_);
    aborted.swap(aborted_);
    if (!recovering_ || recovered_.has_value()) commands.swap(commands_);
    failure.swap(executor_failure_);
    recovered.swap(recovered_);
    draining = draining_;
  }
  if (!submitted.empty()) idle_checked_ = false;
  for (EngineRequest& request : submitted) scheduler_.Add(std::move(request));
  for (const std::string& id : aborted) {
    if (SequencePtr sequence = scheduler_.Abort(id)) End(sequence, FinishReason::kAbort, absl::OkStatus());
  }
  for (const SequencePtr& sequence : scheduler_.Expire(options_.now())) {
    End(sequence, FinishReason::kError,
        absl::DeadlineExceededError("the request waited longer than its deadline"));
  }
  if (recovered.has_value()) FinishRecovery(*recovered);
  // Not that of an epoch whose recovery has ended since.
  if (failure.has_value() && !executor_->Health().ok()) Lose(*failure);
  for (; !commands.empty() && !recovering_; commands.pop_front()) commands.front()();
  if (!commands.empty()) {
    absl::MutexLock lock(&mu_);
    commands_.insert(commands_.begin(), commands.begin(), commands.end());
  }
  return !draining || !DrainIsOver();
}

// True once no request is open. Aborts those that are when the grace is over, or when the engine sleeps and
// could not finish them.
bool EngineLoop::DrainIsOver() {
  MonotonicTime deadline;
  {
    absl::MutexLock lock(&mu_);
    deadline = drain_deadline_;
  }
  if (options_.monotonic_now() >= deadline || !residency_.awake()) {
    for (const SequencePtr& sequence : scheduler_.AbortAll())
      End(sequence, FinishReason::kAbort, absl::OkStatus());
  }
  return !scheduler_.has_sequences();
}

bool EngineLoop::Computes() const {
  return state() != EngineState::kFailed && !recovering_ && residency_.awake();
}

bool EngineLoop::Step() {
  if (!Computes()) return false;
  bool sent = false;
  if (scheduler_.has_sequences()) {
    StepPlan plan = scheduler_.Schedule();
    sent = !plan.empty();
    if (sent) Send(std::move(plan));
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
  absl::Status integrity = scheduler_.CheckIntegrity();
  if (!integrity.ok()) Fail(absl::InternalError(absl::StrCat("integrity check: ", integrity.message())));
}

void EngineLoop::WaitForMail() {
  absl::Time deadline = scheduler_.NextDeadline();
  // A drain's deadline can come before the end of a recovery.
  if (recovering_) deadline = std::min(deadline, absl::Now() + kRecoveryPoll);
  absl::MutexLock lock(&mu_);
  const auto has_mail = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return !submitted_.empty() || !aborted_.empty() || executor_failure_.has_value() ||
           recovered_.has_value() || (!recovering_ && (!commands_.empty() || draining_));
  };
  while (!has_mail()) {
    if (mail_arrived_.WaitWithDeadline(&mu_, deadline)) return;
  }
}

void EngineLoop::Send(StepPlan plan) {
  const absl::Time now = options_.now();
  for (const SequencePtr& sequence : plan.first_scheduled) sequence->scheduled_time = now;
  NoteFirstScheduled(plan.first_scheduled);
  sent_.push_back({plan.request.step_id(), plan.num_tokens, options_.monotonic_now()});
  if (sent_.size() == 1) NoteAwaitedStep();
  absl::Status status = executor_->ExecuteAsync(plan.request);
  if (status.ok()) return;
  // The size of a message is the scheduler's fault, which a recovery does not mend.
  if (absl::IsInvalidArgument(status)) return Fail(status);
  Lose(status);
}

// The oldest step in sent_ is the one that is waited for from now on.
void EngineLoop::NoteAwaitedStep() {
  absl::MutexLock lock(&mu_);
  awaited_step_ = sent_.empty() ? 0 : sent_.front().step_id;
  awaited_since_ = options_.monotonic_now();
}

void EngineLoop::NoteFirstScheduled(const std::vector<SequencePtr>& sequences) {
  if (sequences.empty()) return;
  absl::MutexLock lock(&mu_);
  for (const SequencePtr& sequence : sequences) {
    --num_queued_;
    num_queued_tokens_ -= sequence->prompt_len();
    queued_bytes_ -= sequence->request.queued_bytes;
  }
}

void EngineLoop::Receive() {
  const SentStep step = sent_.front();
  absl::StatusOr<v1::StepReply> reply = executor_->Wait(options_.step_timeout);
  sent_.pop_front();
  NoteAwaitedStep();
  if (!reply.ok()) return Lose(reply.status());
  for (const v1::SampledToken& token : reply->tokens()) {
    if (token.token_id() < 0 || token.token_id() >= options_.vocab_size) {
      return Fail(absl::InternalError(absl::StrCat("a worker sampled token ", token.token_id(),
                                                   " of a vocabulary of ", options_.vocab_size)));
    }
  }
  absl::StatusOr<std::vector<SequenceOutput>> outputs = scheduler_.Update(*reply);
  if (!outputs.ok()) return Fail(outputs.status());
  const absl::Time now = options_.now();
  ++num_steps_;
  const MonotonicTime replied = options_.monotonic_now();
  if (observer_ != nullptr) observer_->OnStep(step.num_tokens, replied - std::max(step.sent, last_reply_));
  last_reply_ = replied;
  PublishStats();  // before the outputs: a client that has its last one finds the blocks free
  for (SequenceOutput& output : *outputs) {
    if (output.output.finish_reason == FinishReason::kError) {
      LogWarning("request {} ended: {}", output.sequence->request.id,
                 std::string(output.output.error.message()));
    }
    Deliver(std::move(output), now);
  }
}

void EngineLoop::ReceiveAll() {
  while (!sent_.empty() && state() != EngineState::kFailed) Receive();
}

void EngineLoop::Deliver(SequenceOutput output, absl::Time now) {
  Sequence& sequence = *output.sequence;
  if (!output.output.token_ids.empty() && sequence.first_token_time == absl::InfinitePast()) {
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
  PublishStats();
  Deliver(std::move(output), options_.now());
}

// Makes the id free for use again, and what the request held of the queue's bounds.
void EngineLoop::Forget(const Sequence& sequence) {
  absl::MutexLock lock(&mu_);
  live_ids_.erase(sequence.request.id);
  if (sequence.was_scheduled) return;
  --num_queued_;
  num_queued_tokens_ -= sequence.prompt_len();
  queued_bytes_ -= sequence.request.queued_bytes;
}

void EngineLoop::Fail(const absl::Status& status) {
  if (state() == EngineState::kFailed) return;
  LogError("the engine has failed: {}", std::string(status.message()));
  std::vector<EngineRequest> submitted;
  {
    absl::MutexLock lock(&mu_);
    error_ = std::string(status.message());
    ChangeState(EngineState::kFailed);
    submitted.swap(submitted_);
  }
  ReportStateChange();
  for (EngineRequest& request : submitted) scheduler_.Add(std::move(request));
  sent_.clear();
  NoteAwaitedStep();
  const absl::Status error = absl::UnavailableError(absl::StrCat("the engine failed: ", status.message()));
  for (const SequencePtr& sequence : scheduler_.AbortAll()) End(sequence, FinishReason::kError, error);
}

bool EngineLoop::MayRecover() {
  const MonotonicTime now = options_.monotonic_now();
  while (!recoveries_.empty() && now - recoveries_.front() >= options_.recovery_window)
    recoveries_.pop_front();
  if (static_cast<int32_t>(recoveries_.size()) >= options_.max_recoveries) return false;
  recoveries_.push_back(now);
  return true;
}

void EngineLoop::Lose(const absl::Status& reason) {
  if (state() == EngineState::kFailed || recovering_) return;
  if (!MayRecover()) return Fail(reason);
  LogError("the group was lost: {}", std::string(reason.message()));
  recovering_ = true;
  sent_.clear();
  NoteAwaitedStep();
  EndSuspects(scheduler_.Recover(), reason);
  SwitchState(EngineState::kRecovering);
  executor_->Recover(residency_);
  // A recovery that cannot even begin has ended within the call.
  std::optional<absl::Status> recovered;
  {
    absl::MutexLock lock(&mu_);
    recovered.swap(recovered_);
  }
  if (recovered.has_value()) FinishRecovery(*recovered);
}

// One of the requests that were in flight may be the cause. Those that were so too often run alone from now
// on, and end when that fails, too.
void EngineLoop::EndSuspects(const std::vector<SequencePtr>& suspects, const absl::Status& reason) {
  for (const SequencePtr& sequence : suspects) {
    sequence->runs_alone = ++sequence->num_failures >= options_.max_recoveries_per_request;
    if (sequence->num_failures <= options_.max_recoveries_per_request) continue;
    scheduler_.Abort(sequence->request.id);
    End(sequence, FinishReason::kError,
        absl::UnavailableError(absl::StrCat("the request was being computed at ", sequence->num_failures,
                                            " failures of the workers; the last: ", reason.message())));
  }
}

void EngineLoop::FinishRecovery(const absl::Status& status) {
  recovering_ = false;
  if (!status.ok()) return Fail(status);
  LogInfo("the group is whole again");
  SwitchState(residency_.awake() ? EngineState::kAwake : EngineState::kAsleep);
}

void EngineLoop::PublishStats() {
  EngineStats stats;
  const BlockManager& blocks = scheduler_.blocks();
  const SchedulerStats& counters = scheduler_.stats();
  stats.sleep_level = residency_.level();
  stats.num_running = scheduler_.num_running();
  stats.num_waiting = scheduler_.num_waiting();
  stats.total_blocks = blocks.total_blocks();
  stats.free_blocks = blocks.free_blocks();
  stats.used_blocks = blocks.used_blocks();
  stats.block_size = blocks.block_size();
  stats.num_preemptions = counters.num_preemptions;
  stats.prompt_tokens = counters.prompt_tokens;
  stats.generation_tokens = counters.generation_tokens;
  stats.prefix_cache_queries = counters.prefix_cache_queries;
  stats.prefix_cache_hits = counters.prefix_cache_hits;
  stats.num_steps = num_steps_;
  absl::MutexLock lock(&mu_);
  stats_ = std::move(stats);
  num_preempted_ = scheduler_.num_preempted();
}

absl::Status EngineLoop::CheckLifecycle() const {
  if (state() == EngineState::kFailed) return absl::FailedPreconditionError("the engine has failed");
  if (state() == EngineState::kDraining) return absl::FailedPreconditionError("the server is shutting down");
  return absl::OkStatus();
}

// Does nothing when a failure or a drain has come in between.
void EngineLoop::SwitchState(EngineState to) {
  {
    absl::MutexLock lock(&mu_);
    if (!ChangeState(to)) return;
  }
  ReportStateChange();
}

// No step is under way afterwards, and no sequence has a slot or a block.
absl::Status EngineLoop::Quiesce() {
  ReceiveAll();
  if (!Computes()) return absl::UnavailableError("the group was lost while it fell asleep");
  scheduler_.PreemptAll();
  scheduler_.ResetPrefixCache();
  StepPlan flush = scheduler_.FlushFreedSlots();
  if (flush.request.freed_slots_size() > 0) Send(std::move(flush));
  ReceiveAll();
  if (Computes()) return absl::OkStatus();
  return absl::UnavailableError("the group was lost while it fell asleep");
}

absl::StatusOr<TagBytes> EngineLoop::DoSleep(int level) {
  RETURN_IF_ERROR(CheckLifecycle());
  if (!residency_.SleepChanges(level)) return TagBytes();
  const bool was_awake = residency_.awake();
  if (was_awake) {
    SwitchState(EngineState::kFallingAsleep);
    RETURN_IF_ERROR(Quiesce());
  }
  absl::StatusOr<TagBytes> freed = executor_->Sleep(level, residency_);
  if (absl::Status health = executor_->Health(); !freed.ok() && !health.ok()) {
    Lose(health);
    return freed.status();
  }
  if (!freed.ok() && was_awake) {
    SwitchState(EngineState::kAwake);
    return freed.status();
  }
  // After an error, too, every tag of every rank sleeps.
  if (freed.ok()) {
    residency_.Slept(level);
  } else {
    residency_.SleptInPart(level);
  }
  SwitchState(EngineState::kAsleep);
  return freed;
}

absl::StatusOr<TagBytes> EngineLoop::DoWakeUp(const std::vector<std::string>& wanted) {
  RETURN_IF_ERROR(CheckLifecycle());
  const std::vector<std::string> tags = residency_.ToWake(wanted);
  if (tags.empty()) return TagBytes();
  if (residency_.levels_differ()) RETURN_IF_ERROR(DoSleep(kMaxSleepLevel).status());
  SwitchState(EngineState::kWaking);
  absl::StatusOr<TagBytes> mapped = executor_->WakeUp(tags, residency_);
  if (mapped.ok()) {
    residency_.Woke(tags);
  } else {
    residency_.Slept(residency_.level());
    if (absl::Status health = executor_->Health(); !health.ok()) {
      Lose(health);
      return mapped;
    }
  }
  SwitchState(residency_.awake() ? EngineState::kAwake : EngineState::kAsleep);
  return mapped;
}

}  // namespace somnus
