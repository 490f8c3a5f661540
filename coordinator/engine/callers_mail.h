#pragma once
// The mail of callers for an engine loop: requests, aborts of requests, lifecycle commands, aborts of the
// command under way, and the order to end.
//
// Admission. The bounds of the queue and the ids of open requests are kept here, under the lock that guards
// the mail, and the engine's state is read under the same lock: a request that is accepted reaches the loop,
// also where the state changes at the same moment. So a loop that has left a state finds every request that
// was accepted in that state by taking the requests afterwards.
//
// Thread safe. Callers' functions wake the loop by `signal`. The lock may be held while the board's is taken,
// never the other way round.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/monotonic.h"
#include "coordinator/engine/engine_board.h"
#include "coordinator/engine/lifecycle_command.h"
#include "coordinator/engine/loop_mail.h"
#include "coordinator/engine/queue_room.h"
#include "coordinator/request/request.h"

namespace somnus {

class CallersMail {
 public:
  // Gets the answer to an AbortCall, on the loop thread.
  using AbortReply = std::function<void(absl::Status)>;
  struct Arrived {
    std::vector<EngineRequest> requests;
    std::vector<std::string> aborted;  // ids of requests
    std::vector<std::shared_ptr<LifecycleCommand>> commands;
    std::vector<AbortReply> call_aborts;
    bool draining = false;
  };
  // The requests that are open, as far as admission knows.
  struct Queue {
    int64_t num_open = 0;
    int32_t num_arrived = 0;     // that the loop has not taken yet
    int64_t waiting_tokens = 0;  // of prompts that were never scheduled
    std::optional<absl::Time> oldest_arrival;
  };

  CallersMail(const QueueLimits& limits, EngineBoard* board, LoopMail* signal)
      : board_(board), signal_(signal), room_(limits) {}

  // For callers. Requests must have passed EngineLoop::CheckRequests, and have their queued_bytes.
  absl::Status Submit(std::vector<EngineRequest> requests);
  // As EngineLoop::Offer.
  bool Offer(EngineRequest* request);
  void Abort(const std::string& request_id);
  // Unavailable: the loop has stopped.
  absl::Status Send(std::shared_ptr<LifecycleCommand> command);
  absl::Status SendCallAbort(AbortReply reply);
  // Sends the command by which a failed engine begins again, and changes the engine's state, which the caller
  // has to report. False, and nothing happens: EngineBoard::BeginRevival has refused, or the engine ends.
  bool SendRevival(std::shared_ptr<LifecycleCommand> command);
  // The loop shall end once no request is open, at the latest at `deadline`. Returns whether the engine's
  // state has changed; the caller has to report the change.
  bool Drain(MonotonicTime deadline);
  // Returns false where the loop has not stopped after `duration`.
  bool AwaitStop(absl::Duration duration) const { return stop_.WaitFor(duration); }
  // The engine was told to end, or has ended.
  bool ends() const;
  Queue queue() const;

  // For the loop.
  Arrived Take();
  // The requests that have arrived since Take.
  std::vector<EngineRequest> TakeRequests();
  // As TakeRequests. All ids are free afterwards, and the queue is empty: open requests go elsewhere.
  std::vector<EngineRequest> HandOver();
  bool has_requests() const;
  // Infinite while the engine does not drain.
  MonotonicTime drain_deadline() const;
  // `request` was scheduled for the first time.
  void NoteScheduled(const EngineRequest& request);
  // `request` has ended; `was_scheduled`: at some time.
  void Forget(const EngineRequest& request, bool was_scheduled);
  // No command is accepted any more.
  void Stop();

 private:
  EngineBoard* const board_;
  LoopMail* const signal_;

  mutable absl::Mutex mu_;
  QueueRoom room_ ABSL_GUARDED_BY(mu_);
  Arrived arrived_ ABSL_GUARDED_BY(mu_);
  MonotonicTime drain_deadline_ ABSL_GUARDED_BY(mu_) = absl::InfiniteDuration();
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  StopSignal stop_;
};

}  // namespace somnus
