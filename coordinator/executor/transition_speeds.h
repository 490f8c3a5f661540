#pragma once
// The measured speeds at which the ranks of a group move bytes, and the timeouts for further movements.
// Speeds outlive epochs: the ranks of the next epoch have the same memory, disks and weights.
//
// For each kind of movement the last speed of the slowest rank counts, in bytes per second. A measurement
// only shortens timeouts: no timeout is longer than without a measurement. Thread safe.

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
  kRestore,  // out of backups
  kRead,     // of weights, from the checkpoint; a load counts as a read with all its work
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
    int64_t bytes;  // for kRead a lower bound; where the last read had more bytes, that number counts
  };

  // `ranks`: the movement of each rank in the same call. Ranks that took less than 10 ms say nothing about a
  // speed.
  void Note(MovementKind kind, const std::vector<Moved>& ranks);

  // For a call that makes these movements in order: where all speeds are known, measured_timeout and
  // measured_slack times the time of each movement; for kRead no less than the time at
  // transition_bytes_per_s, because cached pages may have to be read from a disk now. A movement of unknown
  // speed has the timeout of ExecutorOptions, and so has the call. A mapping that was never measured is taken
  // to be as fast as a load, which maps the memory that it reads into.
  absl::Duration Timeout(const std::vector<Movement>& movements, const ExecutorOptions& options) const;
  // For a rank that may be reading weights to become idle; at most load_timeout.
  absl::Duration ReadTimeout(const ExecutorOptions& options) const;

 private:
  std::optional<double> SpeedOf(MovementKind kind) const ABSL_SHARED_LOCKS_REQUIRED(mu_);

  mutable absl::Mutex mu_;
  std::map<MovementKind, double> bytes_per_s_ ABSL_GUARDED_BY(mu_);
  int64_t read_bytes_ ABSL_GUARDED_BY(mu_) = 0;  // of the rank that read most, the last time
};

// `options`, with new speeds where `options` had none.
ExecutorOptions WithSpeeds(ExecutorOptions options);

}  // namespace somnus
