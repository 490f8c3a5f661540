#include "coordinator/engine/step_loop.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/heartbeat.h"
#include "base/log.h"
#include "coordinator/engine/commands/self_check_command.h"
#include "coordinator/engine/loop_view.h"

namespace somnus {

StepLoop::StepLoop(const EngineOptions& options, Executor* executor, EngineObserver* observer, Shared shared)
    : LoopAccess(&parts_, shared.events),
      parts_(options, executor, observer),
      mail_(*shared.mail),
      board_(*shared.board),
      prefixes_(*shared.prefixes),
      views_(*shared.views),
      events_(std::move(shared.events)),
      steps_(options, executor, &parts_.scheduler, shared.board),
      requests_({options, parts_.scheduler, parts_.holdings, parts_.recovery, parts_.observer, board_, mail_},
                [this] { PublishStats(); }),
      lane_(options.log_name, shared.board),
      group_epoch_(executor->group_epoch()) {
  PublishStats();
}

void StepLoop::Run() {
  const Heartbeat heartbeat(parts_.options.log_name, "engine loop");
  QueueSelfCheck();
  while (ProcessMail()) {
    heartbeat.Beat();
    const bool worked = Step();
    PublishStats();
    if (views_.wanted()) ShowView();
    if (!worked) WaitForMail();
  }
  mail_.Stop();
  (void)parts_.recovery.End(parts_.options.monotonic_now());  // nothing waits for the recovery any more
  if (lane_.current() != nullptr) End(CheckLifecycle());
  // Commands that came too late are run all the same: each sees a draining or failed engine and lets its
  // caller go on.
  ProcessMail();
}

void StepLoop::ShowView() {
  const EngineOptions& options = parts_.options;
  views_.Show(DrawView(parts_.scheduler, options.data_parallel_rank, options.max_viewed_requests,
                       options.monotonic_now()));
}

bool StepLoop::ProcessMail() {
  CallersMail::Arrived arrived = mail_.Take();
  lane_.Add(std::move(arrived.commands));
  if (LifecycleCommand* const command = lane_.current(); command != nullptr) command->OnTurn(this);
  for (CallersMail::AbortReply& reply : arrived.call_aborts) AbortCommand(std::move(reply));
  prefixes_.Apply(&parts_.scheduler);
  ProcessRequests(&arrived);
  // After the commands were taken: a command that came after a loss is run after the loss, too.
  ProcessEvents();
  StartCommands();
  CheckStaleWeights();
  return !arrived.draining || !DrainIsOver();
}

void StepLoop::ProcessRequests(CallersMail::Arrived* arrived) {
  if (!arrived->requests.empty()) idle_checked_ = false;
  held_back_.Add(std::move(arrived->requests));
  const MonotonicTime now = parts_.options.monotonic_now();
  requests_.Add(held_back_.TakeDue(now, arrived->aborted));
  for (const std::string& id : arrived->aborted) requests_.Abort(id);
  requests_.EndExpired(now);
}

// Takes events until none is left: a recovery that cannot even begin has ended within the call that asks for
// it.
void StepLoop::ProcessEvents() {
  for (LoopMail::Events events = events_->Take(); !events.empty(); events = events_->Take()) {
    if (events.call_result.has_value()) FinishCall(*std::move(events.call_result));
    if (events.recovered.has_value()) FinishRecovery(*events.recovered);
    // A failure may be of an epoch whose recovery has ended since.
    if (events.failure.has_value() && !parts_.executor.Health().ok()) Lose(*events.failure);
  }
}

MonotonicTime StepLoop::GivesUpStaleWeightsAt() const {
  const LifecycleCommand* const command = lane_.current();
  const bool changes = command != nullptr && command->ChangesWeights();
  return parts_.stale.GivesUpAt(changes || parts_.recovery.under_way());
}

void StepLoop::CheckStaleWeights() {
  if (!parts_.holdings.NeedsWeights()) parts_.stale.NoteFound();
  const bool gives_up = parts_.options.monotonic_now() >= GivesUpStaleWeightsAt();
  if (gives_up && !board_.gave_up_stale_weights())
    LogError("{}{}", parts_.options.log_name, kStaleForTooLong);
  board_.SetGaveUpStaleWeights(gives_up);
  if (!gives_up) return;
  if (parts_.options.hand_over) return HandOver();
  requests_.EndAll(FinishReason::kError, absl::UnavailableError(kStaleForTooLong));
}

// True once no request is open. Aborts open requests when the grace is over, or when the engine could not
// finish the requests: a paused engine, or an engine that sleeps and is not being woken.
bool StepLoop::DrainIsOver() {
  const bool stands = parts_.paused || (!MayServe() && !lane_.has_call());
  if (parts_.options.monotonic_now() >= mail_.drain_deadline() || stands)
    requests_.EndAll(FinishReason::kAbort);
  return !parts_.scheduler.has_sequences();
}

bool StepLoop::Step() {
  // A self-check that waits comes before any step.
  const bool goes_on = lane_.lets_steps_go_on() && self_check_.expired();
  const bool stands = lane_.current() != nullptr && !waits() && !goes_on;
  if (stands || !Runs()) return false;
  bool sent = false;
  if (parts_.scheduler.has_sequences()) {
    const MonotonicTime began = parts_.options.monotonic_now();
    StepPlan plan = parts_.scheduler.Schedule();
    sent = !plan.empty();
    if (sent) Send(std::move(plan), parts_.options.monotonic_now() - began);
    if (!Computes()) return true;
  }
  // Steps beyond the step whose reply is awaited: in a pipeline each stage has a step.
  const size_t max_ahead =
      parts_.options.async_scheduling ? std::max(1, parts_.options.scheduler.num_stages - 1) : 0;
  if (steps_.size() > max_ahead || (!sent && !steps_.empty())) {
    Receive();
    return true;
  }
  if (!sent && parts_.scheduler.has_sequences()) {
    Fail(absl::InternalError("the scheduler can place no sequence though nothing runs"));
    return true;
  }
  if (!sent) CheckIdle();
  return sent;
}

void StepLoop::CheckIdle() {
  if (idle_checked_) return;
  idle_checked_ = true;
  absl::Status integrity = parts_.scheduler.CheckSome();
  if (!integrity.ok()) Fail(absl::InternalError(absl::StrCat("integrity check: ", integrity.message())));
}

void StepLoop::WaitForMail() {
  MonotonicTime until =
      std::min({parts_.scheduler.NextExpiry(), held_back_.NextExpiry(), mail_.drain_deadline()});
  if (!board_.gave_up_stale_weights()) until = std::min(until, GivesUpStaleWeightsAt());
  events_->WaitFor(until - parts_.options.monotonic_now());
}

void StepLoop::Send(StepPlan plan, absl::Duration schedule) {
  requests_.NoteFirstScheduled(plan.first_scheduled);
  const absl::Status status = steps_.Send(std::move(plan), schedule, group_epoch_);
  if (status.ok()) return;
  // The size of a message is the scheduler's fault, which a recovery does not mend.
  if (absl::IsInvalidArgument(status)) return Fail(status);
  Lose(status);
}

void StepLoop::Receive() {
  const absl::StatusOr<v1::StepReply> reply = steps_.Wait(parts_.holdings.weights().version);
  if (!reply.ok()) return Lose(reply.status());
  StepEvent step;
  absl::StatusOr<std::vector<SequenceOutput>> outputs = steps_.Apply(*reply, &step);
  if (!outputs.ok()) return Fail(outputs.status());
  const absl::Status masks = steps_.SendMasks();                 // first: the workers may be waiting for them
  if (reply->tokens_size() > 0) parts_.recovery.ForgetLosses();  // the last recovery has led to something
  parts_.observer.OnStep(step);
  for (const v1::ExpertLoad& load : reply->expert_loads())
    parts_.observer.OnExpertLoad({load.layers(), load.first_expert(), load.num_experts(), load.tokens()});
  if (const std::vector<BlockStay> stays = parts_.scheduler.TakeBlockStays(); !stays.empty())
    parts_.observer.OnBlocksEvicted(stays);
  PublishStats();  // before the outputs: a client that has its last output finds the blocks free
  const absl::Time now = parts_.options.now();
  for (SequenceOutput& output : *outputs) {
    output.output.weights_version = reply->weights_version();
    if (output.output.finish_reason == FinishReason::kError) {
      LogWarning("{}request {} ended: {}", parts_.options.log_name, output.sequence->request.name(),
                 std::string(output.output.error.message()));
    }
    requests_.Deliver(std::move(output), now);
  }
  if (!masks.ok()) Lose(masks);
}

bool StepLoop::FinishSteps() {
  while (!steps_.empty() && state() != EngineState::kFailed) Receive();
  return Computes();
}

bool StepLoop::FlushFreedSlots() {
  if (!Computes()) return false;
  StepPlan flush = parts_.scheduler.FlushFreedSlots();
  if (flush.request.freed_slots_size() > 0) Send(std::move(flush));
  return FinishSteps();
}

// ---- Failures

void StepLoop::Fail(const absl::Status& status) {
  if (state() == EngineState::kFailed) return;
  LogError("{}the engine has failed: {}", parts_.options.log_name, std::string(status.message()));
  board_.Fail(std::string(status.message()));
  for (EngineRequest& request : mail_.TakeRequests()) parts_.scheduler.Add(std::move(request));
  requests_.Add(held_back_.EndWait());
  steps_.Clear();
  const absl::Status error = absl::UnavailableError(absl::StrCat("the engine failed: ", status.message()));
  if (parts_.options.hand_over) {
    for (const SequencePtr& sequence : parts_.scheduler.Recover()) {
      parts_.scheduler.Abort(sequence->request.id);
      requests_.End(sequence, FinishReason::kError, error);
    }
    HandOver();
  }
  requests_.EndAll(FinishReason::kError, error);
  if (lane_.current() != nullptr) End(status);
}

void StepLoop::FailGroup(const absl::Status& status) {
  board_.NoteMayRevive();
  Fail(status);
}

void StepLoop::Lose(const absl::Status& reason) {
  if (state() == EngineState::kFailed || parts_.recovery.under_way()) return;
  steps_.Clear();
  // A loss by an operator's AbortCall is no sign that the group fails too often.
  const bool recovers = !lane_.given_up().ok() || parts_.recovery.MayRecover(parts_.options.monotonic_now());
  LogError("{}the group was lost{}: {}", parts_.options.log_name, recovers ? "" : ", and is given up",
           std::string(reason.message()));
  parts_.recovery.Begin(parts_.options.monotonic_now());
  // Where a group is given up, its requests in flight may go on at another replica, unless a request was in
  // flight at too many losses.
  if (recovers || parts_.options.hand_over) requests_.EndSuspects(parts_.scheduler.Recover(), reason);
  SwitchState(EngineState::kRecovering, std::string(reason.message()));
  HandOver();
  if (!recovers) return parts_.executor.Dismiss(reason);
  InterruptCommand(reason);
  parts_.executor.Recover(parts_.holdings.held());
  NoteNewEpoch();
}

void StepLoop::HandOver() {
  if (!parts_.options.hand_over) return;
  requests_.Add(held_back_.TakeAll());
  requests_.HandOver();
}

void StepLoop::InterruptCommand(const absl::Status& reason) {
  LifecycleCommand* const command = lane_.current();
  if (command == nullptr) return;
  bool begins_again = command->OnLoss(this);
  lane_.EndCall();
  if (const absl::Status given_up = lane_.given_up(); !given_up.ok()) return End(given_up);
  begins_again = begins_again && lane_.CountInterruption() && state() != EngineState::kDraining;
  if (!begins_again) End(reason);
}

void StepLoop::FinishRecovery(const absl::Status& status) {
  const RecoveryBook::Ended ended = parts_.recovery.End(parts_.options.monotonic_now());
  if (!ended.was_under_way) return;
  if (!status.ok()) {
    PublishStats();  // before the state: readers at its change find the bytes that the workers still hold
    return FailGroup(status);
  }
  parts_.recovery.NoteRecovered(ended);
  NoteNewEpoch();
  const Held recovered = parts_.executor.recovered();
  if (recovered.residency.weights_stale() && !parts_.holdings.residency().weights_stale())
    LogWarning("{}the weights came from an update, which new workers cannot have: they are stale",
               parts_.options.log_name);
  parts_.holdings.Restore(recovered.residency, recovered.weights);
  parts_.holdings.RestoreAdapters(recovered);
  requests_.EndWithoutAdapter();
  const bool needs_weights = parts_.holdings.NeedsWeights();
  if (needs_weights) parts_.stale.NoteMissing(parts_.options.monotonic_now());
  RestartStepDeadline();
  board_.ClearError();  // of a failure from which the engine was revived
  LogInfo("{}the group is whole again, in epoch {}, after {:.2f} s", parts_.options.log_name, group_epoch_,
          absl::ToDoubleSeconds(ended.duration));
  if (!ended.was_restart) parts_.observer.OnRecovered(ended.duration);
  // The news of another loss may have come before the news of this recovery.
  if (const absl::Status health = parts_.executor.Health(); !health.ok()) return Lose(health);
  SwitchToRest(needs_weights && lane_.current() == nullptr
                   ? "the last change of the weights has not ended, or new workers cannot have its weights"
                   : "");
  if (!parts_.check.taken()) QueueSelfCheck();  // of a replica that was revived
  if (LifecycleCommand* const command = lane_.current(); command != nullptr) command->OnRecovered(this);
}

// ---- Commands

void StepLoop::StartCommands() {
  lane_.DropAbandoned();
  CheckWait();
  while (!parts_.recovery.under_way() && lane_.BeginNext(parts_.options.monotonic_now()))
    lane_.current()->Start(this);
  if (lane_.current() != nullptr) lane_.Show();
}

bool StepLoop::SettleOpenRequests(SleepMode mode) {
  if (mode == SleepMode::kAbort) requests_.EndAll(FinishReason::kAbort);
  held_back_.set_waits(mode == SleepMode::kWait && Runs() && parts_.scheduler.has_sequences());
  if (waits()) SwitchState(EngineState::kPausing);
  return !waits();
}

void StepLoop::CheckWait() {
  if (!waits() || parts_.recovery.under_way()) return;
  if (absl::Status status = CheckLifecycle(); !status.ok()) return End(std::move(status));
  if (lane_.current()->Abandoned()) return EndWaitingCommand(absl::CancelledError(kAbandoned));
  // The state stays, since the other command changes the state at once.
  if (lane_.EndsWaits()) return End(absl::AbortedError("another call has ended the wait for open requests"));
  if (parts_.scheduler.has_sequences()) return;
  requests_.Add(held_back_.EndWait());
  lane_.current()->OnSettled(this);
}

void StepLoop::EndWaitingCommand(const absl::Status& reason) {
  requests_.Add(held_back_.EndWait());
  SwitchToRest();
  End(reason);
}

void StepLoop::FinishCall(LoopMail::CallResult result) {
  if (!lane_.Awaits(result.call)) return;  // a loss of the group has interrupted that call
  if (const absl::Status health = parts_.executor.Health(); !result.result.ok() && !health.ok())
    return Lose(health);
  const bool let_steps_go_on = lane_.lets_steps_go_on();
  lane_.EndCall();
  lane_.Show();  // a call that let steps go on is over
  if (const absl::Status given_up = lane_.given_up(); let_steps_go_on && !given_up.ok()) return End(given_up);
  lane_.current()->OnResult(this, std::move(result));
}

void StepLoop::AbortCommand(CallersMail::AbortReply reply) {
  LifecycleCommand* const command = lane_.current();
  if (command == nullptr) return reply(absl::FailedPreconditionError("no lifecycle call is under way"));
  if (command->EndsByItself()) {
    return reply(absl::FailedPreconditionError("the workers are being restarted, which ends by itself"));
  }
  const absl::Status reason = absl::AbortedError(kEndedByOperator);
  if (!lane_.GiveUp(reason, std::move(reply))) return;  // its end is under way
  if (waits()) return EndWaitingCommand(reason);
  if (parts_.recovery.under_way()) return End(reason);
  if (!lane_.has_call()) return command->OnGivenUp(this, reason);
  if (lane_.lets_steps_go_on()) return parts_.executor.CancelRead(reason);  // its result ends the command
  // The time that a rank would still take is unknown; the loss of the group ends the command.
  parts_.executor.LoseEpoch(reason);
}

void StepLoop::QueueSelfCheck() {
  if (!parts_.check.enabled() || !MayServe() || !self_check_.expired()) return;
  const auto command = std::make_shared<SelfCheckCommand>();
  self_check_ = command;
  lane_.AddFirst(command);
}

void StepLoop::End(absl::StatusOr<TransitionReport> result) {
  requests_.Add(held_back_.EndWait());
  lane_.current()->OnEnd(this);
  const CommandLane::Ended ended = lane_.Retire();
  PublishStats();
  lane_.Show();
  ended.command->Finish(std::move(result));
  for (const CallersMail::AbortReply& reply : ended.replies) reply(absl::OkStatus());
}

// ---- The state that callers see

bool StepLoop::IsIdle() const { return Runs() && !parts_.scheduler.has_sequences() && !mail_.has_requests(); }

void StepLoop::EndOpenRequests(FinishReason reason, const absl::Status& error) {
  requests_.EndAll(reason, error);
}

// Readers that see the state see the statistics that came with it.
void StepLoop::SwitchState(EngineState to, std::string why) {
  PublishStats();
  board_.SwitchState(to, std::move(why));
}

void StepLoop::PublishStats() {
  if (parts_.options.kv_events != nullptr)
    parts_.options.kv_events->Append(parts_.options.data_parallel_rank, parts_.scheduler.TakeCacheEvents(),
                                     parts_.options.now());
  EngineStats stats;
  parts_.holdings.Publish(&stats);
  steps_.Publish(&stats);
  requests_.Publish(&stats);
  stats.paused = parts_.paused;
  GroupBytes bytes = parts_.executor.bytes();
  stats.resident_bytes = std::move(bytes.resident);
  stats.host_bytes = std::move(bytes.host);
  stats.sleeping_bytes = std::move(bytes.sleeping);
  stats.num_waiting += held_back_.count();
  stats.keepable_bytes = parts_.kept.KeepableBytes();
  prefixes_.Publish(parts_.scheduler, &stats);
  stats.group_epoch = group_epoch_;
  stats.num_recoveries = parts_.recovery.num_recoveries();
  board_.Publish(std::move(stats), parts_.holdings.weights(), parts_.scheduler.num_preempted());
}

}  // namespace somnus
