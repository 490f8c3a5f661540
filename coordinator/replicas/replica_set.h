#pragma once
// An engine that several replicas serve: each replica is an EngineLoop over a group of workers of its own,
// with its own scheduler and KV cache.
//
// ReplicaSet is the engine's public face, and owns the parts and the thread that hands requests out:
//
//   replica_loops.h    the loops, and the events that the loops report
//   replica_queue.h    accepted requests: the common queue, limits, deadlines, and the choice of a replica
//   set_board.h        the state and the snapshot (set_state.h, replica_stats.h)
//   call_turns.h       the turns of lifecycle calls, in order
//   call_waits.h       the waits of lifecycle calls, and the ends of waits
//   commands/          lifecycle requests over all replicas, with undoing: an object for each
//                      (replica_command.h; set_call.h, replica_calls.h)
//   replica_revival.h  failed replicas are tried again
//   replica_roll.h     the replicas are restarted in turn
//
// Moves. A replica whose group is lost, or that is restarted or fails, hands its open requests over. The
// requests come back to the queue with the tokens that their clients were given, at their old place in the
// order, and go on at another replica, or at the same replica after its recovery, with exactly the tokens of
// an undisturbed run. The failures that a request was in go along, so that a request that kills workers ends
// after as many failures as with one replica. The engine fails, for good, when all replicas have failed.
//
// Ownership: executors and the observer are borrowed and must live until DrainAndStop, which the destructor
// calls without grace, has returned. Thread safety: as engine.h says. Lock order: the turn of a call, then
// the lock of the queue or of the revival, then a loop's own. The locks of the board, of the waits and of the
// turns are taken last: no part calls out under these locks, but for the callback of OnStateChange.

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "coordinator/engine/engine.h"
#include "coordinator/engine/pinned_prefixes.h"
#include "coordinator/replicas/call_turns.h"
#include "coordinator/replicas/call_waits.h"
#include "coordinator/replicas/replica_loops.h"
#include "coordinator/replicas/replica_options.h"
#include "coordinator/replicas/replica_queue.h"
#include "coordinator/replicas/replica_revival.h"
#include "coordinator/replicas/replica_roll.h"
#include "coordinator/replicas/set_board.h"
#include "coordinator/replicas/set_parts.h"

namespace somnus {

class ReplicaSet : public Engine, private ReplicaEvents {
 public:
  // At least two replicas and at most Router::kMaxReplicas. `observer` may be null; the observer is called
  // on several threads at once.
  ReplicaSet(std::vector<ReplicaOptions> replicas, EngineObserver* observer, const ReplicaRetry& retry = {});
  ~ReplicaSet() override;

  absl::Status SubmitAll(std::vector<EngineRequest> requests) override;
  void Abort(const std::string& request_id) override;
  EngineState state() const override { return board_.state(); }
  // Ok while a replica would serve.
  absl::Status Health() const override;
  void OnStateChange(std::function<void()> callback) override;
  EngineStats Stats() const override;
  EngineViews View() override;
  // Lifecycle requests are atomic over replicas, too (commands/).
  LifecycleResult Run(const LifecycleRequest& request) override;
  PinnedPrefixes& pinned_prefixes() override { return *prefixes_; }
  void DrainAndStop(absl::Duration grace) override;
  int32_t max_model_len() const override { return smallest_.scheduler.max_model_len; }
  int32_t vocab_size() const override { return smallest_.vocab_size; }

 private:
  // The lifecycle requests that take no turn.
  absl::Status PrefetchAll();
  absl::Status AbortCalls();

  // ReplicaEvents, on the threads of the loops.
  void OnReplicaStep() override { queue_.WakeIfQueued(); }
  void OnRequestScheduled(const EngineRequest& request) override { queue_.NoteScheduled(request); }
  void OnRequestEnded(const EngineRequest& request) override;
  void OnHandOver(std::vector<EngineRequest> requests) override;
  void OnReplicaStateChange(size_t replica) override;

  // The thread that hands requests out, and delivers the ends of requests in the queue.
  void RunQueue();
  void Deliver(ReplicaQueue::Ending ending);

  const EngineOptions smallest_;  // what every replica can serve
  EngineObserver* const observer_;
  ReplicaLoops loops_;
  SetBoard board_;
  ReplicaQueue queue_;
  CallWaits waits_;
  CallTurns turns_;
  const SetParts parts_;               // the members above
  std::vector<HeldAdapter> adapters_;  // of every replica; for commands that have their turn
  ReplicaRevival revival_;
  ReplicaRoll roll_;
  std::unique_ptr<PinnedPrefixes> prefixes_;

  absl::Mutex join_mu_;
  std::thread thread_ ABSL_GUARDED_BY(join_mu_);
};

}  // namespace somnus
