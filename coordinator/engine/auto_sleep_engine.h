#pragma once
// An Engine over another Engine. Requests wake the engine up, and the engine goes to sleep by itself when
// nobody needs it.
//
// Arrivals. A request that comes while memory sleeps waits in the engine's queue, is refused, or waits and
// has every tag woken, as options.arrivals says. From a sleep that the engine has begun by itself any request
// wakes the engine, under every value of options.arrivals. No request ends a pause: a request that waits for
// a wake-up gets the wake-up when the engine is resumed.
//
// Idle. An engine that is awake, and has had no open request for options.idle_sleep, goes to sleep. Its time
// begins anew with every lifecycle call; status, health and metrics are no requests. Weights that came from
// an update sleep at level 1, under every value of options.idle_level: level 2 would lose such weights. A
// sleep that fails, such as one whose backup finds no room on a disk, is tried again, later and later, until
// a sleep has gone well or an operator's call has ended.
//
// No wake-up is lost. Requests are counted before they are given to the engine, so that a request that comes
// between the decision to sleep and the sleep is seen by either; a request that came while the engine fell
// asleep is remembered until the engine is awake or the request has ended. A wake-up that fails is tried
// again, later and later, and Health says so meanwhile; after a few failures requests get the error
// (wake_retries.h).
//
// Ownership: owns the engine below and a thread that makes these calls; the observer is borrowed and must
// live until DrainAndStop, which the destructor calls without grace, has returned. Thread safety: as engine.h
// says. mu_ is never held while the engine below is called, but for its state and its Stats.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "base/monotonic.h"
#include "coordinator/engine/auto_sleep_options.h"
#include "coordinator/engine/engine.h"
#include "coordinator/engine/loop_mail.h"
#include "coordinator/residency/retry_backoff.h"
#include "coordinator/residency/wake_retries.h"

namespace somnus {

class AutoSleepEngine : public Engine {
 public:
  // Makes the engine below, which reports to the observer that it is given.
  using MakeEngine = std::function<std::shared_ptr<Engine>(EngineObserver*)>;
  // `observer` may be null.
  AutoSleepEngine(AutoSleepOptions options, EngineObserver* observer, const MakeEngine& make);
  ~AutoSleepEngine() override;

  // FailedPrecondition, too: the engine is asleep, and options.arrivals is kReject. Unavailable, too:
  // wake-ups for requests have failed, and were given up.
  absl::Status SubmitAll(std::vector<EngineRequest> requests) override;
  void Abort(const std::string& request_id) override { engine_->Abort(request_id); }
  EngineState state() const override { return engine_->state(); }
  // Ok also while the engine sleeps, if a request would wake the engine, or be the next try of a wake-up that
  // has failed.
  absl::Status Health() const override;
  void OnStateChange(std::function<void()> callback) override;
  EngineStats Stats() const override;
  EngineViews View() override { return engine_->View(); }
  // Counts operators' calls as a use of the engine; calls about the KV cache and hints do not count.
  LifecycleResult Run(const LifecycleRequest& request) override;
  PinnedPrefixes& pinned_prefixes() override { return engine_->pinned_prefixes(); }
  void DrainAndStop(absl::Duration grace) override;
  int32_t max_model_len() const override { return engine_->max_model_len(); }
  int32_t vocab_size() const override { return engine_->vocab_size(); }

 private:
  class Observer;
  class Call;
  enum class Action { kNone, kSleep, kWake };

  absl::StatusOr<TransitionReport> PutToSleep(const SleepRequest& request);
  absl::StatusOr<TransitionReport> WakeByOperator(const WakeUpRequest& request);
  absl::StatusOr<std::unique_ptr<WeightUpdate>> BeginUpdate(const UpdateWeightsRequest& request);

  void RunThread();
  // The thread's next task; kNone: nothing for `wait`.
  Action NextAction(absl::Duration* wait) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void FallAsleep() ABSL_LOCKS_EXCLUDED(mu_);
  void Wake() ABSL_LOCKS_EXCLUDED(mu_);
  // A request would wake the engine, were it asleep and not paused.
  bool ArrivalsWake() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool Refuses() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Why a wake-up for a request that comes now would not be tried; ok: a try would follow, or no wake-up is
  // needed.
  absl::Status WhyNotWoken() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void NoteEnded(int64_t num_requests);
  // The next sleep is tried without a pause after failures.
  void ForgetFailedSleeps() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // An operator's call has ended: what it left is looked at now.
  void NoteCallEnd();

  const AutoSleepOptions options_;
  std::unique_ptr<Observer> observer_;
  std::shared_ptr<Engine> engine_;
  LoopMail mail_;  // wakes the thread

  mutable absl::Mutex mu_;
  int64_t num_open_ ABSL_GUARDED_BY(mu_) = 0;         // requests
  int64_t num_calls_ ABSL_GUARDED_BY(mu_) = 0;        // of operators, under way
  int64_t num_sleep_calls_ ABSL_GUARDED_BY(mu_) = 0;  // the sleeps among these calls
  int64_t num_calls_ended_ ABSL_GUARDED_BY(mu_) = 0;  // of operators, since the construction
  bool slept_by_itself_ ABSL_GUARDED_BY(mu_) = false;
  // Requests that need a wake-up, counted, and up to which of them none needs it any longer.
  int64_t last_wanting_ ABSL_GUARDED_BY(mu_) = 0;
  std::string wanting_ ABSL_GUARDED_BY(mu_);  // the name of the last of them
  int64_t last_served_ ABSL_GUARDED_BY(mu_) = 0;
  MonotonicTime idle_since_ ABSL_GUARDED_BY(mu_);
  RetryBackoff failed_sleeps_ ABSL_GUARDED_BY(mu_);  // of the engine by itself
  MonotonicTime no_sleep_before_ ABSL_GUARDED_BY(mu_) = -absl::InfiniteDuration();
  WakeRetries retries_ ABSL_GUARDED_BY(mu_);
  int64_t num_auto_sleeps_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t num_auto_wake_ups_ ABSL_GUARDED_BY(mu_) = 0;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;

  absl::Mutex join_mu_;
  std::thread thread_ ABSL_GUARDED_BY(join_mu_);
};

}  // namespace somnus
