#include "coordinator/metrics/step_trace.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace somnus {

StepTrace::StepTrace(EngineObserver* next, TraceLimits limits, MonotonicClock now)
    : PassingObserver(next), limits_(limits), now_(std::move(now)) {}

void StepTrace::OnStep(const StepEvent& event) {
  PassingObserver::OnStep(event);
  absl::MutexLock lock(&mu_);
  if (steps_.size() == limits_.max_steps) steps_.pop_front();
  steps_.push_back(event);
}

void StepTrace::OnRecovered(absl::Duration duration) {
  PassingObserver::OnRecovered(duration);
  AddSpan("recovery", duration);
}

void StepTrace::OnTransition(const TransitionEvent& event) {
  PassingObserver::OnTransition(event);
  AddSpan(event.wakes ? "wake_up" : "sleep", event.duration);
}

void StepTrace::OnWeightsChanged(const WeightsEvent& event) {
  PassingObserver::OnWeightsChanged(event);
  AddSpan(event.updates ? "update_weights" : "reload_weights", event.duration);
}

void StepTrace::OnSelfCheck(const SelfCheckEvent& event) {
  PassingObserver::OnSelfCheck(event);
  AddSpan("self_check", event.duration);
}

void StepTrace::AddSpan(absl::string_view name, absl::Duration duration) {
  const MonotonicTime begin = now_() - duration;
  absl::MutexLock lock(&mu_);
  if (spans_.size() == limits_.max_spans) spans_.pop_front();
  spans_.push_back({std::string(name), begin, duration});
}

Trace StepTrace::Last(absl::Duration duration) const {
  const MonotonicTime since = now_() - duration;
  Trace trace;
  absl::MutexLock lock(&mu_);
  std::copy_if(steps_.begin(), steps_.end(), std::back_inserter(trace.steps),
               [&](const StepEvent& step) { return step.replied >= since; });
  std::copy_if(spans_.begin(), spans_.end(), std::back_inserter(trace.spans),
               [&](const TraceSpan& span) { return span.begin + span.duration >= since; });
  return trace;
}

std::vector<TraceSpan> StepTrace::LastSpans(absl::Duration duration, size_t most) const {
  const MonotonicTime since = now_() - duration;
  absl::MutexLock lock(&mu_);
  auto first = spans_.end() - static_cast<ptrdiff_t>(std::min(most, spans_.size()));
  while (first != spans_.end() && first->begin + first->duration < since) ++first;
  return {first, spans_.end()};
}

}  // namespace somnus
