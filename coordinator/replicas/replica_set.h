#pragma once
// An engine that is served by several replicas: each an EngineLoop over a group of workers of its own, with
// its own scheduler and KV cache. replica_set.cc has the callers' half and what replicas tell,
// replica_set_queue.cc the queue, replica_set_expiry.cc deadlines in it, replica_set_weights.cc changes of
// the weights, replica_set_lifecycle.cc sleep, wake-up, pause and drain, replica_set_roll.cc restarts.
//
// One queue. A request that was accepted waits here, in the order of service, until a replica has room for
// it; the bounds of the queue are those of all replicas together. A replica has room while it has fewer open
// requests than it can run and an eighth more, and while what waits there is no more than two steps' budget
// and nothing that was preempted: enough for its next admissions, and no more, since what waits here can
// still go to whichever replica is free first. The router chooses among the replicas with room (router.h).
// Under the priority policy waiting improves a priority here, too, by the steps of the busiest replica. Where
// users have accounts, all replicas and this queue share them.
//
// Moves. A replica whose group is lost, or that is restarted or fails, hands its open requests over: they
// come back to the queue with the tokens that their clients were given, at their old place in the order, and
// go on at another replica, or at the same one after its recovery, with exactly the tokens of an undisturbed
// run. What a request has failed in goes along, so that one that kills workers ends after as many failures as
// it would with one replica. A request is in one place at a time: what a replica has handed over it never
// delivers for again.
//
// A replica that has failed is tried again after a pause (retry_backoff.h), while the engine is awake, and at
// the beginning of a Roll; the engine fails, for good, when all have. state() is derived from the replicas'
// (set_state.h).
//
// Ownership: owns the loops and the thread that hands requests out; executors and the observer are borrowed
// and must live until DrainAndStop, which the destructor calls without grace, has returned. Thread safety: as
// engine.h says. The turn of turns_ comes before mu_, and mu_ before a loop's own; state_mu_ is never held
// while mu_ is taken.

#include <atomic>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "base/monotonic.h"
#include "coordinator/engine/engine.h"
#include "coordinator/engine/engine_loop.h"
#include "coordinator/engine/loop_mail.h"
#include "coordinator/engine/queue_room.h"
#include "coordinator/engine/sleep_wait.h"
#include "coordinator/executor/executor.h"
#include "coordinator/replicas/call_turns.h"
#include "coordinator/replicas/retry_backoff.h"
#include "coordinator/replicas/router.h"
#include "coordinator/replicas/set_state.h"
#include "coordinator/scheduler/waiting_queue.h"

namespace somnus {

struct ReplicaOptions {
  // Equal over replicas but for residency and the number of KV blocks. The queue's bounds are those of all
  // replicas together; log_name, data_parallel_rank and hand_over are set by the set.
  EngineOptions engine;
  Executor* executor = nullptr;
};

// How replicas that have failed are tried again.
struct ReplicaRetry {
  absl::Duration first_pause = absl::InfiniteDuration();  // infinite: they are not
  absl::Duration longest_pause = absl::Minutes(10);
  // Workers that are well are replaced, too, since one of them may be the cause.
  bool restart_workers = true;
};

class ReplicaSet : public Engine {
 public:
  // At least two replicas and at most Router::kMaxReplicas. `observer` may be null; it is called on several
  // threads at once.
  ReplicaSet(std::vector<ReplicaOptions> replicas, EngineObserver* observer, const ReplicaRetry& retry = {});
  ~ReplicaSet() override;

  absl::Status SubmitAll(std::vector<EngineRequest> requests) override;
  void Abort(const std::string& request_id) override;
  EngineState state() const override { return state_.load(); }
  // Ok while one replica would serve.
  absl::Status Health() const override;
  void OnStateChange(std::function<void()> callback) override;
  EngineStats Stats() const override;
  // Atomic over replicas, too: when one returns an error, the others are brought back to what they were. A
  // replica that fails for good meanwhile is none any longer.
  absl::StatusOr<TransitionReport> Sleep(const SleepRequest& request) override;
  absl::StatusOr<TransitionReport> WakeUp(const std::vector<std::string>& tags,
                                          std::optional<bool> load_weights) override;
  using Engine::WakeUp;
  absl::StatusOr<TransitionReport> WakeForArrivals() override;
  void EndWaiting(const absl::Status& error) override;
  absl::Status Prefetch() override;
  absl::Status Pause(const PauseRequest& request) override;
  absl::Status Resume() override;
  // The same version on every replica. One replica changes first, and the others follow at once where that
  // went well. After an error that has changed something, replicas with the new version serve it, and the
  // weights of the others are stale; the error names the first replica that had one.
  absl::StatusOr<WeightsChange> ReloadWeights(const WeightsRequest& request) override;
  absl::StatusOr<std::unique_ptr<WeightUpdate>> BeginWeightUpdate(const WeightsRequest& request) override;
  absl::StatusOr<int32_t> ResizeKvCache(int32_t total_blocks) override;
  absl::Status ResetPrefixCache(bool preempt_running) override;
  PinnedPrefixes& pinned_prefixes() override { return *prefixes_; }
  absl::Status Revive(bool asleep) override;
  absl::Status Roll(absl::Duration grace) override;
  absl::Status AbortCall() override;
  void DrainAndStop(absl::Duration grace) override;
  int32_t max_model_len() const override { return smallest_.scheduler.max_model_len; }
  int32_t vocab_size() const override { return smallest_.vocab_size; }

 private:
  class ReplicaObserver;
  // An accepted request.
  struct Entry {
    int replica = -1;                            // that has it; -1: it is in the queue
    SequencePtr sequence;                        // while it is in the queue
    std::shared_ptr<UserAccounts::Visit> visit;  // null where users have no accounts
    PrefixChain chain;
    int64_t order = 0;   // of its arrival
    int64_t tokens = 0;  // what it adds to a replica's load
    bool was_scheduled = false;
    int64_t num_charged = 0;  // as RequestProgress has it
    bool aborted = false;
  };
  struct Replica {
    std::unique_ptr<ReplicaObserver> observer;
    std::unique_ptr<EngineLoop> loop;
    // Under mu_.
    int64_t load = 0;  // tokens of the requests there: of their prompts, and what they had when they came
    int64_t num_open = 0;
    int64_t num_requests = 0;
    bool is_rolling = false;
    RetryBackoff retry;
  };
  // A request that ends in the queue.
  struct Ending {
    EngineRequest request;
    FinishReason reason;
    absl::Status error;
    std::optional<ExpiryCause> expired;
  };

  // What replicas tell, each on its loop's thread.
  void OnRequestScheduled(const EngineRequest& request);
  void OnRequestEnded(const EngineRequest& request);
  void OnHandOver(std::vector<EngineRequest> requests);
  void OnReplicaStateChange(size_t replica);

  // The queue.
  void Run();
  void InsertQueued(EngineRequest request, Entry* entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  EngineRequest TakeQueued(Entry* entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void HandOut() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::vector<Router::Candidate> Candidates() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The request that is handed out next; null: there is none.
  SequencePtr NextQueued() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Charges a user for a prompt when it is handed out, so that the next choice already knows of it.
  void Charge(int replica, Entry* entry) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool HasRoom(const Replica& replica) const;
  std::vector<Ending> TakeEndings() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Time: replica_set_expiry.cc.
  bool NeedsFirstToken(const Entry& entry, const EngineRequest& request) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  MonotonicTime ExpiryOf(const Entry& entry, const EngineRequest& request) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool IsHopeless(const Entry& entry) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void TakeExpired(std::vector<Ending>* endings) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void TakeHopeless(std::vector<Ending>* endings) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Ending EndExpired(const std::string& id, ExpiryCause cause) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Ending EndQueued(const std::string& id, FinishReason reason, const absl::Status& error)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Deliver(Ending ending);
  // Waits for `condition`, which is asked again after every NoteChange, at most for `timeout` of a monotonic
  // clock (absl::Mutex would wait by wall time). The lock is free meanwhile.
  void AwaitFor(const std::function<bool()>& condition, absl::Duration timeout)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void NoteChange() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  int64_t NumPreempted() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  int64_t StepClock() const;

  // Lifecycle.
  class CallScope;
  class Update;
  using Results = std::vector<absl::StatusOr<TransitionReport>>;  // by replica
  using ReplicaCall = std::function<absl::StatusOr<TransitionReport>(EngineLoop*, size_t)>;
  // Lifecycle calls are done one after the other. One that `ends_waits` ends the wait of the one before it.
  class LifecycleLock {
   public:
    // `name`: as of LifecycleCallStats.
    LifecycleLock(ReplicaSet* set, const char* name, bool ends_waits);
    ~LifecycleLock();
    LifecycleLock(const LifecycleLock&) = delete;
    // Ok once this call has its turn. Cancelled: the call's client left before.
    const absl::Status& status() const { return status_; }
    // Gives the turn to further calls, until Take; to be called while status() is ok.
    void Give();
    absl::Status Take();

   private:
    void Interrupt(int64_t count);
    ReplicaSet* const set_;
    const char* const name_;
    absl::Status status_;
  };
  void UpdateState();
  // Weights: replica_set_weights.cc.
  // What each replica is asked for; open requests have been settled.
  WeightsRequest OfEveryReplica(const WeightsRequest& request) const;
  // Those that have not failed; an error where there are none. The first one decides whether the others are
  // asked, so that those whose recovery may fail yet come last.
  absl::StatusOr<std::vector<size_t>> LiveReplicas() const;
  // Of one that serves beside the replica, else its own.
  Weights WeightsOfOthers(size_t replica) const;
  // Nothing may be served from what the replica has.
  void MakeStale(size_t replica);
  // Every replica that has not failed did, and one has not.
  bool GaveUpStaleWeights() const;
  void NoteWeights(bool updates, MonotonicTime began);
  // ResourceExhausted: the memory does not suffice for what sleeps of these tags on all replicas together.
  absl::Status CheckMemoryToWake(const std::vector<std::string>& tags);
  absl::StatusOr<TransitionReport> WakeReplicas(const std::vector<std::string>& tags,
                                                const ReplicaCall& call);
  // Ends open requests as the mode says, those in the queue and those of the replicas. Aborted: another call
  // has ended the wait.
  absl::Status SettleOpenRequests(SleepMode mode);
  void NoteEnded(const Entry& entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool IsHeldBack(int64_t order) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return order >= hold_back_from_; }
  // Calls the observer, if the transition has changed anything.
  void NoteTransition(bool wakes, MonotonicTime began, const TransitionReport& report);
  std::vector<bool> All() const { return std::vector<bool>(replicas_.size(), true); }
  // Calls the chosen replicas that have not failed, all at once.
  Results CallReplicas(const std::vector<bool>& chosen, const ReplicaCall& call);
  // The report over all replicas, or the first error of one that has not failed; with what all of them lack
  // where memory is missing.
  absl::StatusOr<TransitionReport> Sum(const Results& results) const;
  // Makes `call` for the replicas whose result is ok and that `choose` names. Returns `error`, the reason for
  // the undoing, and adds which replicas could not be brought back.
  absl::Status Undo(const absl::Status& error, const Results& results,
                    const std::function<bool(size_t)>& choose, const ReplicaCall& call);
  // Whether the sleep would lose weights that no file has.
  bool LosesOnlyCopy(const SleepSpec& spec) const;
  // Waits as AwaitFor; ok also after `timeout`. An error: an operator or the end of the server has ended the
  // wait, or the client of this thread's call has left.
  absl::Status AwaitInCall(const std::function<bool()>& condition, absl::Duration timeout)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::vector<Residency> Residencies() const;
  std::vector<std::optional<int64_t>> ShareKeptBytes(std::optional<int64_t> max_kept_bytes) const;
  absl::Status CheckLifecycle() const;
  // Tries the replicas again whose time has come. Returns how long until the next one's.
  absl::Duration RetryFailed();
  // Tries the replica once more, and waits for the outcome.
  absl::Status ReviveAndWait(size_t replica);
  // Ends when no replica recovers. An error: the engine drains.
  absl::Status AwaitSettled() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Ends when the replica has no open request, or `grace` after it got the last one. An error when it must
  // not be restarted now.
  // Further lifecycle calls have their turn meanwhile.
  absl::Status Empty(size_t replica, absl::Duration grace, LifecycleLock* lifecycle);
  absl::Status MayEmpty(size_t replica) const;
  absl::Status RollOne(size_t replica, absl::Duration grace, LifecycleLock* lifecycle);
  absl::Status RollAll(absl::Duration grace, LifecycleLock* lifecycle);
  bool AnotherServes(size_t replica) const;
  bool NobodyServes() const;
  std::string Errors() const;
  // Stats without the members that mu_ guards.
  EngineStats StatsOfReplicas() const;

  const EngineOptions smallest_;  // what every replica can serve
  const ReplicaRetry retry_;
  EngineObserver* const observer_;
  std::vector<Replica> replicas_;  // the vector itself does not change after the constructor
  std::unique_ptr<PinnedPrefixes> prefixes_;

  LoopMail mail_;                        // wakes the thread that hands out
  std::atomic<bool> has_queued_{false};  // the queue is not empty
  CallTurns turns_;                      // of lifecycle calls, a single call at a time
  mutable absl::Mutex mu_;
  QueueRoom room_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<std::string, Entry> entries_ ABSL_GUARDED_BY(mu_);
  WaitingQueue queue_ ABSL_GUARDED_BY(mu_);
  Router router_ ABSL_GUARDED_BY(mu_);
  std::vector<std::string> aborted_ ABSL_GUARDED_BY(mu_);   // in the queue
  absl::Status refusal_ ABSL_GUARDED_BY(mu_);               // an error ends the queued requests
  std::vector<std::string> unjudged_ ABSL_GUARDED_BY(mu_);  // new ones with a time for their first token
  MonotonicTime next_expiry_ ABSL_GUARDED_BY(mu_) = absl::InfiniteDuration();  // of the queue, or earlier
  int64_t next_order_ ABSL_GUARDED_BY(mu_) = 1;
  int64_t num_queued_again_ ABSL_GUARDED_BY(mu_) = 0;  // of the queue, those that were scheduled before
  int64_t num_moved_ ABSL_GUARDED_BY(mu_) = 0;
  // While a call waits for the requests that were open when it came: those from hold_back_from_ on stay in
  // the queue, and num_awaited_ of the others have not ended.
  int64_t hold_back_from_ ABSL_GUARDED_BY(mu_) = std::numeric_limits<int64_t>::max();
  int64_t num_awaited_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t num_interruptions_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t num_aborts_ ABSL_GUARDED_BY(mu_) = 0;             // of waits, by operators, since start
  int32_t num_waits_ ABSL_GUARDED_BY(mu_) = 0;              // calls of AwaitInCall under way
  bool rolls_ ABSL_GUARDED_BY(mu_) = false;                 // a roll is under way
  LifecycleCallStats lifecycle_call_ ABSL_GUARDED_BY(mu_);  // of the call that has the turn
  LifecycleCallStats roll_call_ ABSL_GUARDED_BY(mu_);       // of the roll, also without the turn
  bool draining_ ABSL_GUARDED_BY(mu_) = false;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;  // what is in the queue ends
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  std::shared_ptr<StopSignal> changed_ ABSL_GUARDED_BY(mu_);  // stopped by NoteChange; null: nobody waits

  std::atomic<EngineState> state_;  // written under state_mu_
  absl::Mutex state_mu_;
  SetCall call_ ABSL_GUARDED_BY(state_mu_) = SetCall::kNone;
  bool state_drains_ ABSL_GUARDED_BY(state_mu_) = false;
  std::function<void()> on_state_change_ ABSL_GUARDED_BY(state_mu_);

  mutable absl::Mutex wait_mu_;  // never held for long
  SleepWait sleep_wait_ ABSL_GUARDED_BY(wait_mu_);
  StateHistory history_ ABSL_GUARDED_BY(wait_mu_);

  absl::Mutex join_mu_;
  std::thread thread_ ABSL_GUARDED_BY(join_mu_);
};

}  // namespace somnus
