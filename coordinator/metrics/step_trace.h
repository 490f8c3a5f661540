#pragma once
// The last steps of an engine, and what else took its time, for a look at what it did and why: which step was
// slow, what was in it, and what it waited behind. It is always on: a step costs the lock and a copy of its
// event.
//
// Bounded: of more steps or other events than TraceLimits allows the oldest are forgotten. The observer
// behind it is borrowed, and is told of every event first. Thread safe.

#include <cstddef>
#include <deque>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/monotonic.h"
#include "coordinator/engine/engine.h"

namespace somnus {

// A time in which the engine did something else than steps.
struct TraceSpan {
  std::string name;  // "sleep", "wake_up", "reload_weights", "update_weights", "recovery", "self_check"
  MonotonicTime begin;
  absl::Duration duration;
};

// Each is at least 1.
struct TraceLimits {
  size_t max_steps = 8192;
  size_t max_spans = 1024;
};

struct Trace {
  std::vector<StepEvent> steps;  // in the order of their replies
  std::vector<TraceSpan> spans;  // in the order of their ends
};

class StepTrace : public PassingObserver {
 public:
  // `next` may be null.
  explicit StepTrace(EngineObserver* next, TraceLimits limits = {}, MonotonicClock now = MonotonicNow);

  void OnStep(const StepEvent& event) override;
  void OnRecovered(absl::Duration duration) override;
  void OnTransition(const TransitionEvent& event) override;
  void OnWeightsChanged(const WeightsEvent& event) override;
  void OnSelfCheck(const SelfCheckEvent& event) override;

  // What ended within the last `duration`.
  Trace Last(absl::Duration duration) const;

 private:
  void AddSpan(absl::string_view name, absl::Duration duration);

  const TraceLimits limits_;
  const MonotonicClock now_;
  mutable absl::Mutex mu_;
  std::deque<StepEvent> steps_ ABSL_GUARDED_BY(mu_);
  std::deque<TraceSpan> spans_ ABSL_GUARDED_BY(mu_);
};

}  // namespace somnus
