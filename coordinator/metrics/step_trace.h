#pragma once
// The last steps of an engine, and everything else that took the engine's time, to see why a step was slow:
// what was in the step, and what the step waited behind. The trace is always on: a step costs the lock and a
// copy of the step's event.
//
// Bounded: beyond TraceLimits the oldest steps and other events are forgotten. The observer behind the trace
// is borrowed, and is told of every event first. Thread safe.

#include <cstddef>
#include <deque>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/monotonic.h"
#include "coordinator/engine/engine_observer.h"

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
  std::vector<StepEvent> steps;  // in the order of replies
  std::vector<TraceSpan> spans;  // in the order of ends
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

  // The steps and spans that ended within the last `duration`.
  Trace Last(absl::Duration duration) const;
  // The spans alone, the last `most` of them.
  std::vector<TraceSpan> LastSpans(absl::Duration duration, size_t most) const;

 private:
  void AddSpan(absl::string_view name, absl::Duration duration);

  const TraceLimits limits_;
  const MonotonicClock now_;
  mutable absl::Mutex mu_;
  std::deque<StepEvent> steps_ ABSL_GUARDED_BY(mu_);
  std::deque<TraceSpan> spans_ ABSL_GUARDED_BY(mu_);
};

}  // namespace somnus
