#pragma once
// Collectives by kernels of our own, over memory that the ranks' devices map from each other: for messages
// that are too small to fill the links, and for ranks that share a device. One object per rank, of a group of
// 2 to kMaxPeers on one host.
//
// Sums are taken in f32 in rank order and rounded once, so that every rank gets the same bits, whatever the
// size. Collectives are queued on the device's stream, never wait on the host, and can be captured in graphs:
// what changes from one to the next lives in device memory. All ranks must queue the same ones in the same
// order. A rank that waits in vain (a peer died, Stop was called, the timeout passed) gives up, leaves its
// outputs undefined, and reports that by status(); the group cannot be used afterwards.

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "kernels/tensor.h"

namespace somnus {

inline constexpr int kMaxPeers = 8;

// The link between two devices. kNvLink: NVLink, or both ranks share one device.
enum class PeerLink : int32_t { kNvLink, kPcie };

struct PeerOptions {
  int rank = 0;
  int world_size = 2;
  // Size of a buffer that peers read: a multiple of 256; larger messages go in pieces. The rank's device
  // holds two of them, outside everything that sleeps.
  int64_t buffer_bytes = 2 << 20;
  // Larger messages go two-shot (see kernels/cuda/all_reduce_plan.h); -1: chosen by the link between the
  // ranks.
  int64_t one_shot_bytes = -1;
  absl::Duration timeout = absl::Seconds(300);
};

// What another rank needs to map this one's memory. Plain bytes, for any channel between processes of one
// host.
struct PeerHandle {
  uint64_t process = 0;  // random: tells whether two ranks are in one process
  uint64_t token = 0;    // random, of this object: the probe's pattern is made from it
  uint64_t address = 0;  // of the memory, in that process
  int64_t buffer_bytes = 0;
  int32_t fuses = 1;  // 0: all-reduce + add + RMSNorm in one kernel is turned off
  char device_uuid[16] = {};
  char ipc[64] = {};
};

class PeerCollectives {
 public:
  // Waits for what the device has queued, and disconnects. Every rank should have disconnected before (a
  // barrier): a kernel that uses a peer's memory faults once that is freed.
  virtual ~PeerCollectives() = default;

  virtual PeerHandle handle() const = 0;
  // Maps the other ranks' memory; `handles` are in rank order and include this rank's own. To be called
  // before the first collective, and after every rank's object was made. Unavailable where a device cannot
  // reach another; InvalidArgument where the ranks' options differ.
  virtual absl::Status Connect(absl::Span<const PeerHandle> handles) = 0;
  // Show by data whether what was mapped is really the other ranks' memory (some systems map it, and then
  // reads return other bytes). WriteProbe fills this rank's memory, and its place in every peer's, with a
  // pattern of the rank's token; CheckProbe, once all ranks have written (a barrier), compares all of it.
  // Unavailable names the rank. Another barrier comes before the first collective.
  virtual absl::Status WriteProbe() = 0;
  virtual absl::Status CheckProbe() = 0;

  // The slowest link from this rank's device to a peer's, known once connected.
  virtual PeerLink link() const = 0;
  // Sets the slowest link of the whole group, which decides thresholds and so must be the same on all ranks.
  // To be called before the first collective.
  virtual void SetGroupLink(PeerLink link) = 0;

  // Unmaps the other ranks' memory. Every rank must have finished what it queued (a barrier). Idempotent.
  virtual void Disconnect() = 0;

  // data[i] = sum over ranks of data[i], in place: kF32, kBF16 or kF16.
  virtual void AllReduceSum(void* data, int64_t count, DataType type) = 0;
  // out = the ranks' `bytes` bytes in rank order.
  virtual void AllGather(const void* in, int64_t bytes, void* out) = 0;
  // AllReduceSum(delta), then the op AddRmsNorm(residual, delta, weight, eps, out), in one kernel; delta
  // (contiguous) keeps this rank's addends. The bits are those of the two ops. Returns false, and queues
  // nothing, for shapes for which one kernel is not worth it.
  virtual bool AllReduceAddRmsNorm(const TensorView& residual, const TensorView& delta, const float* weight,
                                   double eps, const TensorView& out) = 0;

  // Ends every wait of this rank, now and later. May be called from any thread; never blocks.
  virtual void Stop() = 0;
  // Aborted after Stop; DeadlineExceeded names the rank that did not come. May be called from any thread.
  virtual absl::Status status() const = 0;
};

}  // namespace somnus
