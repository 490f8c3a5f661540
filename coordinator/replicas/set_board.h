#pragma once
// The published state of an engine with replicas: the state, the time of its last change, and the snapshot.
//
// The state is derived from the states of the replicas, from the lifecycle call under way and from draining
// (set_state.h), and stored so that readers wait for nobody. Thread safe. No caller needs to hold a lock, and
// the callback runs under state_mu_: code that holds a lock which the callback may take must not call in.

#include <atomic>
#include <functional>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "coordinator/engine/engine_options.h"
#include "coordinator/engine/engine_stats.h"
#include "coordinator/engine/sleep_wait.h"
#include "coordinator/engine/state_history.h"
#include "coordinator/replicas/replica_loops.h"
#include "coordinator/replicas/set_state.h"

namespace somnus {

class SetBoard {
 public:
  // Both are borrowed.
  SetBoard(const EngineOptions* options, const ReplicaLoops* loops) : options_(*options), loops_(*loops) {}
  SetBoard(const SetBoard&) = delete;

  EngineState state() const { return state_; }
  // As Engine::OnStateChange.
  void OnStateChange(std::function<void()> callback);

  // The lifecycle call of the whole engine that is under way from now on.
  void NoteCall(SetCall call);
  // The engine drains from now on.
  void NoteDrain();
  // Derives the state again; to be called after each change of a replica's state.
  void Update();

  // The sum over replicas (replica_stats.h).
  EngineStats Stats() const;
  // How long the oldest open request, which came at `arrival`, has waited for memory that sleeps.
  absl::Duration OldestWait(std::optional<absl::Time> arrival) const;

 private:
  void UpdateLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_mu_);

  const EngineOptions& options_;
  const ReplicaLoops& loops_;

  std::atomic<EngineState> state_{EngineState::kLoading};  // written under state_mu_
  absl::Mutex state_mu_;
  SetCall call_ ABSL_GUARDED_BY(state_mu_) = SetCall::kNone;
  bool drains_ ABSL_GUARDED_BY(state_mu_) = false;
  std::function<void()> on_change_ ABSL_GUARDED_BY(state_mu_);

  mutable absl::Mutex wait_mu_;  // never held for long; taken after state_mu_
  SleepWait sleep_wait_ ABSL_GUARDED_BY(wait_mu_);
  StateHistory history_ ABSL_GUARDED_BY(wait_mu_);
};

}  // namespace somnus
