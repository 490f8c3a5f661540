#pragma once
// The open requests of an engine loop on their way through the scheduler: each comes in by Add, gets outputs,
// and leaves with exactly one output that has a finish_reason, or by HandOver.
//
// Time. A request ends at its deadline, and is refused where its first token would come too late, by the
// prompts ahead of the request and by the speed of prompts. Statistics are published before the last output
// of a request, so that a client that has the output finds the request's blocks free, and observers are
// called before the sink, so that metrics count the request.
//
// The scheduler is the loop's; the class keeps how long requests have waited. Borrows everything; for the
// loop thread.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/monotonic.h"
#include "coordinator/engine/callers_mail.h"
#include "coordinator/engine/engine_observer.h"
#include "coordinator/engine/engine_options.h"
#include "coordinator/engine/group_holdings.h"
#include "coordinator/engine/recovery_book.h"
#include "coordinator/request/expiry.h"
#include "coordinator/scheduler/scheduler.h"

namespace somnus {

class LoopRequests {
 public:
  // The parts of the loop that requests meet.
  struct Parts {
    const EngineOptions& options;
    Scheduler& scheduler;
    const GroupHoldings& holdings;
    const RecoveryBook& recovery;
    EngineObserver& observer;
    EngineBoard& board;
    CallersMail& mail;
  };
  // `publish` publishes the loop's statistics.
  LoopRequests(const Parts& parts, std::function<void()> publish)
      : parts_(parts), publish_(std::move(publish)) {}

  // Gives requests to the scheduler, and refuses requests whose first token would come too late, or whose
  // adapter was dropped.
  void Add(std::vector<EngineRequest> requests);
  // Client's word; unknown ids are ignored.
  void Abort(const std::string& id);
  void EndExpired(MonotonicTime now);
  // Ends the requests whose adapter a recovery has dropped.
  void EndWithoutAdapter();
  // Requests that were in flight at a loss may be its cause: ends the requests that were in flight at too
  // many losses, of which `reason` is the last. The scheduler has the sequences again (Scheduler::Recover).
  void EndSuspects(const std::vector<SequencePtr>& suspects, const absl::Status& reason);
  void EndAll(FinishReason reason, const absl::Status& error = absl::OkStatus());
  void End(const SequencePtr& sequence, FinishReason reason, const absl::Status& error);
  // `now`: of the wall clock.
  void Deliver(SequenceOutput output, absl::Time now);
  void NoteFirstScheduled(const std::vector<SequencePtr>& sequences);
  // Gives all open requests, also requests that have just arrived, to options.hand_over, where there is one.
  // No step may be in flight.
  void HandOver();

  // The scheduler's figures, and how long requests have waited.
  void Publish(EngineStats* stats) const;

 private:
  bool IsHopeless(const Sequence& sequence);
  // The ranks do not hold the adapter of the sequence.
  bool LacksAdapter(const Sequence& sequence) const;
  void EndWithoutAdapter(const SequencePtr& sequence);
  void EndExpired(const ExpiredSequence& expired);

  const Parts parts_;
  const std::function<void()> publish_;
  int64_t num_first_scheduled_ = 0;  // requests that have begun
  absl::Duration queue_time_;        // the sum of the times that these requests have waited
};

}  // namespace somnus
