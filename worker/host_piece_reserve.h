#pragma once
// Pieces of host memory that are taken before a step needs the memory, on a thread of its own: a driver takes
// about half a second for a GiB of pinned memory, and a step that waited for the driver would hold up every
// sequence. A step gets pieces that are ready, or none, and its thread never calls the driver.
//
// The reserve keeps `num_ahead` pieces ready beside the pieces that steps have, more where a step has found
// too few, and never more than `num_most` in all. Start begins to take pieces; Stop gives the ready pieces
// back to the host. An error of the driver is kept, and Get returns the error; the reserve asks the driver
// again after `retry`.
//
// Thread safe. `take` and `free` are called on the reserve's thread, `free` also on that of Stop and
// GiveBack, and must be thread safe. The destructor waits for a call of `take` that is under way; every piece
// that was given out must have come back by then.

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/monotonic.h"

namespace somnus {

struct HostPieceReserveOptions {
  int64_t num_ahead = 0;
  int64_t num_most = 0;
  int64_t piece_bytes = 0;
  std::atomic<int64_t>* ready_bytes = nullptr;  // kept up to date for other threads; may be null
  absl::Duration retry = absl::Seconds(5);
};

class HostPieceReserve {
 public:
  using Take = std::function<absl::StatusOr<void*>()>;
  using Free = std::function<void(void*)>;

  HostPieceReserve(const HostPieceReserveOptions& options, Take take, Free free);
  ~HostPieceReserve();
  HostPieceReserve(const HostPieceReserve&) = delete;

  // The reserve takes pieces from now on. Calls no driver, and does nothing where the reserve has begun.
  void Start();
  // Frees the ready pieces on the caller's thread. A piece that the driver is just taking is freed as soon as
  // the driver has returned it.
  void Stop();

  // For a step: exactly `count` pieces, or an error and no piece. Unavailable: the pieces are being taken,
  // and a later call will succeed; any other code is the driver's last error.
  absl::StatusOr<std::vector<void*>> Get(int64_t count);
  // For a sleep: a piece that is ready, or nullptr. Never makes the reserve take more.
  void* GetReady();
  // A piece of Get or GetReady is not needed any more. The piece is ready again, or the reserve's thread
  // frees the piece; where the reserve is stopped, the caller's thread does.
  void GiveBack(void* piece);
  // The reserve's thread frees host memory that was not taken from the reserve.
  void FreeLater(void* memory);

  int64_t num_ready() const;

 private:
  void SetReady(std::vector<void*> ready);
  void AddReady(void* piece);  // or frees it later, where enough are ready
  int64_t Wanted() const;      // ready pieces
  void EnsureThread();
  void Run();
  void FreeDiscarded(std::unique_lock<std::mutex>* lock);
  void TakeOne(std::unique_lock<std::mutex>* lock);

  const HostPieceReserveOptions options_;
  const Take take_;
  const Free free_;
  mutable std::mutex mu_;  // not absl::Mutex: see base/monotonic.h
  std::condition_variable changed_;
  bool runs_ = false, ends_ = false;
  int64_t asked_ = 0;  // pieces that the last Get lacked
  int64_t num_given_ = 0;
  std::vector<void*> ready_, discarded_;
  absl::Status error_;  // of the last call of `take`, or of starting the thread
  MonotonicTime failed_at_;
  std::thread thread_;
};

}  // namespace somnus
