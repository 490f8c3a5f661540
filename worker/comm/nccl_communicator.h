#pragma once
// A rank of an NCCL communicator, and the states of the rank:
//
//   initialising --(NCCL says so)--> ready <--Suspend/Resume--> suspended
//   any --error, deadline--> failed        any --Abort--> aborted        (both for good)
//
// The group forms by a non-blocking communicator, since that may take long and a rank may never come: we wait
// by polling, with a deadline, and check `health` meanwhile. Ready means that a blocking communicator of the
// same ranks was split off, which collectives use: the call queues the collective, in graphs too, and nothing
// is polled. The first collective of a kind, and the first message to a rank, connects the ranks; Poll finds
// a call that does not return in time. ncclCommAbort ends calls that are stuck, and work on the stream that
// cannot complete: kernels then leave the device, whose Synchronize returns.
//
// Thread safety: collectives, messages, Suspend and Resume from one thread; Abort, Poll, state and status
// from any. The constructor's thread must have the device as the current device.

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "kernels/tensor.h"
#include "worker/comm/nccl_api.h"

namespace somnus {

struct NcclOptions {
  int rank = 0;
  int world_size = 1;
  std::string about;      // before every message: "the link to rank 3: "
  std::string unique_id;  // of MakeNcclUniqueId, the same on all ranks
  void* stream = nullptr;
  absl::Duration init_timeout = absl::Seconds(120);
  // The longest that a call of NCCL may take.
  absl::Duration call_timeout = absl::Seconds(60);
  absl::Duration finalize_timeout = absl::Seconds(2);
  // The status of the rest of the group, as far as known; called while waiting. Empty: nothing is known.
  std::function<absl::Status()> health;
};

enum class NcclState { kInitialising, kReady, kSuspended, kFailed, kAborted };
const char* NcclStateName(NcclState state);

class NcclCommunicator {
 public:
  // Begins to join the group and returns at once. `api` must outlive the communicator.
  static absl::StatusOr<std::unique_ptr<NcclCommunicator>> Start(const NcclApi& api, NcclOptions options);
  // Finalizes when ready (with finalize_timeout), aborts otherwise. The device is done with all queued work.
  ~NcclCommunicator();

  // Until the group is complete: DeadlineExceeded after init_timeout. Poll must be called now and then from
  // now on.
  absl::Status AwaitReady();

  // Queued on the stream. An OK says only that; status() says whether a failure came since.
  // FailedPrecondition names a state that is not ready.
  absl::Status AllReduceSum(void* data, int64_t count, DataType type);
  absl::Status AllGather(const void* in, int64_t bytes, void* out);
  // A message from one rank to another, which must call the other function with the same number of bytes.
  absl::Status Send(const void* data, int64_t bytes, int to);
  absl::Status Receive(void* data, int64_t bytes, int from);

  // Suspend releases the device memory that NCCL can do without, where the loaded library has that call (from
  // 2.29.7); otherwise nothing changes. All ranks call both, with nothing queued. Both are idempotent.
  absl::Status Suspend();
  absl::Status Resume();

  // Ends queued work and every wait with Aborted(reason). Idempotent; the first cause stays.
  void Abort(const std::string& reason);
  // Checks whether NCCL has found an error, and whether a call has been under way for longer than
  // call_timeout; either makes the communicator failed. Never blocks for long.
  absl::Status Poll();

  NcclState state() const;
  // Ok unless failed or aborted.
  absl::Status status() const;

 private:
  NcclCommunicator(const NcclApi& api, NcclOptions options) : api_(api), options_(std::move(options)) {}

  absl::Status Require(NcclState state, const char* call) const;
  absl::Status Call(const char* name, absl::Duration timeout,
                    const std::function<nccl::Result(nccl::Comm)>& call);
  absl::Status AwaitProgress(const char* name, absl::Duration timeout);
  absl::Status BecomeBlocking();
  void Leave();
  void Retire(nccl::Comm comm);
  absl::Status CheckCallUnderWay();
  nccl::Result AsyncError(nccl::Comm comm) const;
  absl::Status ToStatus(const char* name, nccl::Result result) const;
  void SetState(NcclState state);
  absl::Status End(NcclState state, const absl::Status& cause);
  void Quit();

  const NcclApi& api_;
  const NcclOptions options_;
  // NCCL allows a single thread at a time in a communicator.
  mutable absl::Mutex call_mu_;
  std::atomic<nccl::Comm> comm_{nullptr};  // null once ended
  nccl::Comm split_ = nullptr;  // where NCCL stores the blocking communicator, perhaps in the background
  // The start of the call that is under way, in nanoseconds of the steady clock; 0: none.
  std::atomic<int64_t> call_started_{0};

  mutable absl::Mutex mu_;
  NcclState state_ ABSL_GUARDED_BY(mu_) = NcclState::kInitialising;
  absl::Status error_ ABSL_GUARDED_BY(mu_);
};

}  // namespace somnus
