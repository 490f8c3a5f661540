#include "coordinator/engine/auto_sleep_engine.h"

#include <algorithm>
#include <utility>

#include "base/heartbeat.h"
#include "base/log.h"
#include "base/request_bounds.h"
#include "base/status_macros.h"
#include "coordinator/engine/engine_report.h"
#include "coordinator/engine/held_update.h"
#include "coordinator/residency/declined.h"

namespace somnus {

// Counts the requests that end.
class AutoSleepEngine::Observer : public PassingObserver {
 public:
  Observer(AutoSleepEngine* engine, EngineObserver* next) : PassingObserver(next), engine_(engine) {}

  void OnRequestFinished(const EngineRequest& request, const FinishedRequest& end) override {
    engine_->NoteEnded(1);
    PassingObserver::OnRequestFinished(request, end);
  }

 private:
  AutoSleepEngine* const engine_;
};

// An operator's call, as long as it lives. Its end is when the idle time begins anew: the engine may be awake
// before that, and has not been idle.
class AutoSleepEngine::Call {
 public:
  explicit Call(AutoSleepEngine* engine) : engine_(engine) {
    absl::MutexLock lock(&engine_->mu_);
    ++engine_->num_calls_;
  }
  ~Call() { engine_->NoteCallEnd(); }
  Call(const Call&) = delete;

 private:
  AutoSleepEngine* const engine_;
};

AutoSleepEngine::AutoSleepEngine(AutoSleepOptions options, EngineObserver* observer, const MakeEngine& make)
    : options_(std::move(options)),
      observer_(std::make_unique<Observer>(this, observer)),
      engine_(make(observer_.get())),
      failed_sleeps_(std::max(options_.idle_sleep, options_.retry.first_pause),
                     options_.retry.longest_given_up),
      retries_(options_.retry) {
  {
    absl::MutexLock lock(&mu_);
    idle_since_ = options_.now();
  }
  OnStateChange(nullptr);
  absl::MutexLock lock(&join_mu_);
  thread_ = std::thread([this] { RunThread(); });
}

AutoSleepEngine::~AutoSleepEngine() { DrainAndStop(absl::ZeroDuration()); }

bool AutoSleepEngine::ArrivalsWake() const {
  return options_.arrivals == SleepArrivals::kWake || slept_by_itself_;
}

bool AutoSleepEngine::Refuses() const {
  if (options_.arrivals != SleepArrivals::kReject || slept_by_itself_) return false;
  const EngineState state = engine_->state();
  if (state == EngineState::kRecovering) return engine_->Stats().sleep_level > 0;
  return state == EngineState::kFallingAsleep || state == EngineState::kAsleep;
}

absl::Status AutoSleepEngine::WhyNotWoken() const {
  const bool wakes = engine_->state() == EngineState::kAsleep && ArrivalsWake();
  return wakes && retries_.Refuses(options_.now()) ? retries_.error() : absl::OkStatus();
}

absl::Status AutoSleepEngine::SubmitAll(std::vector<EngineRequest> requests) {
  const auto count = static_cast<int64_t>(requests.size());
  std::string name = requests.empty() ? "" : requests.back().name();
  {
    absl::MutexLock lock(&mu_);
    if (Refuses())
      return absl::FailedPreconditionError("The engine is asleep; requests are refused until it is woken.");
    RETURN_IF_ERROR(WhyNotWoken());
    num_open_ += count;
  }
  if (absl::Status status = engine_->SubmitAll(std::move(requests)); !status.ok()) {
    NoteEnded(count);
    return status;
  }
  {
    absl::MutexLock lock(&mu_);
    // A sleep that was called for, but has not begun, counts: it may come before the request is computed.
    const bool sleeps = engine_->state() != EngineState::kAwake || num_sleep_calls_ > 0;
    if (!ArrivalsWake() || (!sleeps && !slept_by_itself_)) return absl::OkStatus();
    ++last_wanting_;
    wanting_ = std::move(name);
  }
  mail_.Wake();
  return absl::OkStatus();
}

void AutoSleepEngine::NoteEnded(int64_t num_requests) {
  {
    absl::MutexLock lock(&mu_);
    num_open_ -= num_requests;
    if (num_open_ > 0) return;
    idle_since_ = options_.now();
  }
  mail_.Wake();
}

void AutoSleepEngine::NoteCallEnd() {
  {
    absl::MutexLock lock(&mu_);
    --num_calls_;
    ++num_calls_ended_;
    idle_since_ = options_.now();
    ForgetFailedSleeps();
    retries_.Restart();
  }
  mail_.Wake();
}

absl::Status AutoSleepEngine::Health() const {
  if (engine_->Health().ok()) return absl::OkStatus();
  const EngineStats stats = Stats();
  if (stats.request_wakes && stats.wake_up_error.empty()) return absl::OkStatus();
  absl::MutexLock lock(&mu_);
  // Once no request waits any more, and the pause of the retries is over, a request is the next try.
  const bool tries_next = num_open_ == 0 && options_.now() >= retries_.retry_at();
  if (stats.request_wakes && tries_next) return absl::OkStatus();
  return absl::UnavailableError(ReportState(stats).Line());
}

void AutoSleepEngine::OnStateChange(std::function<void()> callback) {
  engine_->OnStateChange([this, callback = std::move(callback)] {
    mail_.Wake();
    if (callback) callback();
  });
}

EngineStats AutoSleepEngine::Stats() const {
  EngineStats stats = engine_->Stats();
  absl::MutexLock lock(&mu_);
  stats.num_auto_sleeps = num_auto_sleeps_;
  stats.num_auto_wake_ups = num_auto_wake_ups_;
  stats.wake_up_error = std::string(retries_.error().message());
  const bool sleeps = stats.state == EngineState::kFallingAsleep || stats.state == EngineState::kAsleep ||
                      stats.state == EngineState::kWaking;
  const bool lacks_weights = stats.needs_weights || stats.residency.weights_stale();
  stats.request_wakes = sleeps && ArrivalsWake() && !stats.paused && !lacks_weights;
  // The engine itself knows why it wakes, and why its weights are stale.
  if (sleeps && stats.state != EngineState::kWaking && !lacks_weights && slept_by_itself_)
    stats.note.why =
        absl::StrCat("no request for ", absl::FormatDuration(options_.idle_sleep), " (--idle-sleep-s)");
  return stats;
}

LifecycleResult AutoSleepEngine::Run(const LifecycleRequest& request) {
  if (const auto* const sleep = std::get_if<SleepRequest>(&request)) return PutToSleep(*sleep);
  if (const auto* const wake_up = std::get_if<WakeUpRequest>(&request)) return WakeByOperator(*wake_up);
  if (const auto* const update = std::get_if<UpdateWeightsRequest>(&request)) return BeginUpdate(*update);
  std::optional<Call> call;
  if (IsOneOf<PauseRequest, ResumeRequest, ReloadWeightsRequest, ReviveRequest, RollRequest>(request))
    call.emplace(this);
  return engine_->Run(request);
}

absl::StatusOr<TransitionReport> AutoSleepEngine::PutToSleep(const SleepRequest& request) {
  const Call call(this);
  {
    absl::MutexLock lock(&mu_);
    ++num_sleep_calls_;
  }
  absl::StatusOr<TransitionReport> report = engine_->Sleep(request);
  {
    absl::MutexLock lock(&mu_);
    --num_sleep_calls_;
    if (report.ok()) {
      slept_by_itself_ = false;
      // A request that would have ended the engine's own sleep does not end an operator's.
      if (!ArrivalsWake()) last_served_ = last_wanting_;
    }
  }
  return report;
}

absl::StatusOr<TransitionReport> AutoSleepEngine::WakeByOperator(const WakeUpRequest& request) {
  const Call call(this);
  absl::StatusOr<TransitionReport> report = engine_->WakeUp(request.tags, request.load_weights);
  absl::MutexLock lock(&mu_);
  if (report.ok()) retries_.NoteWoken();
  return report;
}

absl::StatusOr<std::unique_ptr<WeightUpdate>> AutoSleepEngine::BeginUpdate(
    const UpdateWeightsRequest& request) {
  auto call = std::make_unique<Call>(this);
  ASSIGN_OR_RETURN(auto update, engine_->BeginWeightUpdate(request.weights));
  return std::make_unique<HeldUpdate>(std::move(call), std::move(update));
}

void AutoSleepEngine::RunThread() {
  const Heartbeat heartbeat("", "sleep of an idle engine");
  while (true) {
    heartbeat.Beat();
    absl::Duration wait = absl::InfiniteDuration();
    Action action;
    {
      absl::MutexLock lock(&mu_);
      if (stopped_) return;
      action = NextAction(&wait);
    }
    if (action == Action::kNone) {
      mail_.WaitFor(wait);
      continue;
    }
    // The engine's loop is watched itself, and its calls have deadlines.
    const Heartbeat::Wait call(absl::InfiniteDuration());
    action == Action::kSleep ? FallAsleep() : Wake();
  }
}

AutoSleepEngine::Action AutoSleepEngine::NextAction(absl::Duration* wait) {
  if (num_sleep_calls_ > 0) return Action::kNone;  // its end is looked at
  const EngineState state = engine_->state();
  const bool is_awake = state == EngineState::kAwake;
  if (is_awake) slept_by_itself_ = false;
  // Another call has woken the engine, the waiting requests have ended, or the engine is ending.
  if (is_awake || num_open_ == 0 || !AdmitsRequests(state)) last_served_ = last_wanting_;
  const MonotonicTime now = options_.now();
  if (last_wanting_ > last_served_) {
    // A wake-up brings nothing that could be computed with; a reload or an update changes the state.
    if (engine_->Stats().needs_weights) return Action::kNone;
    if (now >= retries_.retry_at()) return Action::kWake;
    *wait = retries_.retry_at() - now;
    return Action::kNone;
  }
  const bool is_used = num_open_ > 0 || num_calls_ > 0;
  if (options_.idle_sleep <= absl::ZeroDuration() || !is_awake || is_used) return Action::kNone;
  const MonotonicTime due = std::max(idle_since_ + options_.idle_sleep, no_sleep_before_);
  if (now < due) {
    *wait = due - now;
    return Action::kNone;
  }
  slept_by_itself_ = true;  // a request that comes from now on wakes the engine
  return Action::kSleep;
}

void AutoSleepEngine::ForgetFailedSleeps() {
  failed_sleeps_.Restart();
  no_sleep_before_ = -absl::InfiniteDuration();
}

void AutoSleepEngine::FallAsleep() {
  int64_t num_calls_ended;
  {
    absl::MutexLock lock(&mu_);
    num_calls_ended = num_calls_ended_;
  }
  SleepRequest request;
  // Weights that no file has are kept.
  request.level = engine_->Stats().only_copy ? kMinSleepLevel : options_.idle_level;
  request.only_if_idle = true;
  request.spares_only_copy = true;
  const absl::StatusOr<TransitionReport> report = engine_->Sleep(request);
  if (report.ok()) {
    LogInfo("idle for {}: the engine has gone to sleep at level {}",
            absl::FormatDuration(options_.idle_sleep), request.level);
  }
  absl::MutexLock lock(&mu_);
  const MonotonicTime now = options_.now();
  idle_since_ = now;
  num_auto_sleeps_ += report.ok() ? 1 : 0;
  if (report.ok()) return ForgetFailedSleeps();
  // Not where the sleep was committed and then interrupted by losses of the group: requests have to end such
  // a sleep.
  if (engine_->state() == EngineState::kAwake) slept_by_itself_ = false;
  // Not when a request has come meanwhile, or the engine is about to end.
  if (absl::IsAborted(report.status()) || IsDeclined(report.status())) return;
  absl::Duration pause = options_.idle_sleep;
  // An operator's call that has ended since this try began has begun the pauses anew.
  if (num_calls_ended_ == num_calls_ended) {
    pause = failed_sleeps_.NoteFailed(now);
    no_sleep_before_ = now + pause;
  }
  LogWarning("the engine could not go to sleep, and tries again after {} at the earliest: {}",
             absl::FormatDuration(pause), std::string(report.status().message()));
}

void AutoSleepEngine::Wake() {
  int64_t last_wanting;
  std::string wanting;
  {
    absl::MutexLock lock(&mu_);
    wanting = wanting_;
    last_wanting = last_wanting_;  // a request that comes from now on may come after the wake-up
  }
  const absl::StatusOr<TransitionReport> report = engine_->WakeForArrivals();
  absl::Status given_up;
  {
    absl::MutexLock lock(&mu_);
    if (report.ok()) {
      last_served_ = std::max(last_served_, last_wanting);
      num_auto_wake_ups_ += report->changed() ? 1 : 0;
      retries_.NoteWoken();
      return;
    }
    if (IsDeclined(report.status())) return retries_.NoteDeclined(options_.now());
    retries_.NoteFailed(options_.now(), report.status());
    if (retries_.gave_up()) given_up = retries_.error();
  }
  LogWarning("request {} waits, but the engine could not be woken{}: {}", wanting,
             given_up.ok() ? "" : ", and requests are refused", std::string(report.status().message()));
  if (!given_up.ok()) engine_->EndWaiting(given_up);
}

void AutoSleepEngine::DrainAndStop(absl::Duration grace) {
  {
    absl::MutexLock lock(&mu_);
    stopped_ = true;
  }
  mail_.Wake();
  engine_->DrainAndStop(grace);  // ends a call of the thread, too
  absl::MutexLock join_lock(&join_mu_);
  if (thread_.joinable()) thread_.join();
  engine_->OnStateChange(nullptr);
}

}  // namespace somnus
