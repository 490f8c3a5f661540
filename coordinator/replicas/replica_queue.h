#pragma once
// The common queue of an engine's replicas: all accepted requests, and for each request whether it
// waits or which replica has it.
//
// An accepted request waits here, in the order of service, until a replica has room (replica_places.h); the
// bounds of the queue are the bounds of all replicas together. Under the priority policy waiting improves a
// priority here as in a scheduler, by the steps of the busiest replica. Where users have accounts, all
// replicas and the queue share the accounts.
//
// Invariant. An accepted request is in one place: in the queue, or at the one replica that its entry names.
// The entry names the replica before the replica gets the request, since the replica may report of the
// request at once. A request that a replica has handed over is in the queue again, at the old place in the
// order.
//
// Thread safe, but TakePass and WaitFor are for the set's thread alone. mu_ is taken before the locks of the
// loops.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "base/monotonic.h"
#include "coordinator/engine/engine_options.h"
#include "coordinator/engine/engine_view.h"
#include "coordinator/engine/loop_mail.h"
#include "coordinator/engine/queue_room.h"
#include "coordinator/replicas/accepted_request.h"
#include "coordinator/replicas/awaited_requests.h"
#include "coordinator/replicas/queue_deadlines.h"
#include "coordinator/replicas/replica_loops.h"
#include "coordinator/replicas/replica_places.h"
#include "coordinator/replicas/set_board.h"
#include "coordinator/request/expiry.h"
#include "coordinator/scheduler/waiting_queue.h"

namespace somnus {

class ReplicaQueue {
 public:
  // A request that ends in the queue, for delivery.
  struct Ending {
    EngineRequest request;
    FinishReason reason;
    absl::Status error;
    std::optional<ExpiryCause> expired;
  };
  // The result of a pass over the queue.
  struct Pass {
    std::vector<Ending> endings;
    MonotonicTime next_expiry;
    bool stopped = false;  // the queue has stopped: this was the last pass
  };
  // The life of the queue; stages follow in this order.
  enum class Stage {
    kOpen,
    kClosed,   // no request is accepted
    kEnding,   // queued requests end, and no replica gets a request
    kStopped,  // the next pass is the last pass
  };

  // `options`: what every replica can serve. `max_blocks`: as of ReplicaPlaces. The pointers are borrowed.
  ReplicaQueue(const EngineOptions* options, int64_t max_blocks, const ReplicaLoops* loops,
               const SetBoard* board, size_t num_replicas);
  ReplicaQueue(const ReplicaQueue&) = delete;

  // Accepts all of `requests`, which have passed EngineLoop::CheckRequests, or none. Unavailable: the queue
  // is closed; other errors as of QueueRoom::Check.
  absl::Status Submit(std::vector<EngineRequest> requests);
  void Abort(const std::string& id);

  // The replicas' reports, on their loops' threads.
  void NoteScheduled(const EngineRequest& request);
  void NoteEnded(const EngineRequest& request);
  void TakeBack(std::vector<EngineRequest> requests);
  // The prefix cache of one replica, or of all replicas, is empty.
  void NoteCacheEmpty(size_t replica);
  void NoteCachesEmpty();

  // One pass: ends requests whose time or whose engine is over, and hands out requests to replicas.
  Pass TakePass();
  // Ends the wait of WaitFor that is under way, or the next wait.
  void Wake() { mail_.Wake(); }
  // The same, where a request is in the queue.
  void WakeIfQueued();
  void WaitFor(absl::Duration duration) { mail_.WaitFor(duration); }

  // Every request in the queue ends with `error`.
  void Refuse(const absl::Status& error);
  // While `held_off`, the replica gets no request.
  void HoldOff(size_t replica, bool held_off);
  // From now on later requests stay in the queue. Returns the ids of all open requests, in order of arrival.
  std::vector<std::string> HoldBackLater();
  void EndHoldBack();
  void SetStage(Stage stage);

  // Open requests when HoldBackLater was called that have not ended.
  int64_t num_awaited() const;
  int64_t num_open() const;
  int64_t num_open(size_t replica) const;
  bool ends() const;  // the stage is kEnding or later
  // Adds what the queue knows to the sum over replicas. Returns the arrival of the oldest open request.
  std::optional<absl::Time> AddTo(EngineStats* stats) const;
  // The first `most` requests in the queue, in the order of service.
  std::vector<RequestView> View(int32_t most) const;

 private:
  void Insert(EngineRequest request, AcceptedRequest* entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  EngineRequest Take(AcceptedRequest* entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void HandOut() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The request that is handed out next; null: there is none.
  SequencePtr Next() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Charges a user for a prompt when the prompt is handed out, so that the next choice already knows.
  void Charge(int replica, AcceptedRequest* entry) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Ending End(const std::string& id, FinishReason reason, const absl::Status& error)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Ending Expire(const std::string& id, ExpiryCause cause) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::vector<Ending> TakeEndings() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Why all queued requests end now; ok at the end of the server. Not set: the requests wait on.
  std::optional<absl::Status> WhyAllEnd() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Time for aging, in steps.
  int64_t StepClock() const;

  const EngineOptions& options_;
  const ReplicaLoops& loops_;
  const SetBoard& board_;

  LoopMail mail_;                        // wakes the set's thread
  std::atomic<bool> has_queued_{false};  // the queue is not empty
  mutable absl::Mutex mu_;
  Stage stage_ ABSL_GUARDED_BY(mu_) = Stage::kOpen;
  QueueRoom room_ ABSL_GUARDED_BY(mu_);
  AcceptedRequests accepted_ ABSL_GUARDED_BY(mu_);
  WaitingQueue waiting_ ABSL_GUARDED_BY(mu_);
  ReplicaPlaces places_ ABSL_GUARDED_BY(mu_);
  QueueDeadlines deadlines_ ABSL_GUARDED_BY(mu_);
  AwaitedRequests awaited_ ABSL_GUARDED_BY(mu_);
  std::vector<std::string> aborted_ ABSL_GUARDED_BY(mu_);  // of the queue, to be ended by the next pass
  absl::Status refusal_ ABSL_GUARDED_BY(mu_);              // an error ends the queued requests
  int64_t next_order_ ABSL_GUARDED_BY(mu_) = 1;
  int64_t num_queued_again_ ABSL_GUARDED_BY(mu_) = 0;  // in the queue, and scheduled before
  int64_t num_moved_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace somnus
