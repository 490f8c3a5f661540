#pragma once
// The epoch that a rank is in: which requests the rank serves, the group that its collectives run in, and the
// failures that end the epoch.
//
// Owns the fence, the lifecycle, the communicator and the masks of steps that wait for their step. An epoch
// begins twice: Announce, on any thread, refuses requests of older epochs from then on; Begin, on the runner
// thread, drops the group once the work of older epochs has ended.
//
// Thread safety: as marked below. Only the runner thread makes, uses and destroys the group, because a group
// on GPUs needs the device that is current on that thread.

#include <cstdint>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "proto/worker.pb.h"
#include "worker/comm/epoch_communicator.h"
#include "worker/epoch_fence.h"
#include "worker/join_ranks.h"
#include "worker/lifecycle.h"
#include "worker/mask_inbox.h"

namespace somnus {

class WorkerLoad;

class WorkerEpoch {
 public:
  // On any thread:

  // Refuses requests of older epochs from now on, and aborts the group of an older epoch. Errors as
  // EpochFence::Begin.
  absl::Status Announce(int64_t epoch);
  absl::Status Check(int64_t epoch) const { return fence_.Check(epoch); }
  absl::Status CheckShutdown(int64_t epoch) const { return fence_.CheckShutdown(epoch); }
  absl::Status Admit(int64_t epoch) { return fence_.Admit(epoch); }
  int64_t announced() const { return fence_.epoch(); }
  // Opens the rank's ports on listen_host, or makes NCCL's unique id. Needs no device, and therefore not the
  // runner thread.
  absl::StatusOr<v1::NewGroupResponse> NewGroup(const v1::NewGroupRequest& request);
  // Ends the collectives of the group, and the wait for masks.
  void AbortUpTo(int64_t epoch, const std::string& reason);
  void Abort(const std::string& reason);
  MaskInbox* masks() { return &masks_; }
  // Fail and FailForGood record a failure, the first of which stays, and abort the group, so that the other
  // ranks learn of the failure at once instead of waiting for a rank that will not come. Both return
  // `status`. Fail: a step or a collective of `epoch` failed.
  absl::Status Fail(int64_t epoch, const absl::Status& status);
  absl::Status FailForGood(const absl::Status& status);
  Lifecycle* lifecycle() { return &lifecycle_; }
  const Lifecycle& lifecycle() const { return lifecycle_; }

  // On the runner thread:

  // True between Announce(epoch) and Begin(epoch).
  bool pending(int64_t epoch) const { return fence_.pending(epoch); }
  // The work of older epochs has ended: leaves the group, and serves requests of `epoch` from now on.
  void Begin(int64_t epoch);
  // Leaves the group, before its device is closed.
  void LeaveGroup() { communicator_.BeginEpoch(begun_); }
  // The epoch of the last Begin.
  int64_t begun() const { return begun_; }
  // Ok unless a later epoch was announced meanwhile.
  absl::Status CheckCurrent() const { return fence_.Check(begun_); }
  // Fail, of the epoch of the last Begin.
  absl::Status FailCurrent(const absl::Status& status) { return Fail(begun_, status); }

  // Joins the group on the device of `load`, which must have a model. Blocks until the whole group has
  // joined.
  absl::Status Join(const v1::ParallelConfig& parallel, const WorkerLoad& load);
  absl::Status RequireGroup(const char* call) const;
  // All ranks suspend together, and resume together at their next step. After a recovery some ranks may sleep
  // already, and get no call, when others are put to sleep: Suspend waits for no other rank until Resume was
  // called.
  absl::Status Suspend();
  absl::Status Resume();
  // The ranks of the epoch may be in different states, until Resume.
  void SetRanksMayDiffer() { ranks_may_differ_ = true; }
  EpochCommunicator* communicator() { return &communicator_; }

 private:
  GroupPorts TakeOpenPorts();

  EpochFence fence_;
  Lifecycle lifecycle_;
  EpochCommunicator communicator_;
  MaskInbox masks_;
  int64_t begun_ = 0;              // runner thread alone
  bool ranks_may_differ_ = false;  // runner thread alone
  absl::Mutex mu_;
  GroupPorts open_ports_ ABSL_GUARDED_BY(mu_);  // of NewGroup, for the JoinGroup that follows
};

}  // namespace somnus
