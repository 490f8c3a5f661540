#pragma once
// Collectives among the ranks of one model. Deterministic: a sum is always taken in rank order, so every rank
// gets the same bits, and the same bits each time.
//
// One Communicator per rank, used by the runner thread alone; Abort may come from any thread. Calls must be
// made in the same order by all ranks. A collective whose peer died, was aborted or stayed away past the
// timeout returns an error (Unavailable / Aborted / DeadlineExceeded) within a second of the cause instead of
// hanging; afterwards the communicator stays failed and is only good for destruction.

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace somnus {

class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int world_size() const = 0;

  // data[i] = sum over ranks of data[i], f32, in place.
  virtual absl::Status AllReduceSum(float* data, int64_t count) = 0;

  // out = the ranks' `bytes` bytes in rank order: world_size * bytes.
  virtual absl::Status AllGather(const void* in, int64_t bytes, void* out) = 0;

  virtual absl::Status Barrier() = 0;

  // Wakes every rank of the group out of its collective with Aborted(reason). Thread safe, idempotent.
  virtual void Abort(const std::string& reason) = 0;
};

// world_size 1: every call is a no-op (AllGather copies).
std::unique_ptr<Communicator> MakeSingleCommunicator();

struct ShmCommunicatorOptions {
  std::string group_name;  // same on all ranks, unique per group on the host; [A-Za-z0-9_-]{1,64}
  int rank = 0;
  int world_size = 1;
  int64_t buffer_bytes = 1 << 20;  // per rank and slot; larger messages go in pieces
  absl::Duration connect_timeout = absl::Seconds(30);
  absl::Duration collective_timeout = absl::Seconds(300);
  bool spin = true;  // spin briefly before blocking on a futex; off when ranks outnumber CPUs
  absl::Duration spin_time = absl::Microseconds(50);  // about what a futex wake-up costs
};
// Ranks of one host through shared memory. Blocks until all ranks are there, or connect_timeout.
absl::StatusOr<std::unique_ptr<Communicator>> MakeShmCommunicator(const ShmCommunicatorOptions& options);

}  // namespace somnus
