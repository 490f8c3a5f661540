#pragma once
// Several models on the same devices: a thread that carries out what residency_policy.h decides.
//
// Each model has an engine of its own, which Add wraps: the wrapper counts requests, so that a model that
// sleeps is woken for them, and keeps what an operator asked for. An operator's sleep ends by an operator's
// wake-up, unless `arrivals` is kWake; an operator's wake-up waits for room as requests do, but not for ever.
//
// A request is counted before its engine has it, so one that comes between the decision to sleep and the
// sleep is seen by either. A wake-up that fails is tried again, later and later; a sleep that fails makes the
// model stay for a while. Every decision is logged, and told to `on_decision`.
//
// Ownership: what Add returns owns the model's engine, and must live until Stop has returned; this object
// must outlive both. Observers are borrowed as long. Thread safety: Add, MakeRoom, Start and Stop are for one
// thread, the wrappers as engine.h says. mu_ is never held while an engine is called, but for its state and
// its Stats.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "base/monotonic.h"
#include "coordinator/engine/auto_sleep_engine.h"
#include "coordinator/engine/engine.h"
#include "coordinator/engine/loop_mail.h"
#include "coordinator/residency/request_deadlines.h"
#include "coordinator/residency/residency_policy.h"

namespace somnus {

struct SharedDevicesOptions {
  ResidencyOptions residency;
  SleepArrivals arrivals = SleepArrivals::kQueue;  // while an operator's sleep holds
  absl::Duration first_retry = absl::Seconds(1);   // after a transition that failed; doubled each time
  absl::Duration last_retry = absl::Seconds(30);
  absl::Duration operator_wait = absl::Minutes(2);  // an operator's wake-up waits so long for room, at most
  MonotonicClock now = MonotonicNow;
};

struct SharingModel {
  std::string name;
  bool pinned = false;
  int priority = 0;
  TokenTargets targets;             // for ResidencyPolicy::kSlo
  bool backup_takes_memory = true;  // of the host, at level 1
  // Called on a thread of SharedDevices; must not block. May be empty. `waited`: of a model that has woken,
  // since the first request came for it.
  std::function<void(const ResidencyDecision&)> on_decision;
  std::function<void(absl::Duration waited)> on_awake;
};

class SharedDevices {
 public:
  using MakeEngine = AutoSleepEngine::MakeEngine;

  explicit SharedDevices(SharedDevicesOptions options);
  ~SharedDevices();

  // `make` makes the model's engine, awake; the result is what clients and operators call.
  std::shared_ptr<Engine> Add(SharingModel model, EngineObserver* observer, const MakeEngine& make);
  // All models that were added sleep, so that another one can be loaded.
  absl::Status MakeRoom();
  // From now on it decides. InvalidArgument: a model is larger than the budget.
  absl::Status Start();
  // Nothing is decided any more. To be called after the engines were drained.
  void Stop();

 private:
  class Observer;
  struct Model {
    int index = 0;  // as the policy names it
    SharingModel options;
    std::unique_ptr<Observer> observer;
    std::optional<RequestDeadlines> deadlines;  // after Add
    Engine* engine = nullptr;                   // owned by what Add has returned
    int64_t num_open = 0;                       // requests
    int64_t num_wanted = 0;                     // operators' wake-ups that wait
    bool held_asleep = false;
    int64_t device_bytes = 0;
    int64_t backup_bytes = 0;
    int64_t held_bytes = 0, held_kv_bytes = 0;
    bool prefetched = false;                  // since it fell asleep
    absl::Duration sleep_time, wake_up_time;  // as last measured
    MonotonicTime waiting_since = absl::InfiniteDuration();
    MonotonicTime last_used;
    MonotonicTime awake_since;
    MonotonicTime retry_at = -absl::InfiniteDuration();
    absl::Duration retry_delay;
    absl::Status wake_up_error;                 // of the last wake-up
    std::optional<ResidencyDecision> decision;  // being carried out
    int64_t decision_id = 0;
    int64_t num_wake_ups = 0;  // that have ended, well or not
    absl::StatusOr<TransitionReport> last_wake_up = TransitionReport();
  };
  struct Carrier {
    std::thread thread;
    bool ended = false;
  };

  void Run();
  std::vector<ModelView> Views() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  ModelView View(Model* model) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  static ModelState StateOf(const Model& model, EngineState state);
  // All of its memory is there.
  static bool IsResident(EngineState state);

  // Of a decision (shared_devices_transitions.cc).
  void Begin(const ResidencyDecision& decision) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void CarryOut(Model* model, const ResidencyDecision& decision, int64_t id, Carrier* carrier)
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<TransitionReport> Call(Model* model, const ResidencyDecision& decision)
      ABSL_LOCKS_EXCLUDED(mu_);
  void Prefetch(Model* model, Carrier* carrier) ABSL_LOCKS_EXCLUDED(mu_);
  static void NoteHostBytes(Model* model, const TransitionReport& report);
  void NoteWakeUp(Model* model, const absl::StatusOr<TransitionReport>& report, absl::Duration time)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void NoteSleep(Model* model, const absl::StatusOr<TransitionReport>& report, absl::Duration time)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void JoinEnded() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // Of the wrappers (shared_devices_calls.cc).
  absl::Status Submit(Model* model, std::vector<EngineRequest> requests);
  void NoteEnded(Model* model, int64_t num_requests);
  absl::StatusOr<TransitionReport> SleepByOperator(Model* model, const SleepRequest& request);
  absl::StatusOr<TransitionReport> WakeByOperator(Model* model);
  absl::Status Health(const Model& model) const;

  const SharedDevicesOptions options_;
  LoopMail mail_;                               // wakes the thread
  std::vector<std::unique_ptr<Model>> models_;  // complete before Start; what they hold is guarded by mu_
  mutable absl::Mutex mu_;
  std::vector<std::unique_ptr<Carrier>> carriers_ ABSL_GUARDED_BY(mu_);
  std::multiset<MonotonicTime> waits_ ABSL_GUARDED_BY(mu_);  // when operators' wake-ups give up
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace somnus
