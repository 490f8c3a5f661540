#pragma once
// A wall clock that a test sets. The header takes the place of libc's clock_gettime in the whole program, so
// only one file may include this header; all other clocks stay the kernel's.

#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>

namespace somnus {

// How far the wall clock is ahead.
inline std::atomic<int64_t> g_wall_clock_seconds{0};

}  // namespace somnus

extern "C" int clock_gettime(clockid_t id, struct timespec* time) noexcept {
  const int result = static_cast<int>(syscall(SYS_clock_gettime, id, time));
  if (result == 0 && id == CLOCK_REALTIME) time->tv_sec += somnus::g_wall_clock_seconds.load();
  return result;
}
