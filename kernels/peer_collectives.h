#pragma once
// Collectives by kernels of our own, over memory that the ranks' devices map from each other: for messages
// that are too small to fill the links, and for ranks that share a device. One object per rank, of a group of
// 2 to kMaxPeers on one host.
//
// Sums are taken in f32 in rank order and rounded once, so that every rank gets the same bits, whatever the
// size. Collectives are queued on the device's stream, never wait on the host, and can be captured in graphs:
// state that changes between collectives lives in device memory. All ranks must queue the same collectives in
// the same order. A rank that waits in vain (a peer died, Stop was called, the timeout passed) gives up,
// leaves the outputs undefined, and reports the failure by status(); the group cannot be used afterwards.

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
  // holds two such buffers, outside all memory that sleeps.
  int64_t buffer_bytes = 2 << 20;
  // Larger messages go two-shot (see kernels/cuda/peer/all_reduce_plan.h); -1: chosen by the link between the
  // ranks.
  int64_t one_shot_bytes = -1;
  absl::Duration timeout = absl::Seconds(300);
};

// The data that another rank needs to map this rank's memory. Plain bytes, for any channel between processes
// of one host.
struct PeerHandle {
  uint64_t process = 0;  // random: tells whether two ranks are in one process
  uint64_t token = 0;    // random, of this object: the probe's pattern is made from the token
  uint64_t address = 0;  // of the memory, in that process
  int64_t buffer_bytes = 0;
  int32_t fuses = 1;  // 0: all-reduce + add + RMSNorm in one kernel is turned off
  char device_uuid[16] = {};
  char ipc[64] = {};
};

class PeerCollectives {
 public:
  // Waits for the device's queued work, and disconnects. Every rank should have disconnected before (a
  // barrier): a kernel that uses a peer's memory faults once that memory is freed.
  virtual ~PeerCollectives() = default;

  virtual PeerHandle handle() const = 0;
  // Maps the other ranks' memory; `handles` are in rank order and include this rank's own. To be called
  // before the first collective, and after every rank's object was made. Unavailable where a device cannot
  // reach another device; InvalidArgument where the ranks' options differ.
  virtual absl::Status Connect(absl::Span<const PeerHandle> handles) = 0;
  // Show by data whether the mapped memory is really the other ranks' memory (on some systems mapping
  // succeeds, and then reads return wrong bytes). WriteProbe fills this rank's memory, and this rank's place
  // in every peer's memory, with a pattern of the rank's token; CheckProbe, once all ranks have written (a
  // barrier), compares all patterns. Unavailable names the rank. A second barrier comes before the first
  // collective.
  virtual absl::Status WriteProbe() = 0;
  virtual absl::Status CheckProbe() = 0;

  // The slowest link from this rank's device to a peer's, known once connected.
  virtual PeerLink link() const = 0;
  // Sets the slowest link of the whole group, which decides thresholds and so must be the same on all ranks.
  // To be called before the first collective.
  virtual void SetGroupLink(PeerLink link) = 0;

  // Unmaps the other ranks' memory. Every rank must have finished its queued work (a barrier). Idempotent.
  virtual void Disconnect() = 0;

  // data[i] = sum over ranks of data[i], in place: kF32, kBF16 or kF16.
  virtual void AllReduceSum(void* data, int64_t count, DataType type) = 0;
  // out = the ranks' `bytes` bytes in rank order.
  virtual void AllGather(const void* in, int64_t bytes, void* out) = 0;
  // AllReduceSum(delta), then the op AddRmsNorm(residual, delta, weight, eps, out), in one kernel; delta
  // (contiguous) keeps this rank's addends. The bits are the same as of the two ops. Returns false, and
  // queues nothing, for shapes for which one kernel does not pay.
  virtual bool AllReduceAddRmsNorm(const TensorView& residual, const TensorView& delta, const float* weight,
                                   double eps, const TensorView& out) = 0;

  // Ends every wait of this rank, now and later. May be called from any thread; never blocks.
  virtual void Stop() = 0;
  // Aborted after Stop; DeadlineExceeded names the rank that did not come. May be called from any thread.
  virtual absl::Status status() const = 0;
};

}  // namespace somnus
