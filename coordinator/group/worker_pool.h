#pragma once
// The processes that a group's ranks run in: who has which rank now, who is lost, and who takes the place of
// a lost worker. Local workers are started by this class, or adopted with --run-dir when a killed coordinator
// has left them; remote workers come by themselves.
//
// Ownership: owns the workers' processes and the listener of registrations; Stop and the destructor end local
// workers. Thread safety: Start, Record, ReplaceLost, Discard, DiscardAbsent, Survivors and Await are for one
// thread at a time; Interrupt and Members are for any.

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "base/monotonic.h"
#include "coordinator/executor/worker_link.h"
#include "coordinator/executor/worker_process.h"
#include "coordinator/flags/flags.h"
#include "coordinator/group/left_workers.h"
#include "coordinator/group/run_state.h"
#include "coordinator/membership/adoption.h"
#include "coordinator/membership/cluster_server.h"
#include "proto/cluster_trust.h"

namespace somnus {

class WorkerPool {
 public:
  // on_loss and on_stall are called on threads of the pool and must not block. A loss: a process ended, or a
  // member has sent no heartbeat for too long; the status names the rank. A stall: as of
  // ClusterServer::OnStall.
  struct Callbacks {
    std::function<void(const absl::Status&)> on_loss;
    std::function<void(const absl::Status&)> on_stall;
  };

  WorkerPool(const Flags& flags, Callbacks callbacks);
  ~WorkerPool() { Stop(); }
  WorkerPool(const WorkerPool&) = delete;

  // Opens the listener and starts local workers, without waiting for their registration. With --run-dir Start
  // waits up to a second for workers that an earlier coordinator left, and starts the rest; `group` is as for
  // RunState. `terms` says which workers may keep weights and memory; its build_id is filled in for local
  // workers. The error names the flag or the address at fault.
  absl::Status Start(AdoptionTerms terms, const v1::GroupFile& group);
  const std::string& cluster_address() const { return cluster_->address(); }
  // Whether an earlier coordinator has left the workers of all ranks, with weights and memory. After Start.
  bool adopted() const;
  // The last known epoch of an earlier coordinator or a member: new epochs must be later.
  int64_t last_epoch() const;
  // Writes down, for a later coordinator, that `group_epoch` begins, and the processes that run. Does nothing
  // without --run-dir.
  void Record(int64_t group_epoch);
  // As DecideAdoption, for a member that registered with a snapshot and has the snapshot `now`. Ok for
  // members that registered without a snapshot, and for a member without weights.
  absl::Status CheckHeld(size_t rank, const v1::WorkerSnapshot& now) const;
  // Makes room for a new worker in the place of every lost worker, and starts the new worker where it is
  // local. A local process that still runs is killed first, and has ended before the successor starts, so
  // that memory is free. `starts_refused`: also for a worker that never came, where the successor would end
  // alike; otherwise that worker's end is the error. As long as the group has never served, a local worker is
  // started `max_starts` times at most; then the end of the last process is the error.
  absl::Status ReplaceLost(bool starts_refused, int max_starts);
  // Ends local workers; all must have been discarded. Places stay empty until ReplaceLost.
  absl::Status EndDiscarded();
  // The rank's worker is of no use any longer. The worker counts as lost from now on.
  void Discard(size_t rank, const absl::Status& reason);
  // From now on every end of a worker that had come is a loss, and so is the end of a worker that refuses to
  // run: a new worker can take the place. Before, an end that would recur is an error of the start.
  void NoteServing();
  // Discards the workers that were started for ranks that had lost their worker, and that have not
  // registered.
  void DiscardAbsent(const absl::Status& reason);
  // The workers that Await returned before and that are still there, with their ranks.
  std::vector<std::pair<size_t, WorkerLink>> Survivors() const;
  // Waits until every rank has a worker, and returns them by rank; survivors keep their connections. A loss
  // ends the wait with its status. DeadlineExceeded says how many came in time.
  absl::StatusOr<std::vector<WorkerLink>> Await(absl::Duration timeout);
  // The reason of a loss without a replacement yet, or ok.
  absl::Status Loss() const;

  // Ends Await, now and from now on.
  void Interrupt(const absl::Status& reason);
  // By rank, as registered; empty before the first Await has returned.
  std::vector<v1::RegisterRequest> Members() const;
  // How many workers have registered and were not lost. On any thread.
  int NumCome() const {
    absl::MutexLock lock(&mu_);
    if (cluster_ == nullptr) return 0;
    const auto members = cluster_->Members();
    return static_cast<int>(
        std::count_if(members.begin(), members.end(), [](const auto& member) { return member.has_value(); }));
  }
  // No callback runs afterwards; ends local workers by SIGTERM and at last by SIGKILL. Idempotent.
  void Stop();
  // As Stop, but local workers stay for the next coordinator, as after a kill of this coordinator.
  void Leave();

 private:
  struct Place {
    v1::RegisterRequest member;  // an empty worker_id: nobody has the rank yet
    WorkerLink link;
    absl::Status loss;
    pid_t replaced_pid = 0;  // the previous local process, whose end may be reported late
    int num_starts = 1;      // of local processes for the place, since the last registration
  };

  absl::StatusOr<std::string> FindBinary() const;
  // Ends the rank's process, and removes the process's socket.
  absl::Status EndProcess(int rank);
  absl::Status StartProcesses(const std::string& binary, const std::string& secret);
  // Decides about a worker that registers with a snapshot; on a gRPC thread.
  Adoption Decide(const v1::RegisterRequest& worker);
  // Waits for the left workers. Returns the workers that go on; all other left workers have ended.
  absl::StatusOr<ProcessesByRank> AwaitLeft();
  void OnExit(int rank, pid_t pid, const absl::Status& status);
  void OnSilence(const SilentMember& silent);
  // `is_current` is asked under mu_: whether the report is about the worker that has the place now.
  void NoteLoss(size_t rank, absl::Status status, const std::function<bool()>& is_current);
  absl::Status SettleDevices(std::vector<v1::RegisterRequest>* members) const;
  void EndCallbacks();
  void CloseListener();

  const Flags flags_;
  const Callbacks callbacks_;
  ClusterTrust trust_;                          // set by Start
  AdoptionTerms terms_;                         // set before the listener is opened
  std::unique_ptr<RunState> run_state_;         // null without --run-dir
  LeftWorkers left_workers_;                    // expected by Start, before the listener is opened
  std::unique_ptr<ClusterServer> cluster_;      // set and reset under mu_
  std::unique_ptr<WorkerProcesses> processes_;  // null where workers are remote; set and reset under mu_

  mutable absl::Mutex mu_;
  std::vector<Place> places_ ABSL_GUARDED_BY(mu_);  // by rank
  absl::Status interruption_ ABSL_GUARDED_BY(mu_);
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  bool serving_ ABSL_GUARDED_BY(mu_) = false;  // NoteServing was called
};

}  // namespace somnus
