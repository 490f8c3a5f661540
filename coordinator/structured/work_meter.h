#pragma once
// Bounds the memory and the time of code that cannot be interrupted: a compiler of grammars that somebody
// else has written, and that a stranger's grammar may keep busy for hours. While a WorkMeter lives, operator
// new of the same thread throws WorkExceeded when too much is allocated or the time is over; code that is
// correct where memory runs out is correct here. Work that allocates nothing goes on: what a meter cannot
// end, limits of the input have to.
//
// work_meter.cc replaces the program's operator new and operator delete. On a thread without a meter these
// are malloc and free behind one look at a thread-local pointer. Builds with sanitizers keep the sanitizers'
// own operators, and no meter throws there.

#include <cstddef>
#include <cstdint>
#include <new>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace somnus {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kWorkMetersThrow = false;
#else
inline constexpr bool kWorkMetersThrow = true;
#endif

class WorkExceeded : public std::bad_alloc {
 public:
  const char* what() const noexcept override { return "too much work"; }
};

// Belongs to one thread, and only the innermost of several meters counts.
class WorkMeter {
 public:
  struct Limits {
    int64_t bytes = 0;  // allocated and not freed, while the meter lives
    // Of the CPU for the thread, so that a machine with much else to do refuses no more than others.
    absl::Duration time;
  };

  explicit WorkMeter(const Limits& limits);
  ~WorkMeter();
  WorkMeter(const WorkMeter&) = delete;
  WorkMeter& operator=(const WorkMeter&) = delete;

  // Ends the metering before the destructor does. Ok, or why WorkExceeded was thrown, even if somebody has
  // caught it: ResourceExhausted (bytes), DeadlineExceeded.
  absl::Status End();
  // May be less than zero: memory of before is freed too.
  int64_t allocated() const { return allocated_; }

  // For operator new and operator delete.
  void BeforeAllocation(size_t size);
  void Allocated(size_t size) { allocated_ += static_cast<int64_t>(size); }
  void Freed(size_t size) { allocated_ -= static_cast<int64_t>(size); }
  static WorkMeter* OfThread();  // null without one

 private:
  const Limits limits_;
  // Where the next exception is due: the limits, and more after each exception, so that code that cleans up
  // can allocate.
  int64_t next_bytes_;
  int64_t next_nanoseconds_;
  int64_t allocated_ = 0;
  uint32_t allocations_ = 0;
  bool bytes_exceeded_ = false, time_exceeded_ = false;
  WorkMeter* const outer_;
  bool ended_ = false;
};

}  // namespace somnus
