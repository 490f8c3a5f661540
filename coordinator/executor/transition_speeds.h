#pragma once
// How fast the ranks of a group move bytes, as what they have done says, and how long they may take for more
// of it. It outlives epochs: the next one's ranks have the same memory, disks and weights.
//
// Of each kind of movement the last speed counts, that of the slowest rank, in bytes per second. What is
// known bounds only what is not: no timeout is longer than without a measurement. Thread safe.

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "coordinator/executor/executor_options.h"

namespace somnus {

enum class MovementKind {
  kMap,      // of device memory
  kBackup,   // into backups
  kRestore,  // out of them
  kRead,     // of weights, from the checkpoint; of a load it has everything that a load does
  kRelease,  // of device memory
};

class TransitionSpeeds {
 public:
  struct Moved {
    int64_t bytes;
    double seconds;
  };
  struct Movement {
    MovementKind kind;
    int64_t bytes;  // of kRead at least; as many as the last time count where these are more
  };

  // `ranks`: what each has done in the same call. Ranks that were done within 10 ms say nothing about a
  // speed.
  void Note(MovementKind kind, const std::vector<Moved>& ranks);

  // For a call that moves these, one after the other: where the speeds of all are known measured_timeout,
  // and measured_slack times what each takes; of kRead no less than the bytes take at transition_bytes_per_s,
  // because pages that were cached may have to be read from a disk now. A movement whose speed is not known
  // has what ExecutorOptions says, and so has the call. A mapping that was never measured is taken to be as
  // fast as a load, which maps what it reads.
  absl::Duration Timeout(const std::vector<Movement>& movements, const ExecutorOptions& options) const;
  // For a rank that may be reading its weights to become idle; at most load_timeout.
  absl::Duration ReadTimeout(const ExecutorOptions& options) const;

 private:
  std::optional<double> SpeedOf(MovementKind kind) const ABSL_SHARED_LOCKS_REQUIRED(mu_);

  mutable absl::Mutex mu_;
  std::map<MovementKind, double> bytes_per_s_ ABSL_GUARDED_BY(mu_);
  int64_t read_bytes_ ABSL_GUARDED_BY(mu_) = 0;  // of the rank that read most, the last time
};

// `options`, with speeds of their own where they had none.
ExecutorOptions WithSpeeds(ExecutorOptions options);

}  // namespace somnus
