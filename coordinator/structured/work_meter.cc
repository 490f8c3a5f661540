#include "coordinator/structured/work_meter.h"

#include <malloc.h>

#include <cstdlib>
#include <ctime>

#include "absl/strings/str_cat.h"

namespace somnus {
namespace {

constexpr int64_t kMoreBytes = int64_t{16} << 20;
constexpr int64_t kMoreNanoseconds = 20'000'000;
// How many small allocations pass between two looks at the clock.
constexpr uint32_t kAllocationsPerLook = 64;
constexpr size_t kSmall = 4096;

// Constant initialisation, so that threads without a meter pay one load.
constinit thread_local WorkMeter* current = nullptr;

int64_t Now() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return int64_t{1'000'000'000} * now.tv_sec + now.tv_nsec;
}

}  // namespace

WorkMeter::WorkMeter(const Limits& limits)
    : limits_(limits),
      next_bytes_(limits.bytes),
      next_nanoseconds_(absl::ToInt64Nanoseconds(absl::Nanoseconds(Now()) + limits.time)),
      outer_(current) {
  current = this;
}

WorkMeter::~WorkMeter() {
  if (!ended_) current = outer_;
}

WorkMeter* WorkMeter::OfThread() { return current; }

absl::Status WorkMeter::End() {
  if (!ended_) current = outer_;
  ended_ = true;
  if (bytes_exceeded_) {
    return absl::ResourceExhaustedError(absl::StrCat("it takes more than ", limits_.bytes >> 20, " MiB"));
  }
  if (time_exceeded_) {
    return absl::DeadlineExceededError(
        absl::StrCat("it takes more of the CPU than ", absl::FormatDuration(limits_.time)));
  }
  return absl::OkStatus();
}

void WorkMeter::BeforeAllocation(size_t size) {
  if (allocated_ + static_cast<int64_t>(size) > next_bytes_) {
    bytes_exceeded_ = true;
    next_bytes_ = allocated_ + kMoreBytes;
    throw WorkExceeded();
  }
  if (size < kSmall && ++allocations_ % kAllocationsPerLook != 0) return;
  if (const int64_t now = Now(); now > next_nanoseconds_) {
    time_exceeded_ = true;
    next_nanoseconds_ = now + kMoreNanoseconds;
    throw WorkExceeded();
  }
}

}  // namespace somnus

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

// The forms for arrays and without exceptions are the library's own, and call these.
void* operator new(size_t size) {
  somnus::WorkMeter* const meter = somnus::WorkMeter::OfThread();
  if (meter != nullptr) meter->BeforeAllocation(size);
  void* memory;
  while ((memory = std::malloc(size != 0 ? size : 1)) == nullptr) {
    const std::new_handler handler = std::get_new_handler();
    if (handler == nullptr) throw std::bad_alloc();
    handler();
  }
  if (meter != nullptr) meter->Allocated(malloc_usable_size(memory));
  return memory;
}

void operator delete(void* memory) noexcept {
  if (somnus::WorkMeter* const meter = somnus::WorkMeter::OfThread(); meter != nullptr) {
    meter->Freed(malloc_usable_size(memory));
  }
  std::free(memory);
}

void operator delete(void* memory, size_t) noexcept { operator delete(memory); }

#endif
