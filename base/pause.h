#pragma once
// The pause of a thread between two looks at a word that a second thread is about to change.

namespace somnus {

// Leaves the core to the CPUs that share the core for a few dozen cycles, and makes no system call. Thread
// safe.
inline void PauseCpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");  // A yield is no pause on most cores.
#endif
}

}  // namespace somnus
