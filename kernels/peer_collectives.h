#pragma once
// Collectives by kernels of our own, over memory that the ranks' devices map from each other: for messages
// that are too small to fill the links, and for ranks that share a device. One object per rank, of a group of
// 2 to kMaxPeers on one host.
//
// Sums are taken in f32 in rank order and rounded once, so that every rank gets the same bits, whatever the
// size. Collectives are queued on the device's stream, never wait on the host, and can be captured in graphs:
// what changes from one to the next lives in device memory. All ranks must queue the same ones in the same
// order. A rank that waits in vain (a peer died, Stop was called, the timeout passed) gives up, leaves its
// outputs as they are, and says so in status(); the group is good for nothing then.

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "kernels/tensor.h"

namespace somnus {

inline constexpr int kMaxPeers = 8;

// The way between two devices. kNvLink: NVLink, or both ranks share one device.
enum class PeerLink : int32_t { kNvLink, kPcie };

struct PeerOptions {
  int rank = 0;
  int world_size = 2;
  // Of the memory that peers read; larger messages go in pieces. A multiple of 256. The rank's device holds
  // two of them outside everything that sleeps.
  int64_t buffer_bytes = 2 << 20;
  // Larger messages go two-shot (see kernels/cuda/all_reduce_plan.h); -1: as the link between the ranks says.
  int64_t one_shot_bytes = -1;
  absl::Duration timeout = absl::Seconds(300);
};

// What another rank needs to know of this one. Plain bytes, for any channel between processes of one host.
struct PeerHandle {
  uint64_t process = 0;  // random: tells whether two ranks live in one
  uint64_t token = 0;    // random, of this object: what its probe is made of
  uint64_t address = 0;  // there
  int64_t buffer_bytes = 0;
  int32_t fuses = 1;  // 0: all-reduce + add + RMSNorm in one kernel is turned off
  char device_uuid[16] = {};
  char ipc[64] = {};
};

class PeerCollectives {
 public:
  // Waits for what the device has queued, and disconnects. Every rank should have disconnected before (a
  // barrier): a device whose peer's memory is gone faults when it uses it.
  virtual ~PeerCollectives() = default;

  virtual PeerHandle handle() const = 0;
  // Maps the other ranks' memory; `handles` in rank order, this rank's own among them. Before the first
  // collective, and after every rank's object was made. Unavailable where a device cannot reach another.
  virtual absl::Status Connect(absl::Span<const PeerHandle> handles) = 0;
  // Whether what was mapped is really the other ranks' memory, shown by data (some systems map it, and then
  // reads return other bytes). WriteProbe fills this rank's memory, and its place in every peer's, with a
  // pattern of the rank's token; CheckProbe, once all ranks have written (a barrier), compares all of it.
  // Unavailable names the rank. Another barrier comes before the first collective.
  virtual absl::Status WriteProbe() = 0;
  virtual absl::Status CheckProbe() = 0;

  // The slowest way from this rank's device to a peer's, known once connected.
  virtual PeerLink link() const = 0;
  // The slowest of the whole group, alike on all ranks, since thresholds go by it: before the first
  // collective.
  virtual void SetGroupLink(PeerLink link) = 0;

  // Unmaps the other ranks' memory: every rank must be done with what it queued (a barrier). Idempotent.
  virtual void Disconnect() = 0;

  // data[i] = sum over ranks of data[i], in place: kF32, kBF16 or kF16.
  virtual void AllReduceSum(void* data, int64_t count, DataType type) = 0;
  // out = the ranks' `bytes` bytes in rank order.
  virtual void AllGather(const void* in, int64_t bytes, void* out) = 0;
  // AllReduceSum(delta), then the op AddRmsNorm(residual, delta, weight, eps, out), in one kernel; delta
  // (contiguous) keeps this rank's addends. The same bits as by the two. False, and nothing is queued, for
  // shapes that are not worth it.
  virtual bool AllReduceAddRmsNorm(const TensorView& residual, const TensorView& delta, const float* weight,
                                   double eps, const TensorView& out) = 0;

  // Ends every wait of this rank, now and later. From any thread; never blocks.
  virtual void Stop() = 0;
  // From any thread: Aborted after Stop, DeadlineExceeded names the rank that did not come.
  virtual absl::Status status() const = 0;
};

}  // namespace somnus
