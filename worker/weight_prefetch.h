#pragma once
// Brings bytes of a checkpoint from the disk into the page cache, on a thread of its own, so that a later
// wake-up reads them from memory. The prefetch takes no memory that anybody else would miss: the kernel gives
// up the page cache first. The disk serves the prefetch when nobody else wants the disk. The prefetch takes a
// bounded share of a processor, also where other threads compute on every core: with a low priority the
// thread would get so little there that the wake-up came before the weights.
//
// Ownership: owns the checkpoint, and the thread, which the destructor ends: the destructor waits for a read
// of at most a megabyte. Thread safety: num_bytes and done are for any thread.

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "base/monotonic.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/mapped_file.h"

namespace somnus {

struct WeightPrefetchOptions {
  int64_t max_bytes = 0;
  // The share of a processor that reading may take, of (0, 1]. By an eighth a decoding model on two cores
  // loses a sixteenth of its speed at most.
  double cpu_share = 0.125;
};

// How long a thread rests that has taken `cpu_time` of a processor within `passed`, so that it takes no more
// than `cpu_share` of one.
absl::Duration RestOf(absl::Duration cpu_time, absl::Duration passed, double cpu_share);

class WeightPrefetch {
 public:
  // Reads `ranges`, whose files are the checkpoint's, in their order, and no more than max_bytes. A file that
  // cannot be read ends it.
  WeightPrefetch(std::unique_ptr<Checkpoint> checkpoint, std::vector<FileRange> ranges,
                 const WeightPrefetchOptions& options);
  ~WeightPrefetch();
  WeightPrefetch(const WeightPrefetch&) = delete;

  // Bytes that were read so far.
  int64_t num_bytes() const { return num_bytes_; }
  // Nothing more will be read.
  bool done() const { return done_; }

 private:
  void Run();
  // False: it is over.
  bool Read(const FileRange& range);
  void Rest();

  const std::unique_ptr<Checkpoint> checkpoint_;
  const std::vector<FileRange> ranges_;
  const WeightPrefetchOptions options_;
  StopSignal stop_;
  MonotonicTime began_;
  std::atomic<bool> done_{false};
  std::atomic<int64_t> num_bytes_{0};
  std::thread thread_;
};

}  // namespace somnus
