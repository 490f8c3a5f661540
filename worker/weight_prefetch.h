#pragma once
// Brings bytes of a checkpoint from the disk into the page cache, on a thread of its own with the lowest
// priority for processor and disk, so that a later wake-up reads them from memory. It takes no memory that
// anybody else would miss: the page cache is what the kernel gives up first.
//
// Ownership: owns the checkpoint, and the thread, which the destructor ends: it waits for one read of at most
// a megabyte. Thread safety: num_bytes and done are for any thread.

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/mapped_file.h"

namespace somnus {

class WeightPrefetch {
 public:
  // Reads `ranges`, whose files are the checkpoint's, in their order, and no more than `max_bytes`. A file
  // that cannot be read ends it.
  WeightPrefetch(std::unique_ptr<Checkpoint> checkpoint, std::vector<FileRange> ranges, int64_t max_bytes);
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

  const std::unique_ptr<Checkpoint> checkpoint_;
  const std::vector<FileRange> ranges_;
  const int64_t max_bytes_;
  std::atomic<bool> stopped_{false};
  std::atomic<bool> done_{false};
  std::atomic<int64_t> num_bytes_{0};
  std::thread thread_;
};

}  // namespace somnus
