#include "worker/weight_prefetch.h"

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <utility>

#include "base/log.h"

namespace somnus {
namespace {

constexpr uint64_t kReadBytes = 1 << 20;  // between two looks at whether it has to end

// What ioprio_set takes: the C library has no names for it.
constexpr int kIoPriorityOfProcess = 1, kIoClassIdle = 3, kIoClassShift = 13;

// Only when nobody else wants the processor or the disk. Where the system does not let us, it is a reader as
// others.
void TakeLowestPriority() {
  constexpr int kLowest = 19;
  const auto thread = static_cast<id_t>(syscall(SYS_gettid));
  (void)setpriority(PRIO_PROCESS, thread, kLowest);
  (void)syscall(SYS_ioprio_set, kIoPriorityOfProcess, 0, kIoClassIdle << kIoClassShift);
}

}  // namespace

WeightPrefetch::WeightPrefetch(std::unique_ptr<Checkpoint> checkpoint, std::vector<FileRange> ranges,
                               int64_t max_bytes)
    : checkpoint_(std::move(checkpoint)), ranges_(std::move(ranges)), max_bytes_(max_bytes) {
  thread_ = std::thread([this] { Run(); });
}

WeightPrefetch::~WeightPrefetch() {
  stopped_ = true;
  thread_.join();
}

void WeightPrefetch::Run() {
  TakeLowestPriority();
  for (const FileRange& range : ranges_) {
    if (!Read(range)) break;
  }
  done_ = true;
}

bool WeightPrefetch::Read(const FileRange& range) {
  for (uint64_t at = range.begin; at < range.end;) {
    const int64_t left = max_bytes_ - num_bytes_;
    if (stopped_ || left <= 0) return false;
    const uint64_t end = std::min({range.end, at + kReadBytes, at + static_cast<uint64_t>(left)});
    if (const absl::Status status = range.file->ReadIntoPageCache(at, end); !status.ok()) {
      LogWarning("weights are not prefetched any further: {}", std::string(status.message()));
      return false;
    }
    num_bytes_ += static_cast<int64_t>(end - at);
    at = end;
  }
  return true;
}

}  // namespace somnus
