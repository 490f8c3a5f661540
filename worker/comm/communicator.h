#pragma once
// Collectives among the ranks of a model, or, in a pipeline, among the ranks of a stage. Deterministic: every
// rank gets the same bits, and the same bits each time. Our own code sums in f32, in rank order. NCCL, which
// large messages on CUDA go through, chooses an order for each size.
//
// A Communicator per rank, used by the runner thread alone; Abort and status may be called from any thread.
// Calls must be made in the same order by all ranks. A collective whose peer died, was aborted or stayed away
// past the timeout ends in an error (Unavailable / Aborted / DeadlineExceeded) within a second of the cause
// instead of hanging; afterwards the communicator stays failed and is only good for destruction.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "kernels/ops.h"
#include "worker/comm/group_options.h"

namespace somnus {

class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int world_size() const = 0;

  // True: AllReduceSum and AllGather are queued on the device's stream, in order with the ops before and
  // after, and can be captured in the device's graphs. Pointers are to device memory, the host waits for
  // nothing, and an OK says only that the call is queued: after a wait for the device, status() says whether
  // the results are good. False: pointers are to memory that the host can use and the device is done with,
  // and the results are there when the call returns.
  virtual bool stream_ordered() const { return false; }

  // data[i] = sum over ranks of data[i], in place. kF32, kBF16 or kF16: taken in f32, rounded once, to
  // nearest even.
  virtual absl::Status AllReduceSum(void* data, int64_t count, DataType type) = 0;

  // out = the ranks' `bytes` bytes in rank order: world_size * bytes in all.
  virtual absl::Status AllGather(const void* in, int64_t bytes, void* out) = 0;

  // AllReduceSum(delta), then AddRmsNorm(residual, delta, weight, eps, out); in a single pass where the
  // device has such an op. delta is contiguous (stride = cols), and is scratch afterwards.
  virtual absl::Status AllReduceAddRmsNorm(Device& device, const TensorView& residual,
                                           const TensorView& delta, const float* weight, double eps,
                                           const TensorView& out);

  // Returns once every rank has called Barrier; all that the device has queued is done by then.
  virtual absl::Status Barrier() = 0;

  // Ends the collective of every rank of the group with Aborted(reason). Thread safe, idempotent.
  virtual void Abort(const std::string& reason) = 0;

  // Ok while the group is whole: no rank is known to be dead, gone or aborted, and nothing has failed. Thread
  // safe.
  virtual absl::Status status() const { return absl::OkStatus(); }

  // Suspend releases the memory that the group can do without while the ranks sleep; Resume comes before the
  // next collective. All ranks call both, with nothing queued; each is idempotent, and may wait for the other
  // ranks.
  virtual absl::Status Suspend() { return absl::OkStatus(); }
  virtual absl::Status Resume() { return absl::OkStatus(); }

  // For ranks of a pipeline: `bytes` bytes to, or from, the rank with the same place in the next, or the
  // previous, stage (stage_link.h). FailedPrecondition: there is no such stage.
  virtual absl::Status SendToNextStage(const void* data, int64_t bytes);
  virtual absl::Status ReceiveFromPreviousStage(void* data, int64_t bytes);
  // As StageLink::stream_ordered, of the link that the call takes. May differ from epoch to epoch.
  virtual bool sends_on_stream() const { return false; }
  virtual bool receives_on_stream() const { return false; }
};

// world_size 1: every call is a no-op (AllGather copies).
std::unique_ptr<Communicator> MakeSingleCommunicator();

// Ranks of a host through shared memory. Blocks until all ranks are there. InvalidArgument names the option;
// DeadlineExceeded says who is missing after connect_timeout; Aborted: cancelled.
absl::StatusOr<std::unique_ptr<Communicator>> MakeShmCommunicator(const GroupOptions& options);

}  // namespace somnus
