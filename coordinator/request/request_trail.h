#pragma once
// The history of a client's request, in order and with times, for operators who ask about the request (GET
// /requests). All choices of the request share one trail.
//
// The client's side makes the trail and notes the end; the scheduler and the engine's loop note the way in
// between, and a request that moves to another replica takes its trail along. The trail reads the clock, so
// that the scheduler need not. Bounded: a trail keeps as many first entries as it is told, counts the rest,
// and always has room for the end; equal entries in a row are one entry with a count. Thread safe; each
// function is cheap enough for the engine's loop.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace somnus {

enum class TrailEvent {
  kQueued,       // the engine has taken the request
  kScheduled,    // for the first time
  kFirstToken,   // of the first choice that has one
  kPreempted,    // its blocks went to other sequences; the detail names cause and way
  kSuspended,    // waits with its blocks, for the time of a sleep or a pause
  kResumed,      // is scheduled again
  kInterrupted,  // was being computed when the workers were lost; the detail has the reason
  kMoved,        // from one replica to another
  kEnded,        // of the last choice; the detail has the finish reason, and the error where there is one
};
// "queued", "scheduled", "first_token", ...
const char* TrailEventName(TrailEvent event);

class RequestTrail {
 public:
  static constexpr size_t kMaxDetailBytes = 300;

  // The facts of the request that do not change.
  struct Facts {
    std::string id;     // as in the response: "cmpl-..."
    std::string model;  // as clients call it
    std::string user;   // for people; empty: nobody is named
    int32_t num_choices = 1;
    int32_t max_tokens = 0;  // of the first prompt
    int32_t priority = 0;
    int64_t prompt_tokens = 0;
  };
  struct Entry {
    TrailEvent event = TrailEvent::kQueued;
    absl::Time at;  // of the first of `count`
    int32_t count = 1;
    std::string detail;
  };
  enum class State { kWaiting, kRunning, kPreempted, kEnded };
  // A view of the trail at one moment.
  struct View {
    State state = State::kWaiting;
    std::vector<Entry> entries;
    int64_t num_dropped = 0;  // further events
    int64_t output_tokens = 0;
    int64_t num_steps = 0;  // that computed a choice, as of the last output; the sum over the choices
    int64_t num_preemptions = 0;
    // InfinitePast: the moment has not come.
    absl::Time scheduled = absl::InfinitePast();
    absl::Time first_token = absl::InfinitePast();
    absl::Time ended = absl::InfinitePast();
    std::string finish_reason;  // empty: the request is open
  };

  // Begins with kQueued at `arrival`. `max_entries`: besides the end.
  RequestTrail(Facts facts, absl::Time arrival, int32_t max_entries);

  const Facts& facts() const { return facts_; }
  absl::Time arrival() const { return arrival_; }

  // Not for kEnded. After the end nothing is noted.
  void Note(TrailEvent event, absl::string_view detail = "");
  void AddTokens(int64_t count) { output_tokens_.fetch_add(count, std::memory_order_relaxed); }
  void AddSteps(int64_t count) { num_steps_.fetch_add(count, std::memory_order_relaxed); }
  // Notes the end of the whole request, of all choices. `error` is empty where the request did not fail.
  void NoteEnd(absl::string_view finish_reason, absl::string_view error);

  View Look(bool with_entries) const;

 private:
  void Append(TrailEvent event, absl::Time now, std::string detail) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Facts facts_;
  const absl::Time arrival_;
  const size_t max_entries_;
  std::atomic<int64_t> output_tokens_{0}, num_steps_{0};
  mutable absl::Mutex mutex_;
  View view_ ABSL_GUARDED_BY(mutex_);  // output_tokens_ and num_steps_ aside
};

// "waiting", "running", "preempted" or "ended".
const char* TrailStateName(RequestTrail::State state);

}  // namespace somnus
