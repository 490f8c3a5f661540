// The callers' half of EngineLoop: admission, commands and the snapshot of its state.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "base/memory_tags.h"
#include "base/null_block.h"
#include "base/request_bounds.h"
#include "base/status_macros.h"
#include "coordinator/engine/caller.h"
#include "coordinator/engine/engine_loop.h"
#include "coordinator/engine/engine_report.h"
#include "coordinator/request/request_bytes.h"
#include "coordinator/residency/declined.h"

namespace somnus {
namespace {

absl::Status CheckTags(const std::vector<std::string>& tags) {
  for (const std::string& tag : tags) {
    if (IsMemoryTag(tag)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("tags: unknown tag '", tag, "'; there are ", kMemoryTagNames));
  }
  return absl::OkStatus();
}

std::string ReasonOf(const LifecycleCallStats& call) {
  return absl::StrCat(call.client.empty() ? "the server itself" : "an operator", " has called ", call.name);
}

SchedulerOptions SchedulerOf(const EngineOptions& options) {
  SchedulerOptions scheduler = options.scheduler;
  scheduler.blocks.records_events = options.kv_events != nullptr;
  return scheduler;
}

}  // namespace

EngineLoop::EngineLoop(EngineOptions options, Executor* executor, EngineObserver* observer)
    : options_(std::move(options)),
      executor_(executor),
      observer_(observer),
      scheduler_(SchedulerOf(options_)),
      step_deadline_(options_.hang_timeout, options_.step_timeout),
      preemption_cost_(options_.kv_block_bytes / std::max(1, options_.world_size)),
      residency_(options_.residency),
      weights_(options_.weights),
      mapped_blocks_(options_.num_mapped_blocks > 0 ? options_.num_mapped_blocks
                                                    : options_.scheduler.blocks.num_blocks),
      state_(residency_.awake() ? EngineState::kAwake : EngineState::kAsleep),
      prefixes_(options_.pins, options_.scheduler, [mail = mail_] { mail->Wake(); }),
      room_(options_.queue),
      prefill_speed_(options_.scheduler.max_num_batched_tokens) {
  group_epoch_ = executor_->group_epoch();
  scheduler_.SetBlockLimit(mapped_blocks_);
  PublishStats();
  {
    absl::MutexLock lock(&mu_);
    sleep_wait_.NoteState(state_, options_.monotonic_now());
    history_.NoteState(state_, options_.now(), "its workers were taken over from an earlier server");
  }
  {
    absl::MutexLock lock(&join_mu_);
    thread_ = std::thread([this] { Run(); });
  }
  executor_->OnFailure([mail = mail_](absl::Status status) { mail->PostFailure(std::move(status)); });
  executor_->OnRecovered([mail = mail_](absl::Status status) { mail->PostRecovered(std::move(status)); });
}

EngineLoop::~EngineLoop() { DrainAndStop(absl::ZeroDuration()); }

absl::Status EngineLoop::CheckRequests(const EngineOptions& options,
                                       const std::vector<EngineRequest>& requests) {
  for (const EngineRequest& request : requests) {
    if (request.sink == nullptr) return absl::InvalidArgumentError("request has no sink");
    RETURN_IF_ERROR(Scheduler::Check(options.scheduler, request));
    for (int32_t id : request.prompt) {
      if (id >= 0 && id < options.vocab_size) continue;
      return absl::InvalidArgumentError(absl::StrCat("prompt: token id ", id, " is out of vocabulary"));
    }
  }
  return absl::OkStatus();
}

absl::Status EngineLoop::CheckRoom(const std::vector<EngineRequest>& requests) {
  const EngineState state = state_;
  if (draining_ || stopped_) return absl::UnavailableError(WhyNotReady(EngineState::kDraining));
  if (!AdmitsRequests(state)) return absl::UnavailableError(ReportState(StatsNow()).Line());
  if (gave_up_stale_weights_) return absl::UnavailableError(kStaleForTooLong);
  return room_.Check(requests, num_preempted_);
}

absl::Status EngineLoop::SubmitAll(std::vector<EngineRequest> requests) {
  RETURN_IF_ERROR(CheckRequests(options_, requests));
  SetQueuedBytes(&requests);
  {
    absl::MutexLock lock(&mu_);
    RETURN_IF_ERROR(CheckRoom(requests));
    for (EngineRequest& request : requests) {
      room_.Add(request);
      submitted_.push_back(std::move(request));
    }
  }
  mail_->Wake();
  return absl::OkStatus();
}

bool EngineLoop::Offer(EngineRequest* request) {
  {
    absl::MutexLock lock(&mu_);
    if (draining_ || stopped_ || state_ != EngineState::kAwake) return false;
    room_.Add(*request);
    submitted_.push_back(std::move(*request));
  }
  mail_->Wake();
  return true;
}

EngineLoop::Backlog EngineLoop::backlog() const {
  absl::MutexLock lock(&mu_);
  return {.num_open = room_.num_live(),
          .num_preempted = num_preempted_,
          .waiting_tokens = room_.waiting_tokens(),
          .num_steps = stats_.num_steps};
}

void EngineLoop::Abort(const std::string& request_id) {
  {
    absl::MutexLock lock(&mu_);
    // Only live ids, and each once, so that the list is no longer than the open requests.
    if (!room_.is_live(request_id)) return;
    if (std::find(aborted_.begin(), aborted_.end(), request_id) != aborted_.end()) return;
    aborted_.push_back(request_id);
  }
  mail_->Wake();
}

absl::Status EngineLoop::Health() const {
  const StateReport report = ReportState(Stats());
  return report.serving() ? absl::OkStatus() : absl::UnavailableError(report.Line());
}

// A rank that is known to hang is a better reason than the step; heartbeats may report it a little later.
absl::Status EngineLoop::Stall(absl::Duration awaited) const {
  const absl::Status progress = executor_->Progress();
  if (!progress.ok() || awaited_step_ == 0 || awaited <= options_.step_stall) return progress;
  return absl::UnavailableError(absl::StrCat("Step ", awaited_step_, " has been under way for longer than ",
                                             absl::FormatDuration(options_.step_stall), "."));
}

EngineStats EngineLoop::Stats() const {
  absl::MutexLock lock(&mu_);
  return StatsNow();
}

EngineStats EngineLoop::StatsNow() const {
  EngineStats stats = stats_;
  stats.state = state_;
  stats.error = error_;
  stats.note = history_.note();
  stats.may_revive = may_revive_;
  stats.gave_up_stale_weights = gave_up_stale_weights_;
  // An engine that ends may have outlived its workers and the executor.
  if (IsReady(state_)) stats.stall = Stall(options_.running_now() - awaited_since_);
  stats.stalled_since = awaited_at_;
  stats.lifecycle_call = lifecycle_call_;
  stats.num_waiting += static_cast<int32_t>(submitted_.size());
  stats.waiting_tokens = room_.waiting_tokens();
  stats.oldest_wait = sleep_wait_.Of(room_.oldest_arrival(), options_.now(), options_.monotonic_now());
  return stats;
}

absl::StatusOr<TransitionReport> EngineLoop::RunCommand(LifecycleCommand command) {
  absl::StatusOr<TransitionReport> result;
  // Shared: AwaitCall may return while Stop still runs on the loop's thread.
  const auto done = std::make_shared<StopSignal>();
  command.caller = CurrentCaller();
  command.reply = [&result, done](absl::StatusOr<TransitionReport> reply) {
    result = std::move(reply);
    done->Stop();
  };
  {
    absl::MutexLock lock(&mu_);
    if (stopped_) return absl::UnavailableError("the engine has stopped");
    arrived_commands_.push_back(std::move(command));
  }
  mail_->Wake();
  AwaitCall(*done);
  return result;
}

// A loop that is woken asks by itself whether the client has left.
void EngineLoop::AwaitCall(const StopSignal& done) {
  const std::shared_ptr<const Caller> caller = CurrentCaller();
  while (caller != nullptr && !done.WaitFor(kCallerLook)) {
    if (!caller->has_left()) continue;
    mail_->Wake();
    break;
  }
  done.WaitFor(absl::InfiniteDuration());
}

absl::StatusOr<TransitionReport> EngineLoop::Sleep(const SleepRequest& request) {
  if (request.level < kMinSleepLevel || request.level > kMaxSleepLevel) {
    return absl::InvalidArgumentError(
        absl::StrCat("level: must be ", kSleepLevelNames, ", not ", request.level));
  }
  RETURN_IF_ERROR(CheckTags(request.tags));
  LifecycleCommand command;
  command.kind = LifecycleCommand::Kind::kSleep;
  command.spec = {request.level, request.tags};
  command.mode = request.mode;
  command.only_if_idle = request.only_if_idle;
  command.spares_only_copy = request.spares_only_copy;
  command.force = request.force;
  command.max_kept_bytes = request.max_kept_bytes;
  return RunCommand(std::move(command));
}

absl::StatusOr<TransitionReport> EngineLoop::WakeUp(const std::vector<std::string>& tags,
                                                    std::optional<bool> load_weights) {
  LifecycleCommand command;
  command.load_weights = load_weights;
  command.kind = LifecycleCommand::Kind::kWakeUp;
  command.spec.tags = tags;
  command.ends_pause = std::erase(command.spec.tags, kSchedulingTag) > 0;
  RETURN_IF_ERROR(CheckTags(command.spec.tags));
  // Without a tag of memory it would wake all.
  if (command.ends_pause && command.spec.tags.empty()) command.kind = LifecycleCommand::Kind::kResume;
  return RunCommand(std::move(command));
}

absl::StatusOr<TransitionReport> EngineLoop::WakeForArrivals() {
  LifecycleCommand command;
  command.kind = LifecycleCommand::Kind::kWakeUp;
  command.for_arrivals = true;
  return RunCommand(std::move(command));
}

void EngineLoop::EndWaiting(const absl::Status& error) {
  LifecycleCommand command;
  command.kind = LifecycleCommand::Kind::kEndWaiting;
  command.error = error;
  RunCommand(std::move(command)).IgnoreError();  // a stopped engine has ended its requests
}

absl::Status EngineLoop::Prefetch() {
  const EngineStats stats = Stats();
  if (stats.state != EngineState::kAsleep || stats.residency.asleep().count(kWeightsTag) == 0)
    return DeclinedError("no weights sleep");
  return executor_->Prefetch();
}

absl::StatusOr<std::vector<RankNeed>> EngineLoop::PlanWakeUp(const std::vector<std::string>& tags) {
  const std::vector<std::string> sleeping = Stats().residency.ToWake(tags);
  if (sleeping.empty()) return std::vector<RankNeed>();
  return executor_->PlanWakeUp(sleeping);
}

absl::Status EngineLoop::Pause(const PauseRequest& request) {
  LifecycleCommand command;
  command.kind = LifecycleCommand::Kind::kPause;
  command.mode = request.mode;
  command.clear_cache = request.clear_cache;
  return RunCommand(std::move(command)).status();
}

absl::Status EngineLoop::Resume() {
  LifecycleCommand command;
  command.kind = LifecycleCommand::Kind::kResume;
  return RunCommand(std::move(command)).status();
}

absl::Status EngineLoop::ResetPrefixCache(bool preempt_running) {
  LifecycleCommand command;
  command.kind = LifecycleCommand::Kind::kResetPrefixCache;
  command.clear_cache = preempt_running;
  return RunCommand(std::move(command)).status();
}

absl::StatusOr<int32_t> EngineLoop::ResizeKvCache(int32_t total_blocks) {
  LifecycleCommand command;
  command.kind = LifecycleCommand::Kind::kResizeKvCache;
  command.num_blocks =
      static_cast<int32_t>(std::min<int64_t>(NumBlocks(total_blocks), options_.scheduler.blocks.num_blocks));
  command.num_mapped = std::make_shared<int32_t>(0);
  const std::shared_ptr<int32_t> num_mapped = command.num_mapped;
  RETURN_IF_ERROR(RunCommand(std::move(command)).status());
  return static_cast<int32_t>(TotalBlocks(*num_mapped));
}

absl::Status EngineLoop::Roll(absl::Duration) {
  return absl::FailedPreconditionError(
      "the engine has one replica: nothing would serve meanwhile; see --data-parallel-size");
}

absl::Status EngineLoop::Restart() {
  LifecycleCommand command;
  command.kind = LifecycleCommand::Kind::kRestart;
  return RunCommand(std::move(command)).status();
}

bool EngineLoop::may_revive() const {
  absl::MutexLock lock(&mu_);
  return state_ == EngineState::kFailed && may_revive_ && !draining_ && !stopped_;
}

bool EngineLoop::Revive(bool restart_workers, const Weights& weights) {
  LifecycleCommand command = {.kind = LifecycleCommand::Kind::kRevive, .revived = weights};
  command.restart_workers = restart_workers;
  command.reply = [](const absl::StatusOr<TransitionReport>&) {};
  return BeginRevival(std::move(command));
}

absl::Status EngineLoop::Revive(bool asleep) {
  absl::Status status;
  absl::Notification done;
  LifecycleCommand command = {.kind = LifecycleCommand::Kind::kRevive, .restart_workers = false};
  command.revived_asleep = asleep;
  command.reply = [&](const absl::StatusOr<TransitionReport>& reply) {
    status = reply.status();
    done.Notify();
  };
  if (!BeginRevival(std::move(command)))
    return DeclinedError("no workers have failed that others could replace");
  done.WaitForNotification();
  return status;
}

bool EngineLoop::BeginRevival(LifecycleCommand command) {
  {
    absl::MutexLock lock(&mu_);
    if (state_ != EngineState::kFailed || !may_revive_ || draining_ || stopped_) return false;
    may_revive_ = false;
    (void)ChangeState(EngineState::kRecovering, "new workers take the places of those that were lost");
    arrived_commands_.push_back(std::move(command));
  }
  ReportStateChange();
  mail_->Wake();
  return true;
}

void EngineLoop::OnStateChange(std::function<void()> callback) {
  absl::MutexLock lock(&on_state_change_mu_);
  on_state_change_ = std::move(callback);
  if (on_state_change_) on_state_change_();
}

bool EngineLoop::ChangeState(EngineState to, std::string why) {
  if (state_ == to || !IsAllowedChange(state_, to)) return false;
  state_ = to;
  if (why.empty() && !lifecycle_call_.name.empty() && to != EngineState::kAwake)
    why = ReasonOf(lifecycle_call_);
  history_.NoteState(to, options_.now(), std::move(why));
  sleep_wait_.NoteState(to, options_.monotonic_now());
  return true;
}

void EngineLoop::ReportStateChange() {
  absl::MutexLock lock(&on_state_change_mu_);
  if (on_state_change_) on_state_change_();
}

void EngineLoop::DrainAndStop(absl::Duration grace) {
  bool changed;
  {
    absl::MutexLock lock(&mu_);
    draining_ = true;
    drain_deadline_ = std::min(drain_deadline_, options_.monotonic_now() + grace);
    changed = ChangeState(EngineState::kDraining, "the server was told to end");
  }
  mail_->Wake();
  if (changed) ReportStateChange();
  absl::MutexLock join_lock(&join_mu_);
  if (!thread_.joinable()) return;
  // A worker that hangs must not delay the end: if the loop is still waiting for it, the step is given up.
  if (!loop_ended_.WaitFor(grace + absl::Seconds(2))) {
    executor_->Abort(absl::CancelledError("the server is shutting down"));
  }
  thread_.join();
  executor_->OnFailure(nullptr);
  executor_->OnRecovered(nullptr);
}

}  // namespace somnus
