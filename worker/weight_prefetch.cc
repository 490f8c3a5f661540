#include "worker/weight_prefetch.h"

#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <utility>

#include "base/cpus.h"
#include "base/log.h"

namespace somnus {
namespace {

constexpr uint64_t kReadBytes = 1 << 20;  // between two rests

// The arguments of ioprio_set: the C library has no names for them.
constexpr int kIoPriorityOfProcess = 1, kIoClassIdle = 3, kIoClassShift = 13;

// Another model's wake-up may be reading. Where the system does not let us, the thread is a reader like
// others.
void LeaveTheDiskToOthers() {
  (void)syscall(SYS_ioprio_set, kIoPriorityOfProcess, 0, kIoClassIdle << kIoClassShift);
}

// Of the calling thread.
absl::Duration ProcessorTime() {
  timespec time;
  if (clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time) != 0) return absl::ZeroDuration();
  return absl::DurationFromTimespec(time);
}

}  // namespace

absl::Duration RestOf(absl::Duration cpu_time, absl::Duration passed, double cpu_share) {
  return std::max(cpu_time / cpu_share - passed, absl::ZeroDuration());
}

WeightPrefetch::WeightPrefetch(std::unique_ptr<Checkpoint> checkpoint, std::vector<FileRange> ranges,
                               const WeightPrefetchOptions& options)
    : checkpoint_(std::move(checkpoint)), ranges_(std::move(ranges)), options_(options) {
  thread_ = std::thread([this] { Run(); });
}

WeightPrefetch::~WeightPrefetch() {
  stop_.Stop();
  thread_.join();
}

void WeightPrefetch::Run() {
  UnpinThisThread();
  LeaveTheDiskToOthers();
  began_ = MonotonicNow();
  for (const FileRange& range : ranges_) {
    if (!Read(range)) break;
  }
  done_ = true;
}

bool WeightPrefetch::Read(const FileRange& range) {
  for (uint64_t at = range.begin; at < range.end;) {
    const int64_t left = options_.max_bytes - num_bytes_;
    if (stop_.stopped() || left <= 0) return false;
    const uint64_t end = std::min({range.end, at + kReadBytes, at + static_cast<uint64_t>(left)});
    if (const absl::Status status = range.file->ReadIntoPageCache(at, end); !status.ok()) {
      LogWarning("weights are not prefetched any further: {}", std::string(status.message()));
      return false;
    }
    num_bytes_ += static_cast<int64_t>(end - at);
    at = end;
    Rest();
  }
  return true;
}

// A thread that waits for the disk takes no processor, so a slow disk leaves nothing to rest for.
void WeightPrefetch::Rest() {
  if (const absl::Duration rest = RestOf(ProcessorTime(), MonotonicNow() - began_, options_.cpu_share);
      rest > absl::ZeroDuration())
    stop_.WaitFor(rest);
}

}  // namespace somnus
