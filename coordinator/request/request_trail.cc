#include "coordinator/request/request_trail.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace somnus {

const char* TrailEventName(TrailEvent event) {
  switch (event) {
    case TrailEvent::kQueued:
      return "queued";
    case TrailEvent::kScheduled:
      return "scheduled";
    case TrailEvent::kFirstToken:
      return "first_token";
    case TrailEvent::kPreempted:
      return "preempted";
    case TrailEvent::kSuspended:
      return "suspended";
    case TrailEvent::kResumed:
      return "resumed";
    case TrailEvent::kInterrupted:
      return "interrupted";
    case TrailEvent::kMoved:
      return "moved";
    case TrailEvent::kEnded:
      return "ended";
  }
  return "unknown";
}

const char* TrailStateName(RequestTrail::State state) {
  switch (state) {
    case RequestTrail::State::kWaiting:
      return "waiting";
    case RequestTrail::State::kRunning:
      return "running";
    case RequestTrail::State::kPreempted:
      return "preempted";
    case RequestTrail::State::kEnded:
      return "ended";
  }
  return "unknown";
}

RequestTrail::RequestTrail(Facts facts, absl::Time arrival, int32_t max_entries)
    : facts_(std::move(facts)), arrival_(arrival), max_entries_(static_cast<size_t>(max_entries)) {
  absl::MutexLock lock(&mutex_);
  Append(TrailEvent::kQueued, arrival, "");
}

void RequestTrail::Note(TrailEvent event, absl::string_view detail) {
  const absl::Time now = absl::Now();
  absl::MutexLock lock(&mutex_);
  if (view_.state == State::kEnded) return;
  switch (event) {
    case TrailEvent::kScheduled:
      if (view_.scheduled == absl::InfinitePast()) view_.scheduled = now;
      view_.state = State::kRunning;
      break;
    case TrailEvent::kFirstToken:
      if (view_.first_token != absl::InfinitePast()) return;
      view_.first_token = now;
      break;
    case TrailEvent::kResumed:
      view_.state = State::kRunning;
      break;
    case TrailEvent::kPreempted:
      ++view_.num_preemptions;
      view_.state = State::kPreempted;
      break;
    case TrailEvent::kSuspended:
    case TrailEvent::kInterrupted:
    case TrailEvent::kMoved:
      if (view_.state == State::kRunning) view_.state = State::kPreempted;
      break;
    case TrailEvent::kQueued:
    case TrailEvent::kEnded:
      break;
  }
  Append(event, now, std::string(detail.substr(0, kMaxDetailBytes)));
}

void RequestTrail::NoteEnd(absl::string_view finish_reason, absl::string_view error) {
  const absl::Time now = absl::Now();
  absl::MutexLock lock(&mutex_);
  if (view_.state == State::kEnded) return;
  view_.state = State::kEnded;
  view_.ended = now;
  view_.finish_reason = std::string(finish_reason);
  const std::string detail = error.empty()
                                 ? view_.finish_reason
                                 : absl::StrCat(finish_reason, ": ", error.substr(0, kMaxDetailBytes));
  view_.entries.push_back({.event = TrailEvent::kEnded, .at = now, .detail = detail});
}

void RequestTrail::Append(TrailEvent event, absl::Time now, std::string detail) {
  std::vector<Entry>& entries = view_.entries;
  if (!entries.empty() && entries.back().event == event && entries.back().detail == detail) {
    ++entries.back().count;
  } else if (entries.size() < max_entries_) {
    entries.push_back({.event = event, .at = now, .detail = std::move(detail)});
  } else {
    ++view_.num_dropped;
  }
}

RequestTrail::View RequestTrail::Look(bool with_entries) const {
  View view;
  {
    absl::MutexLock lock(&mutex_);
    if (with_entries) {
      view = view_;
    } else {
      view.state = view_.state;
      view.num_dropped = view_.num_dropped;
      view.num_preemptions = view_.num_preemptions;
      view.scheduled = view_.scheduled;
      view.first_token = view_.first_token;
      view.ended = view_.ended;
      view.finish_reason = view_.finish_reason;
    }
  }
  view.output_tokens = output_tokens_.load(std::memory_order_relaxed);
  view.num_steps = num_steps_.load(std::memory_order_relaxed);
  return view;
}

}  // namespace somnus
