#include "coordinator/engine/engine_loop.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/memory_tags.h"
#include "base/null_block.h"
#include "base/request_bounds.h"
#include "base/status_macros.h"
#include "coordinator/engine/caller.h"
#include "coordinator/engine/commands/end_waiting_command.h"
#include "coordinator/engine/commands/pause_command.h"
#include "coordinator/engine/commands/reload_command.h"
#include "coordinator/engine/commands/reset_prefix_cache_command.h"
#include "coordinator/engine/commands/resize_kv_cache_command.h"
#include "coordinator/engine/commands/restart_command.h"
#include "coordinator/engine/commands/set_adapters_command.h"
#include "coordinator/engine/commands/sleep_command.h"
#include "coordinator/engine/commands/update_command.h"
#include "coordinator/engine/commands/wake_up_command.h"
#include "coordinator/engine/engine_report.h"
#include "coordinator/request/request_bytes.h"
#include "coordinator/residency/declined.h"
#include "coordinator/scheduler/request_check.h"

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

}  // namespace

EngineLoop::EngineLoop(EngineOptions options, Executor* executor, EngineObserver* observer)
    : options_(std::move(options)),
      executor_(executor),
      board_(options_, executor, options_.residency.awake() ? EngineState::kAwake : EngineState::kAsleep),
      mail_(options_.queue, &board_, events_.get()),
      prefixes_(options_.pins, options_.scheduler, [events = events_] { events->Wake(); }),
      loop_(options_, executor, observer,
            {.mail = &mail_, .board = &board_, .prefixes = &prefixes_, .views = &views_, .events = events_}) {
  // Before the loop begins: its first call may lose the group, and the end of that recovery must be told.
  executor_->OnFailure([events = events_](absl::Status status) { events->PostFailure(std::move(status)); });
  executor_->OnRecovered(
      [events = events_](absl::Status status) { events->PostRecovered(std::move(status)); });
  absl::MutexLock lock(&join_mu_);
  thread_ = std::thread([this] { loop_.Run(); });
}

EngineLoop::~EngineLoop() { DrainAndStop(absl::ZeroDuration()); }

// ---- Requests

absl::Status EngineLoop::CheckRequests(const EngineOptions& options,
                                       const std::vector<EngineRequest>& requests) {
  for (const EngineRequest& request : requests) {
    if (request.sink == nullptr) return absl::InvalidArgumentError("request has no sink");
    RETURN_IF_ERROR(CheckRequest(options.scheduler, request));
    for (int32_t id : request.prompt) {
      if (id >= 0 && id < options.vocab_size) continue;
      return absl::InvalidArgumentError(absl::StrCat("prompt: token id ", id, " is out of vocabulary"));
    }
  }
  return absl::OkStatus();
}

absl::Status EngineLoop::SubmitAll(std::vector<EngineRequest> requests) {
  RETURN_IF_ERROR(CheckRequests(options_, requests));
  SetQueuedBytes(&requests);
  return mail_.Submit(std::move(requests));
}

// ---- The state

EngineLoop::Backlog EngineLoop::backlog() const {
  const CallersMail::Queue queue = mail_.queue();
  return {.num_open = queue.num_open,
          .num_preempted = board_.num_preempted(),
          .waiting_tokens = queue.waiting_tokens,
          .num_steps = board_.num_steps()};
}

absl::Status EngineLoop::Health() const {
  const StateReport report = ReportState(Stats());
  return report.serving() ? absl::OkStatus() : absl::UnavailableError(report.Line());
}

EngineStats EngineLoop::Stats() const {
  EngineStats stats = board_.Stats();
  const CallersMail::Queue queue = mail_.queue();  // afterwards: no request is counted twice
  stats.num_waiting += queue.num_arrived;
  stats.waiting_tokens = queue.waiting_tokens;
  stats.oldest_wait = board_.OldestWait(queue.oldest_arrival);
  return stats;
}

EngineViews EngineLoop::View() {
  bool wakes = false;
  std::shared_ptr<const EngineView> view = views_.Look(options_.monotonic_now(), &wakes);
  if (wakes) events_->Wake();
  return view == nullptr ? EngineViews() : EngineViews{std::move(view)};
}

// ---- Lifecycle calls

LifecycleResult EngineLoop::Run(const LifecycleRequest& request) {
  return VisitRequest(request, [this](const auto& one) { return CarryOut(one); });
}

absl::StatusOr<TransitionReport> EngineLoop::RunCommand(const std::shared_ptr<LifecycleCommand>& command) {
  command->set_caller(CurrentCaller());
  RETURN_IF_ERROR(mail_.Send(command));
  AwaitCall(command->ended());
  return command->result();
}

// A loop that is woken asks by itself whether the client has left.
void EngineLoop::AwaitCall(const StopSignal& done) {
  const std::shared_ptr<const Caller> caller = CurrentCaller();
  while (caller != nullptr && !done.WaitFor(kCallerLook)) {
    if (!caller->has_left()) continue;
    events_->Wake();
    break;
  }
  done.WaitFor(absl::InfiniteDuration());
}

absl::StatusOr<TransitionReport> EngineLoop::CarryOut(const SleepRequest& request) {
  if (request.level < kMinSleepLevel || request.level > kMaxSleepLevel) {
    return absl::InvalidArgumentError(
        absl::StrCat("level: must be ", kSleepLevelNames, ", not ", request.level));
  }
  RETURN_IF_ERROR(CheckTags(request.tags));
  return RunCommand(std::make_shared<SleepCommand>(request));
}

absl::StatusOr<TransitionReport> EngineLoop::CarryOut(const WakeUpRequest& request) {
  WakeUpCommand::Options options = {.tags = request.tags, .load_weights = request.load_weights};
  options.ends_pause = std::erase(options.tags, kSchedulingTag) > 0;
  RETURN_IF_ERROR(CheckTags(options.tags));
  // Without a tag of memory the command would wake all.
  if (options.ends_pause && options.tags.empty()) return RunCommand(std::make_shared<ResumeCommand>());
  return RunCommand(std::make_shared<WakeUpCommand>(options));
}

absl::StatusOr<TransitionReport> EngineLoop::UndoSleep(const std::vector<std::string>& tags) {
  WakeUpCommand::Options options;
  options.tags = tags;
  options.keeps_pause = true;
  return RunCommand(std::make_shared<WakeUpCommand>(options));
}

absl::StatusOr<TransitionReport> EngineLoop::CarryOut(const WakeForArrivalsRequest& /*request*/) {
  WakeUpCommand::Options options;
  options.for_arrivals = true;
  return RunCommand(std::make_shared<WakeUpCommand>(options));
}

absl::Status EngineLoop::CarryOut(const EndWaitingRequest& request) {
  return RunCommand(std::make_shared<EndWaitingCommand>(request.error)).status();
}

absl::Status EngineLoop::CarryOut(const PrefetchRequest& /*request*/) {
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

absl::Status EngineLoop::CarryOut(const PauseRequest& request) {
  return RunCommand(std::make_shared<PauseCommand>(request)).status();
}

absl::Status EngineLoop::CarryOut(const ResumeRequest& /*request*/) {
  return RunCommand(std::make_shared<ResumeCommand>()).status();
}

absl::StatusOr<WeightsChange> EngineLoop::CarryOut(const ReloadWeightsRequest& request) {
  RETURN_IF_ERROR(WeightsCommand::CheckVersion(request.weights.version));
  const auto command = std::make_shared<ReloadCommand>(request.weights);
  RETURN_IF_ERROR(RunCommand(command).status());
  return command->change();
}

absl::StatusOr<std::unique_ptr<WeightUpdate>> EngineLoop::CarryOut(const UpdateWeightsRequest& request) {
  RETURN_IF_ERROR(WeightsCommand::CheckVersion(request.weights.version));
  const auto command = std::make_shared<UpdateCommand>(request.weights);
  command->set_caller(CurrentCaller());
  RETURN_IF_ERROR(mail_.Send(command));
  AwaitCall(command->begun());
  if (command->ended().stopped()) return command->result().status();
  return MakeWeightUpdate(executor_, events_, command);
}

absl::StatusOr<int32_t> EngineLoop::CarryOut(const ResizeKvCacheRequest& request) {
  const auto command = std::make_shared<ResizeKvCacheCommand>(static_cast<int32_t>(
      std::min<int64_t>(NumBlocks(request.total_blocks), options_.scheduler.blocks.num_blocks)));
  RETURN_IF_ERROR(RunCommand(command).status());
  return static_cast<int32_t>(TotalBlocks(command->num_mapped()));
}

absl::Status EngineLoop::CarryOut(const ResetPrefixCacheRequest& request) {
  return RunCommand(std::make_shared<ResetPrefixCacheCommand>(request.preempt_running)).status();
}

absl::StatusOr<TransitionReport> EngineLoop::CarryOut(const SetAdaptersRequest& request) {
  return RunCommand(std::make_shared<SetAdaptersCommand>(request));
}

absl::Status EngineLoop::CarryOut(const RollRequest& /*request*/) {
  return absl::FailedPreconditionError(
      "the engine has one replica: nothing would serve meanwhile; see --data-parallel-size");
}

absl::Status EngineLoop::Restart() { return RunCommand(std::make_shared<RestartCommand>()).status(); }

bool EngineLoop::Revive(bool restart_workers, const Weights& weights) {
  return BeginRevival(std::make_shared<ReviveCommand>(
      ReviveCommand::Options{.restart_workers = restart_workers, .weights = weights}));
}

absl::Status EngineLoop::CarryOut(const ReviveRequest& request) {
  ReviveCommand::Options options;
  options.asleep = request.asleep;
  const auto command = std::make_shared<ReviveCommand>(options);
  if (!BeginRevival(command)) return DeclinedError("no workers have failed that others could replace");
  command->ended().WaitFor(absl::InfiniteDuration());
  return command->result().status();
}

bool EngineLoop::BeginRevival(std::shared_ptr<LifecycleCommand> command) {
  if (!mail_.SendRevival(std::move(command))) return false;
  board_.ReportStateChange();
  return true;
}

absl::Status EngineLoop::CarryOut(const AbortCallRequest& /*request*/) {
  struct Answer {
    StopSignal done;
    absl::Status status;
  };
  const auto answer = std::make_shared<Answer>();
  RETURN_IF_ERROR(mail_.SendCallAbort([answer](absl::Status status) {
    answer->status = std::move(status);
    answer->done.Stop();
  }));
  answer->done.WaitFor(absl::InfiniteDuration());
  return answer->status;
}

void EngineLoop::DrainAndStop(absl::Duration grace) {
  if (mail_.Drain(options_.monotonic_now() + grace)) board_.ReportStateChange();
  absl::MutexLock join_lock(&join_mu_);
  if (!thread_.joinable()) return;
  // A worker that hangs must not delay the end: if the loop still waits for the worker, the step is given up.
  if (!mail_.AwaitStop(grace + absl::Seconds(2))) {
    executor_->Abort(absl::CancelledError("the server is shutting down"));
  }
  thread_.join();
  executor_->OnFailure(nullptr);
  executor_->OnRecovered(nullptr);
}

}  // namespace somnus
